"""`AfterUpdate`: a callback that acts after updates, and again at the start of a run stopped in the middle of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl

from minillm.errors import MinillmError
from minillm.training.module import TrainingModule


class AfterUpdate(pl.Callback):
    """Subclasses override `act`, which is called on every rank after every update."""

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        raise NotImplementedError

    def on_train_batch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any) -> None:
        assert isinstance(pl_module, TrainingModule)
        self.act(trainer, pl_module)

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        if pl_module.resumed_unfinished:
            self.act(trainer, pl_module)


def due(step: int, every: int | None) -> bool:
    """Whether something that happens `every` so many steps happens after update `step` (from 1)."""
    return every is not None and step % every == 0


def append(path: Path, text: str) -> None:
    """Add `text` to the end of a file of the run.

    Raises:
        MinillmError: the disk is full or the folder is gone. A resume cuts what was written after its checkpoint.
    """
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise MinillmError(
            f"{path} could not be written: {error.strerror or error}. The last checkpoint is untouched; make room and "
            "start the same command again to go on from there."
        ) from error
