"""Stopping and going on changes nothing: bit for bit on one CPU in fp32, wherever the cut falls."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

Train = Callable[..., dict[str, float]]
Points = Callable[[Path], list[dict[str, Any]]]


def last(run_dir: Path) -> dict[str, Any]:
    return torch.load(run_dir / "checkpoints" / "last.ckpt", weights_only=True)


def assert_same_run(timeless: Points, run_dir: Path, straight: Path) -> None:
    """Same losses, rates, norms and validation points at every step, same weights and moments at the last."""
    assert timeless(run_dir) == timeless(straight)
    ours, theirs = last(run_dir), last(straight)
    assert ours["step"] == theirs["step"]
    for name, weight in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], weight), name
    for name, moments in theirs["optimizer"].items():
        for kind, value in moments.items():
            assert torch.equal(ours["optimizer"][name][kind], value), (name, kind)
    assert torch.equal(ours["rng"]["torch"], theirs["rng"]["torch"])
    assert (run_dir / "samples.txt").read_text() == (straight / "samples.txt").read_text()


@pytest.fixture(scope="module")
def straight(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("straight")
    train(run_dir)
    return run_dir


@pytest.mark.bug("B047", "B049", "B052")
@pytest.mark.parametrize("workers", [0, 2], ids=lambda n: f"{n} workers")
def test_twenty_steps_are_seven_and_six_and_seven(
    train: Train, timeless: Points, straight: Path, tmp_path: Path, workers: int
) -> None:
    for stop_at in (7, 13, 20):
        resume_from = tmp_path / "checkpoints" / "last.ckpt" if stop_at > 7 else None
        metrics = train(
            tmp_path, f"trainer.stop_at_step={stop_at}", f"data.num_workers={workers}", resume_from=resume_from
        )
        assert metrics["step"] == stop_at
    assert_same_run(timeless, tmp_path, straight)
