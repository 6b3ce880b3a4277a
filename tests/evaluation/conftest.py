"""Stand-in models whose losses are known in closed form, and a small run folder with random weights."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import minillm

BOS = 0


class Blind:
    """Sees the current token only (a table of random logits): no context, no position, can change its losses."""

    def __init__(self, vocab_size: int = 11) -> None:
        self.table = 2 * torch.randn(vocab_size, vocab_size, generator=torch.Generator().manual_seed(7))

    def hidden(self, tokens: Tensor) -> Tensor:
        return self.table[tokens]

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def nll(self, document: np.ndarray) -> np.ndarray:
        """Of each prediction of a document, float64."""
        log_p = torch.log_softmax(self.table.double(), dim=-1).numpy()
        return -log_p[document[:-1], document[1:]]


class ByContext:
    """The loss of a token is a known function of how many tokens it can see, whatever they are."""

    @staticmethod
    def loss(context: float) -> float:
        return 1.0 + 1.0 / math.sqrt(context)

    def hidden(self, tokens: Tensor) -> Tensor:
        """Logits of two classes: p(any token but bos) = exp(-loss)."""
        losses = torch.tensor([self.loss(j + 1) for j in range(tokens.shape[1])])
        p = torch.exp(-losses)
        return torch.stack([torch.log1p(-p), torch.log(p)], dim=-1).expand(tokens.shape[0], -1, -1)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


class Recorder(Blind):
    """Blind, and keeps the ids of every window it was fed."""

    def __init__(self) -> None:
        super().__init__()
        self.fed: list[list[int]] = []

    def hidden(self, tokens: Tensor) -> Tensor:
        self.fed += tokens.tolist()
        return super().hidden(tokens)


@pytest.fixture
def blind() -> Blind:
    return Blind()


@pytest.fixture
def by_context() -> ByContext:
    return ByContext()


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make_documents() -> Callable[..., list[np.ndarray]]:
    def make(sizes: Sequence[int], vocab_size: int = 11) -> list[np.ndarray]:
        """Random ids above 0, each document with the start marker 0 in front; sizes count it."""
        draw = np.random.default_rng(0)
        return [np.concatenate([[BOS], draw.integers(1, vocab_size, n - 1)]).astype(np.int64) for n in sizes]

    return make


TINY = [
    "data=files",
    "size.hidden_size=16",
    "size.intermediate_size=32",
    "size.num_hidden_layers=4",
    "size.num_attention_heads=2",
    "size.num_key_value_heads=1",
    "size.head_dim=8",
    "size.seq_len=16",
    "size.window=2",
    "tokenizer.vocab_size=280",
    "data.held_out=3",
    "data.batch_size=4",
    "trainer.max_steps=10",
    "logger=none",
]


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Eight texts of a few hundred tokens, enough for 16 times a training length of 16."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = np.random.default_rng(1)
    words = ["the", "union", "of", "states", "shall", "and", "council", "people", "tariff", "river", "sea", "war"]
    for i in range(8):
        text = " ".join(draw.choice(words, size=420 + 20 * i))
        (folder / f"{i}.txt").write_text(text + ".")
    return folder


@pytest.fixture(scope="session")
def tiny_overrides(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Overrides of a run small enough to build in milliseconds, on the corpus above."""
    return [*TINY, f"data.path={corpus}", f"data.cache_dir={tmp_path_factory.mktemp('cache')}"]


@pytest.fixture
def make_run(tiny_overrides: list[str]) -> Callable[..., Path]:
    def make(folder: Path, *overrides: str, step: int = 10, weights_seed: int = 0) -> Path:
        """A run folder as training leaves it, with random weights."""
        import dataclasses
        import json

        from minillm.data import prepare
        from minillm.training.checkpoint_io import write_checkpoint
        from minillm.training.run_folder import RunFolder
        from minillm.training.state import fixed_facts

        cfg = minillm.compose([*tiny_overrides, *overrides], warn=False)
        prepared = prepare(cfg.data, cfg.tokenizer)
        cfg = dataclasses.replace(cfg, model=dataclasses.replace(cfg.model, vocab_size=prepared.tokenizer.vocab_size))
        model = minillm.build_model(cfg.model, seed=weights_seed)
        run = RunFolder(folder)
        folder.mkdir(parents=True)
        run.write(cfg, prepared.tokenizer)
        run.note_start(command="python train.py model=x", data=prepared.folder.name)
        decided = {"precision": "fp32", "backends": ["sdpa"] * 4, "device": "cpu", "torch": "2"}
        facts = fixed_facts(cfg, cfg.model.vocab_size, prepared.tokenizer.to_json(), decided, None)
        state = {"version": "0", "step": step, "state_dict": model.state_dict(), **facts}
        write_checkpoint(run.checkpoints, state, keep=None)
        points = [
            {"step": s, "tokens": 64 * s, "time": 0.5 * s, "train/loss": 6 - 0.1 * s, "val/loss": 6 - 0.1 * s}
            for s in range(1, step + 1)
        ]
        run.metrics.write_text("".join(json.dumps(p) + "\n" for p in points))
        return folder

    return make
