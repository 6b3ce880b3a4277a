"""Learning rate as a pure function of the update: nothing to save, nothing to restore.

`step` counts finished updates, so update number `step` (from 0) is made with `learning_rate(step, ...)`. Warm-up is
``(step + 1) / warmup_steps``: the first update already moves, and the peak is reached at update `warmup_steps`.
After it the rate never rises::

    wsd       stays at the peak, then falls linearly over the last `decay_fraction` of max_steps
    cosine    falls along half a cosine from the end of warm-up to max_steps
    constant  stays at the peak

The floor is `min_lr_ratio * lr`. A longer `max_steps` is another schedule: a run resumed with one (`resume=force`)
takes the new curve at the step where it stands.
"""

from __future__ import annotations

import math

from minillm.config.schema import ScheduleConfig


def learning_rate(step: int, peak: float, schedule: ScheduleConfig, max_steps: int) -> float:
    """The rate of update `step` (from 0), between ``min_lr_ratio * peak`` and `peak` once warm-up is over."""
    return peak * factor(step, schedule, max_steps)


def factor(step: int, schedule: ScheduleConfig, max_steps: int) -> float:
    """`learning_rate` with a peak of 1."""
    if step < schedule.warmup_steps:
        return (step + 1) / schedule.warmup_steps
    if schedule.name == "constant":
        return 1.0
    start = schedule.warmup_steps
    if schedule.name == "wsd":
        start = max(start, max_steps - round(schedule.decay_fraction * max_steps))
    # A run of warm-up only has no decay steps; past the horizon the rate stays at the floor.
    progress = min(max(step - start, 0) / max(max_steps - start, 1), 1.0)
    fallen = progress if schedule.name == "wsd" else 0.5 * (1 - math.cos(math.pi * progress))
    return 1.0 - (1.0 - schedule.min_lr_ratio) * fallen
