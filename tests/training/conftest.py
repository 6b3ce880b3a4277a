"""A run small enough to be repeated dozens of times: 4 layers of width 16, sequences of 32 tokens, a corpus of words.

tiny("trainer.max_steps=6")          a Config
train(tmp_path / "run", "seed=2")    trains it in this process and returns what `train_rank` returns
points(run_dir)                      the lines of metrics.jsonl; timeless(run_dir) without times
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm.config.compose import compose
from minillm.config.schema import Config

_TEXT = "the of and to in a is that it was for on as with his he be at by i this had not are but from or have"
WORDS = _TEXT.split()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A jsonl of 40 documents: 97 training windows, so that a pass ends in the 13th update, and 13 held out."""
    generator = random.Random(0)
    folder = tmp_path_factory.mktemp("corpus")
    lines = [json.dumps({"text": " ".join(generator.choices(WORDS, k=generator.randint(20, 120)))}) for _ in range(40)]
    (folder / "words.jsonl").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="session")
def overrides(corpus: Path) -> list[str]:
    """Command-line overrides of the tiny run, fp32 and without loggers."""
    return [
        "model=rnope_swa",
        "size=micro",
        "size.hidden_size=16",
        "size.intermediate_size=32",
        "size.num_hidden_layers=4",
        "size.num_attention_heads=2",
        "size.num_key_value_heads=1",
        "size.head_dim=8",
        "size.seq_len=32",
        "size.window=4",
        "data=files",
        f"data.path={corpus}",
        f"data.cache_dir={corpus}-cache",
        "data.held_out=4",
        "data.batch_size=8",
        "tokenizer.vocab_size=300",
        "optim.lr=0.01",
        "schedule.warmup_steps=3",
        "logger=none",
        "trainer.max_steps=20",
        "trainer.val_every=5",
        "trainer.checkpoint_every=5",
        "trainer.sample_every=10",
        "trainer.sample_tokens=4",
        "trainer.precision=fp32",
        "trainer.compile=false",
        "trainer.accelerator=cpu",
        "trainer.progress_bar=false",
    ]


@pytest.fixture(scope="session")
def tiny(overrides: list[str]) -> Callable[..., Config]:
    return lambda *more: compose([*overrides, *more], warn=False)


@pytest.fixture(scope="session")
def train(tiny: Callable[..., Config]) -> Callable[..., dict[str, float]]:
    """Train the tiny run in this process, going on from `resume_from`'s checkpoint where given."""
    from minillm.training.worker import train_rank

    def run(run_dir: Path, *more: str, resume_from: Path | None = None) -> dict[str, float]:
        return train_rank(tiny(*more), run_dir, resume_from)

    return run


def _points(run_dir: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]


def _timeless(run_dir: Path) -> list[dict[str, Any]]:
    clock = ("time", "train/tokens_per_second", "train/mfu", "train/data_wait")
    return [{k: v for k, v in point.items() if k not in clock} for point in _points(run_dir)]


@pytest.fixture(scope="session")
def points() -> Callable[[Path], list[dict[str, Any]]]:
    """The lines of a run's metrics.jsonl."""
    return _points


@pytest.fixture(scope="session")
def timeless() -> Callable[[Path], list[dict[str, Any]]]:
    """The same without what depends on the clock: two runs of equal settings agree on all the rest."""
    return _timeless
