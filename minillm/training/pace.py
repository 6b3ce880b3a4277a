"""What updates cost so far, as running totals: speeds are differences of two of them.

pace = module.pace.since(earlier)
pace.tokens_per_second, pace.mfu(peak), pace.wait_share
"""

from __future__ import annotations

from typing import NamedTuple


class Pace(NamedTuple):
    """Totals of a part of a run. Validation, samples and checkpoints are in none of them."""

    updating: float = 0.0
    """Seconds in updates."""
    waiting: float = 0.0
    """Seconds between updates in which the next batch was waited for."""
    tokens: float = 0.0
    """Target tokens, over all ranks."""
    flops: float = 0.0
    """Of training, over all ranks, as minillm.cost counts them: windows and causality, every row one document."""

    def plus(self, other: Pace) -> Pace:
        return Pace(*(a + b for a, b in zip(self, other, strict=True)))

    def since(self, earlier: Pace) -> Pace:
        return Pace(*(a - b for a, b in zip(self, earlier, strict=True)))

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.updating

    @property
    def wait_share(self) -> float:
        """Of the time of updates and waits together: what a faster loader could save."""
        return self.waiting / (self.waiting + self.updating)

    def mfu(self, peak: float) -> float:
        """Model FLOPs utilisation: against `peak` FLOP/s of all devices together (minillm.training.peak)."""
        return self.flops / self.updating / peak
