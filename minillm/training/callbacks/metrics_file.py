"""metrics.jsonl: one line for each step at which something was measured, each step once, complete without any logger.

A line is a JSON object: `step` (updates done), `tokens` (target tokens trained on), `time` (seconds of this run over
all its parts), `train/...`, and where they were measured `val/...`, `length/...` and, at the end of a run, `final/...`.
Losses are in nats per token.
"""

from __future__ import annotations

import json
from pathlib import Path

import lightning.pytorch as pl

from minillm.training import ranks
from minillm.training.callbacks.base import AfterUpdate, append, due
from minillm.training.module import TrainingModule
from minillm.training.pace import Pace
from minillm.training.run_folder import write_atomically


class MetricsFile(AfterUpdate):
    """Appends `module.point` where it is due, on rank 0. It also completes the point with time and speed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._before = Pace()

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if module.unfinished or not point_due(module):
            return
        module.point["time"] = module.seconds()
        pace, self._before = module.pace.since(self._before), module.pace
        if pace.updating:
            module.point["train/tokens_per_second"] = pace.tokens_per_second
            module.point["train/mfu"] = pace.mfu(module.peak)
            module.point["train/data_wait"] = pace.wait_share
        if ranks.rank() == 0:
            append(self.path, json.dumps(module.point) + "\n")


def point_due(module: TrainingModule) -> bool:
    """Whether `module.point` is written and logged: at `log_every`, where validation was made, and at the end."""
    validated = any(name.startswith(("val/", "final/", "length/")) for name in module.point)
    return validated or due(module.step, module.cfg.trainer.log_every) or module.step >= module.cfg.trainer.max_steps


def keep_up_to(path: Path, step: int) -> None:
    """Drop what was written after `step`, and a line that a kill cut short; the file changes at once or not at all."""
    if not path.exists():
        return
    kept = []
    for line in path.read_text().splitlines():
        try:
            at = json.loads(line)["step"]
        except ValueError:
            continue
        if at <= step:
            kept.append(line)
    write_atomically(path, "".join(f"{line}\n" for line in kept))
