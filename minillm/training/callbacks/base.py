"""`AfterUpdate`: a callback that acts after updates, and again at the start of a run stopped in the middle of that."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl

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
