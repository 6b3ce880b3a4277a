"""Held-out samples of a task: loss, share of right answer tokens, and of samples with all answers right.

Right is what greedy decoding would give: the argmax of the logits behind the true tokens so far. Up to the first wrong
token the two see the same text, so a sample is all right under one exactly where it is under the other.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minillm.training import ranks
from minillm.training.callbacks.validation import HeldOut, Validation
from minillm.training.module import IGNORED, TrainingModule


class TaskValidation(Validation):
    """`val/loss`, `val/token_accuracy` and `val/exact`; `final/...` at the end."""

    @torch.no_grad()
    def measure(self, module: TrainingModule, batches: HeldOut) -> dict[str, float] | None:
        nats = tokens = right = samples = exact = 0.0
        module.decoder.eval()
        try:
            for batch in batches:
                if module.agree_to_stop():
                    return None
                for inputs, targets, _ in module.micro_batches(batch):
                    with module.precision.autocast():
                        logits = module.decoder(inputs)
                    asked = targets != IGNORED
                    hit = (logits.argmax(dim=-1) == targets) & asked
                    flat, want = logits.flatten(0, 1).float(), targets.flatten()
                    nats += float(F.cross_entropy(flat, want, ignore_index=IGNORED, reduction="sum"))
                    tokens += float(asked.sum())
                    right += float(hit.sum())
                    samples += float(asked.any(dim=1).sum())
                    exact += float(((hit == asked).all(dim=1) & asked.any(dim=1)).sum())
        finally:
            module.decoder.train()
        nats, tokens, right, samples, exact = ranks.total([nats, tokens, right, samples, exact], module.device)
        return {"loss": nats / tokens, "token_accuracy": right / tokens, "exact": exact / samples}
