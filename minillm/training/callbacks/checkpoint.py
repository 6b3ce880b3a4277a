"""Writes checkpoints, last of all that happens at a step, and ends a run that was asked to stop."""

from __future__ import annotations

from pathlib import Path

import lightning.pytorch as pl

from minillm.training import ranks
from minillm.training.callbacks.base import AfterUpdate, due
from minillm.training.checkpoint_io import write_checkpoint
from minillm.training.module import TrainingModule
from minillm.training.state import capture


class Checkpoints(AfterUpdate):
    """At every `checkpoint_every` steps, at `stop_at` (where this part of the run ends), and when a signal came."""

    def __init__(self, folder: Path, stop_at: int) -> None:
        self.folder = folder
        self.stop_at = stop_at

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        settings = module.cfg.trainer
        if module.step == 0:  # given weights, measured before the first update: their checkpoint is there already
            trainer.should_stop = bool(module.stopping)
            return
        if due(module.step, settings.checkpoint_every) or module.step >= self.stop_at or module.stopping:
            save(module, self.folder, settings.keep_checkpoints)
        if module.stopping:
            trainer.should_stop = True


def save(module: TrainingModule, folder: Path, keep: int | None) -> None:
    """Collect the state on all ranks, write it on the first; a failure there ends every rank."""
    state = capture(module)
    failure: Exception | None = None
    if ranks.rank() == 0:
        try:
            write_checkpoint(folder, state, keep)
        except Exception as error:  # raised below, once the other ranks know
            failure = error
    (failed,) = ranks.total([float(failure is not None)], module.device)
    if failure is not None:
        raise failure
    if failed:
        raise RuntimeError("The first rank could not write the checkpoint; its message says why.")
