"""Held-out loss: token-weighted over batches and ranks, in nats per token and in bits per byte of text."""

from __future__ import annotations

import math

import lightning.pytorch as pl
import torch

from minillm.data.loader import ValLoader
from minillm.training import ranks
from minillm.training.callbacks.base import AfterUpdate, due
from minillm.training.module import IGNORED, TrainingModule


class Validation(AfterUpdate):
    """`val/...` at every `val_every` steps over `batches`, and `final/...` once, at max_steps, over `all_batches`."""

    def __init__(self, batches: ValLoader, all_batches: ValLoader, tokens_per_byte: float) -> None:
        """`tokens_per_byte` of the whole held-out text turns nats per token into bits per byte."""
        self.batches = batches
        self.all_batches = all_batches
        self.tokens_per_byte = tokens_per_byte

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        settings = module.cfg.trainer
        at_interval, at_end = due(module.step, settings.val_every), module.step >= settings.max_steps
        module.unfinished = False
        if at_interval:
            self._measure(module, "val", self.batches)
        if at_end and not module.unfinished:
            if at_interval and len(self.batches) == len(self.all_batches):
                for name in ("loss", "bits_per_byte"):
                    module.point[f"final/{name}"] = module.point[f"val/{name}"]
            else:
                self._measure(module, "final", self.all_batches)

    def _measure(self, module: TrainingModule, prefix: str, batches: ValLoader) -> None:
        loss = held_out_loss(module, batches)
        if loss is None:
            module.unfinished = True
            return
        module.point[f"{prefix}/loss"] = loss
        module.point[f"{prefix}/bits_per_byte"] = loss / math.log(2) * self.tokens_per_byte


@torch.no_grad()
def held_out_loss(module: TrainingModule, batches: ValLoader) -> float | None:
    """Mean nats per target token of `batches` over all ranks, None if a signal to stop came in between.

    Sums of nats and counts of tokens are added up, never means: ranks and batches hold unequal numbers of tokens.
    """
    nats, count = 0.0, 0.0
    module.decoder.eval()
    try:
        for batch in batches:
            if module.agree_to_stop():
                return None
            for tokens, targets, documents in module.micro_batches(batch):
                nats += float(module.loss_sum(tokens, targets, documents))
                count += float((targets != IGNORED).sum())
    finally:
        module.decoder.train()
    nats, count = ranks.total([nats, count], module.device)
    return nats / count
