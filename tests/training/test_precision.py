"""How a run's arithmetic is decided, and that it is kept."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.errors import ConfigError, MinillmError
from minillm.training import precision


@pytest.mark.parametrize(("unit", "decided"), [("AMX", "bf16"), (None, "fp32")], ids=["AMX", "no unit"])
def test_auto_asks_the_processor(monkeypatch: pytest.MonkeyPatch, unit: str | None, decided: str) -> None:
    monkeypatch.setattr(precision, "bf16_unit", lambda device_type: unit)
    assert precision.decide("auto", "cpu").name == decided


@pytest.mark.parametrize("asked", ["fp32", "bf16"])
def test_what_is_asked_for_is_taken_on_any_processor(monkeypatch: pytest.MonkeyPatch, asked: str) -> None:
    monkeypatch.setattr(precision, "bf16_unit", lambda device_type: "AMX" if asked == "fp32" else None)
    assert precision.decide(asked, "cpu").name == asked


@pytest.mark.parametrize("before", ["fp32", "bf16"])
def test_what_the_run_began_with_is_kept_on_another_processor(monkeypatch: pytest.MonkeyPatch, before: str) -> None:
    monkeypatch.setattr(precision, "bf16_unit", lambda device_type: "AMX" if before == "fp32" else None)
    assert precision.decide("auto", "cpu", before).name == before


def test_an_unknown_precision_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer.precision: 'fp16' .* auto, fp32, bf16"):
        precision.decide("fp16", "cpu")


def test_bf16_runs_matrix_products_in_bf16_and_leaves_weights_alone() -> None:
    linear = torch.nn.Linear(4, 4)
    with precision.decide("bf16", "cpu").autocast():
        assert linear(torch.ones(1, 4)).dtype == torch.bfloat16
    with precision.decide("fp32", "cpu").autocast():
        assert linear(torch.ones(1, 4)).dtype == torch.float32
    assert linear.weight.dtype == torch.float32


@pytest.mark.bug("B116")
def test_a_bf16_run_logs_losses_in_full_resolution(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path
) -> None:
    train(tmp_path, "trainer.precision=bf16", "trainer.max_steps=5")
    losses = [point["train/loss"] for point in points(tmp_path)] + [points(tmp_path)[-1]["val/loss"]]
    assert not any((loss * 16).is_integer() for loss in losses)
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert {weight.dtype for weight in state["state_dict"].values()} == {torch.float32}


def test_the_decision_is_recorded_and_outlives_a_change_of_processor(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(precision, "bf16_unit", lambda device_type: "AMX")
    train(tmp_path, "trainer.precision=auto", "trainer.stop_at_step=2")
    monkeypatch.setattr(precision, "bf16_unit", lambda device_type: None)
    train(tmp_path, "trainer.precision=auto", "trainer.stop_at_step=3", resume_from=tmp_path / "checkpoints/last.ckpt")
    assert json.loads((tmp_path / "decided.json").read_text())["precision"] == "bf16"
    state = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert state["step"] == 3
    assert state["decided"]["precision"] == "bf16"
    assert len(state["decided"]["backends"]) == 4


def test_the_start_says_which_attention_backends_the_layers_use(
    train: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, "trainer.stop_at_step=1", "model.backend=sdpa")
    assert "Attention by layers: sdpa (4)." in capsys.readouterr().out


@pytest.mark.bug("B023")
@pytest.mark.parametrize("backend", ["flex", "varlen"])
def test_a_backend_that_this_machine_lacks_is_refused_before_the_first_step(
    backend: str, train: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(MinillmError, match=rf"backend '{backend}' cannot compute layer 0 .* here: .*'sdpa' can"):
        train(tmp_path, "model=swa_only", f"model.backend={backend}")


def test_a_run_that_changed_its_machine_says_so(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    train(tmp_path, "trainer.stop_at_step=1")
    first = torch.__version__
    for stop_at, version in ((2, "99.1"), (3, "99.1")):
        monkeypatch.setattr(torch, "__version__", version)
        train(tmp_path, f"trainer.stop_at_step={stop_at}", resume_from=tmp_path / "checkpoints/last.ckpt")
    decided = json.loads((tmp_path / "decided.json").read_text())
    assert decided["torch"] == f"{first}, then 99.1"
    assert decided["device"] == "cpu"
