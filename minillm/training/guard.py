"""Stops a run whose loss has become useless, before the bad update reaches the weights."""

from __future__ import annotations

import math

from minillm.errors import MinillmError

KEEP = 0.95
"""Share of the old mean in the new one: the mean looks back over about 20 updates."""


class TrainingDiverged(MinillmError):
    """The loss or the gradient is not finite, or the loss has jumped. Nothing was updated by that batch."""


class Guard:
    """Watches every update's loss. Its state is one number, saved with the run.

    `loss_spike` nats above the running mean stop the run (`trainer.loss_spike`); None stops only at NaN and infinity.
    All ranks see the same numbers, so all stop together.
    """

    def __init__(self, loss_spike: float | None) -> None:
        self.loss_spike = loss_spike
        self.mean: float | None = None

    def check(self, step: int, loss: float, grad_norm: float) -> None:
        """Call before the optimiser moves; `step` is the number this update will have."""
        if not math.isfinite(loss):
            raise TrainingDiverged(f"The loss became {loss} at step {step}. {_ADVICE}")
        if not math.isfinite(grad_norm):
            raise TrainingDiverged(
                f"The gradient's norm became {grad_norm} at step {step} (loss {loss:.3f}). {_ADVICE}"
            )
        if self.mean is not None and self.loss_spike is not None and loss > self.mean + self.loss_spike:
            raise TrainingDiverged(
                f"The loss jumped to {loss:.3f} at step {step}, more than trainer.loss_spike={self.loss_spike:g} nats "
                f"above its running mean of {self.mean:.3f}. {_ADVICE}"
            )
        self.mean = loss if self.mean is None else KEEP * self.mean + (1 - KEEP) * loss


_ADVICE = (
    "This update was not made, and the last checkpoint is untouched. Usual remedies: a lower optim.lr, a longer "
    "schedule.warmup_steps, trainer.precision=fp32, a smaller optim.grad_clip."
)
