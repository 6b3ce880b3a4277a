"""The files with which a run begins from given weights, and the two things of it that every process asks.

The first process lays the weights down as `checkpoints/step-0.ckpt`, from which all processes then go on as from any
checkpoint: so the run needs the source no more, whatever the strategy, and its first point measures the weights as
they came. `init_from.json` beside config.yaml lists what became of each tensor.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from minillm.config.schema import Config, ModelConfig
from minillm.data.tokenizer import Tokenizer
from minillm.training.checkpoint_io import write_checkpoint
from minillm.training.init_from import Start
from minillm.training.run_folder import RunFolder, write_atomically
from minillm.training.state import beginning


def lay_down(folder: RunFolder, cfg: Config, start: Start, tokenizer: Tokenizer) -> Path:
    """Write init_from.json and step-0.ckpt. Returns the checkpoint's path."""
    write_atomically(folder.init_from, json.dumps(start.to_dict(), indent=1) + "\n")
    weights = start.transfer.weights(start.source.weights, cfg.model, cfg.seed)
    state = beginning(cfg, weights, tokenizer.to_json())
    return write_checkpoint(folder.checkpoints, state, keep=None)


def own_tokenizer(cfg: Config, run_dir: Path) -> Tokenizer | None:
    """The tokenizer that came with the weights, from the run's folder; None where the configuration says another."""
    return Tokenizer.load(run_dir / "tokenizer.json") if cfg.tokenizer.source == "init_from" else None


def real_model(cfg: Config, tokenizer: Tokenizer) -> ModelConfig:
    """The model with as many embedding rows as the tokenizer has ids; given weights bring their own number of rows."""
    if cfg.init_from is not None:
        return cfg.model
    return dataclasses.replace(cfg.model, vocab_size=tokenizer.vocab_size)
