"""Held-out loss: token-weighted over batches and ranks, in nats per token and in bits per byte of text."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Protocol

import lightning.pytorch as pl
import torch
from torch import Tensor

from minillm.training import ranks
from minillm.training.callbacks.base import AfterUpdate, due
from minillm.training.module import IGNORED, TrainingModule


class HeldOut(Protocol):
    """Batches that can be read again and again, equally many on every rank."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[dict[str, Tensor]]: ...


class Validation(AfterUpdate):
    """`val/...` at every `val_every` steps over `batches`, and `final/...` once, at max_steps, over `all_batches`."""

    def __init__(self, batches: HeldOut, all_batches: HeldOut, tokens_per_byte: float | None) -> None:
        """`tokens_per_byte` of the whole held-out text turns nats per token into bits per byte; None for no text."""
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
                measured = {k.removeprefix("val/"): v for k, v in module.point.items() if k.startswith("val/")}
                module.point.update({f"final/{name}": value for name, value in measured.items()})
            else:
                self._measure(module, "final", self.all_batches)

    def _measure(self, module: TrainingModule, prefix: str, batches: HeldOut) -> None:
        measured = self.measure(module, batches)
        if measured is None:
            module.unfinished = True
            return
        module.point.update({f"{prefix}/{name}": value for name, value in measured.items()})

    def measure(self, module: TrainingModule, batches: HeldOut) -> dict[str, float] | None:
        """What is logged under `val/` and `final/`, None if a signal to stop came in between."""
        loss = held_out_loss(module, batches)
        if loss is None:
            return None
        if self.tokens_per_byte is None:
            return {"loss": loss}
        return {"loss": loss, "bits_per_byte": loss / math.log(2) * self.tokens_per_byte}


@torch.no_grad()
def held_out_loss(module: TrainingModule, batches: HeldOut) -> float | None:
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
