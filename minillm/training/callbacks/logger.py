"""Sends each point to the loggers of the run (wandb, TensorBoard, CSV), at the update count."""

from __future__ import annotations

import lightning.pytorch as pl

from minillm.training.callbacks.base import AfterUpdate
from minillm.training.callbacks.metrics_file import point_due
from minillm.training.module import TrainingModule


class ToLoggers(AfterUpdate):
    """What metrics.jsonl has, the loggers have; they exist on rank 0 only."""

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if module.unfinished or not point_due(module):
            return
        for logger in trainer.loggers:
            logger.log_metrics(module.point, step=module.step)
