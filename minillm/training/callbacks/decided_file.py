"""decided.json: what this run's start decided for all of its parts: precision, compiled or not, attention backends."""

from __future__ import annotations

import json
from pathlib import Path

import lightning.pytorch as pl

from minillm.training import ranks
from minillm.training.module import TrainingModule
from minillm.training.run_folder import write_atomically


class DecidedFile(pl.Callback):
    """Writes the file and says the decisions, on rank 0, before the first update."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_fit_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        precision, compilation = pl_module.precision, pl_module.compilation
        if ranks.rank() == 0:
            write_atomically(self.path, json.dumps(pl_module.fixed["decided"], indent=1) + "\n")
            ranks.say(f"Arithmetic: {precision.name} ({precision.why}).")
            ranks.say(f"Blocks: {'compiled' if compilation.on else 'not compiled'} ({compilation.why}).")
