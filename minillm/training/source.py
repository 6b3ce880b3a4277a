"""`Source`: weights to begin a run with, from a run folder, a checkpoint file or a Hugging Face folder.

source = open_source("outputs/rope-micro-embedded-s1-3f9c2a1b")
source.weights, source.model, source.tokenizer, source.fingerprint
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from minillm.checkpoint import checkpoint_file
from minillm.config.parse import parse_config
from minillm.config.schema import ModelConfig
from minillm.data.tokenizer import Tokenizer
from minillm.errors import MinillmError
from minillm.evaluation.store import weights_digest
from minillm.training.checkpoint_io import read_checkpoint


@dataclass(frozen=True)
class Source:
    """A model that was trained before."""

    path: str
    """As the user gave it."""
    file: Path
    """The checkpoint file, or the Hugging Face folder."""
    step: int | None
    """Updates that it had, None where it does not say."""
    model: ModelConfig
    weights: dict[str, Tensor]
    """By this project's parameter names, on the CPU. Of a checkpoint they stay on the disk until they are used."""
    tokenizer: Tokenizer | None
    """None for a Hugging Face folder without tokenizer.json."""
    tokenizer_text: str | None
    """The tokenizer.json as it lies there."""

    @cached_property
    def fingerprint(self) -> str:
        """What shapes a run that begins here: names and values of the weights, and the tokenizer. No path, no date."""
        together = weights_digest(self.weights) + (self.tokenizer_text or "")
        return f"sha256-{hashlib.sha256(together.encode()).hexdigest()[:16]}"

    def describe(self) -> str:
        """Where it is and how far it was trained."""
        return f"{self.path} ({'' if self.step is None else f'step {self.step}, '}{self.fingerprint})"

    def facts(self) -> dict[str, Any]:
        """Plain values for init_from.json."""
        return {
            "path": self.path,
            "file": str(self.file),
            "step": self.step,
            "fingerprint": self.fingerprint,
            "tokenizer": None if self.tokenizer is None else tokenizer_fingerprint(self.tokenizer),
        }


def open_source(path: str, bos_token: str | None = None) -> Source:
    """Read what lies at `path`.

    Args:
        path: a run folder (its newest readable checkpoint), a checkpoint file, or a Hugging Face folder.
        bos_token: the marker where a Hugging Face folder's tokenizer does not say which it is.

    Raises:
        MinillmError: nothing is there, it is none of the three, or it is damaged.
    """
    place = Path(path).expanduser()
    if place.is_dir() and (place / "config.json").is_file():
        return _hugging_face(path, place, bos_token)
    if place.is_dir() and not (place / "config.yaml").is_file() and not (place / "checkpoints").is_dir():
        raise MinillmError(
            f"init_from: {path} is neither a run folder (config.yaml and checkpoints/) nor a Hugging Face folder "
            "(config.json and safetensors)."
        )
    if not place.exists():
        raise MinillmError(
            f"init_from: there is no {path}. Allowed: a run folder, a checkpoint file, a Hugging Face folder."
        )
    file = checkpoint_file(place)
    state = read_checkpoint(file, lazily=True)
    cfg = parse_config(state["config"])
    text = state["tokenizer"]
    tokenizer = Tokenizer.from_json(text, cfg.tokenizer.bos_token, f"The tokenizer in {file}")
    return Source(path, file, int(state["step"]), cfg.model, state["state_dict"], tokenizer, text)


def _hugging_face(path: str, folder: Path, bos_token: str | None) -> Source:
    from minillm.hub import from_transformers, load_tokenizer

    decoder = from_transformers(str(folder))
    weights = {name: weight.detach() for name, weight in decoder.state_dict().items()}
    tokenizer = text = None
    if (folder / "tokenizer.json").is_file():
        file = folder / "tokenizer.json"
        tokenizer = load_tokenizer(folder) if bos_token is None else Tokenizer.load(file, bos_token)
        text = file.read_text(encoding="utf-8")
    return Source(path, folder, None, decoder.config, weights, tokenizer, text)


def tokenizer_fingerprint(tokenizer: Tokenizer) -> str:
    """Sixteen hex digits over the tokenizer's content."""
    return hashlib.sha256(tokenizer.to_json().encode()).hexdigest()[:16]
