"""When a run compiles its blocks, that it says so, keeps to it, and what is measured of its speed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.errors import MinillmError
from minillm.model import compiled
from minillm.training import compilation, peak
from minillm.training.compilation import decide, estimated_seconds
from minillm.training.pace import Pace
from minillm.training.peak import matmul_peak


@pytest.fixture
def able(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that can compile."""
    monkeypatch.setattr(compilation, "missing_compiler", lambda device_type: None)


@pytest.fixture
def graphs_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are called through what stands for compiled pieces, without the minutes that code takes to be made."""

    def stand_in(function: Callable[..., Any], **_: Any) -> Callable[..., Any]:
        return function

    monkeypatch.setattr(compiled.torch, "compile", stand_in)


@pytest.mark.parametrize(("minutes", "on"), [(1, False), (10, False), (60, True), (6000, True)])
def test_auto_compiles_where_the_run_is_long_enough_to_pay_for_it(able: None, minutes: float, on: bool) -> None:
    decision = decide("auto", "cpu", 60 * minutes)
    assert decision.on is on
    assert f"of about {minutes:.1f} minutes it would save" in decision.why


def test_a_machine_without_a_compiler_trains_without_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compilation.shutil, "which", lambda name: None)
    decision = decide("auto", "cpu", 1e6)
    assert not decision.on
    assert "C++ compiler" in decision.why
    with pytest.raises(MinillmError, match=r"trainer.compile=true: torch.compile needs a C\+\+ compiler"):
        decide(True, "cpu", 1e6)
    with pytest.raises(MinillmError, match="this run began with compiled blocks"):
        decide("auto", "cpu", 1e6, before=True)


@pytest.mark.parametrize("before", [True, False])
def test_what_the_run_began_with_is_kept_however_much_is_left(able: None, before: bool) -> None:
    assert decide("auto", "cpu", 1.0 if before else 1e6, before).on is before


def test_minutes_are_those_of_the_flops_at_a_share_of_the_peak() -> None:
    assert estimated_seconds(4e12, 1e11, "cpu") == pytest.approx(100.0)


def test_a_run_records_the_decision_and_goes_on_with_it(
    train: Callable[..., Any], able: None, graphs_alone: None, tmp_path: Path
) -> None:
    train(tmp_path, "trainer.compile=true", "trainer.stop_at_step=2")
    decided = json.loads((tmp_path / "decided.json").read_text())
    assert (decided["compile"], decided["compile_reason"]) == (True, "asked for")
    train(tmp_path, "trainer.compile=auto", "trainer.stop_at_step=3", resume_from=tmp_path / "checkpoints/last.ckpt")
    decided = json.loads((tmp_path / "decided.json").read_text())
    assert (decided["compile"], decided["compile_reason"]) == (True, "decided when the run began")


def test_the_pieces_give_the_losses_of_whole_blocks(
    train: Callable[..., Any], timeless: Callable[[Path], Any], able: None, graphs_alone: None, tmp_path: Path
) -> None:
    for name in ("false", "true"):
        train(tmp_path / name, f"trainer.compile={name}", "trainer.stop_at_step=4")
    assert timeless(tmp_path / "true") == timeless(tmp_path / "false")


def test_speeds_are_differences_of_totals() -> None:
    before = Pace(updating=2.0, waiting=1.0, tokens=100, flops=1e9)
    pace = Pace(updating=6.0, waiting=2.0, tokens=900, flops=9e9).since(before)
    assert pace.tokens_per_second == 200
    assert pace.mfu(peak=8e9) == pytest.approx(0.25)
    assert pace.wait_share == pytest.approx(0.2)


def test_the_peak_is_that_of_the_quickest_product(monkeypatch: pytest.MonkeyPatch) -> None:
    # The start; then, for each product: enough time left? it begins, it ends.
    times = iter([0.0, 0.0, 0.0, 0.5, 0.6, 1.0, 1.2, 2.0])
    monkeypatch.setattr(peak.time, "perf_counter", lambda: next(times))
    monkeypatch.setitem(peak.SIZES, "cpu", 10)
    monkeypatch.setattr(peak, "SECONDS", 1.5)
    assert matmul_peak("cpu", torch.float32) == pytest.approx(2 * 10**3 / 0.2)


def test_a_run_logs_its_share_of_the_peak_and_of_waiting(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path
) -> None:
    train(tmp_path, "trainer.stop_at_step=3")
    for point in points(tmp_path):
        assert 0 < point["train/mfu"] < 1
        assert 0 <= point["train/data_wait"] < 1
