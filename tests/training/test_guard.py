"""NaN and loss spikes stop a run before they reach the weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.training.guard import Guard, TrainingDiverged
from minillm.training.module import TrainingModule


@pytest.mark.parametrize("loss", [math.nan, math.inf], ids=["nan", "inf"])
def test_a_loss_that_is_no_number_stops_the_run(loss: float) -> None:
    with pytest.raises(TrainingDiverged, match=rf"loss became {loss} at step 7"):
        Guard(None).check(7, loss, 1.0)


def test_a_gradient_that_is_no_number_stops_the_run() -> None:
    with pytest.raises(TrainingDiverged, match="gradient's norm became nan at step 7"):
        Guard(None).check(7, 2.0, math.nan)


def test_a_jump_above_the_running_mean_stops_the_run() -> None:
    guard = Guard(loss_spike=3.0)
    for step in range(50):
        guard.check(step, 2.0 + 0.5 * (step % 2), 1.0)
    with pytest.raises(
        TrainingDiverged, match=r"loss jumped to 5\.400 at step 50, more than trainer.loss_spike=3 nats"
    ):
        guard.check(50, 5.4, 1.0)


def test_without_a_limit_a_jump_is_let_through() -> None:
    guard = Guard(loss_spike=None)
    guard.check(1, 2.0, 1.0)
    guard.check(2, 200.0, 1.0)


def test_a_falling_loss_never_stops_the_run() -> None:
    guard = Guard(loss_spike=0.5)
    for step in range(100):
        guard.check(step, 10.0 - 0.1 * step, 1.0)


@pytest.mark.parametrize("kind", ["nan", "spike"])
def test_the_run_stops_with_the_last_good_checkpoint_as_it_was(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    whole = TrainingModule.loss_sum

    def poisoned(module: TrainingModule, *batch: torch.Tensor) -> torch.Tensor:
        bad = math.nan if kind == "nan" else 10.0
        return whole(module, *batch) * (bad if module.step == 7 else 1.0)

    monkeypatch.setattr(TrainingModule, "loss_sum", poisoned)
    with pytest.raises(TrainingDiverged, match="at step 8"):
        train(tmp_path)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["last.ckpt", "step-5.ckpt"]
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(bool(weight.isfinite().all()) for weight in state["state_dict"].values())


def test_the_running_mean_goes_on_after_a_resume(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train(tmp_path, "trainer.stop_at_step=4")
    whole = TrainingModule.loss_sum
    monkeypatch.setattr(TrainingModule, "loss_sum", lambda module, *batch: whole(module, *batch) * 1.5)
    # A lost mean would be replaced by the first loss that is seen, above which that loss cannot be.
    with pytest.raises(TrainingDiverged, match="at step 5"):
        train(tmp_path, "trainer.loss_spike=1", resume_from=tmp_path / "checkpoints/last.ckpt")
