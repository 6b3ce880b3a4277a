"""The learning rate of every update."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.config.schema import ScheduleConfig
from minillm.training.schedule import factor, learning_rate


def rates(schedule: ScheduleConfig, total: int) -> list[float]:
    return [learning_rate(step, 1.0, schedule, total) for step in range(total)]


@pytest.mark.bug("B053")
def test_cosine_has_the_published_values() -> None:
    cosine = ScheduleConfig("cosine", warmup_steps=2, min_lr_ratio=0.1)
    assert rates(cosine, 6) == pytest.approx([0.5, 1, 1, 0.8682, 0.55, 0.2318], abs=5e-5)


def test_wsd_stays_at_the_peak_and_falls_linearly_over_its_last_share() -> None:
    wsd = ScheduleConfig("wsd", warmup_steps=2, decay_fraction=0.4, min_lr_ratio=0.0)
    assert rates(wsd, 10) == pytest.approx([0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_constant_stays_at_the_peak() -> None:
    assert rates(ScheduleConfig("constant", warmup_steps=4), 6) == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1])


@pytest.mark.bug("B053")
@pytest.mark.parametrize("warmup", [0, 1, 6], ids=["no warm-up", "one step", "nothing but warm-up"])
@pytest.mark.parametrize("name", ["wsd", "cosine", "constant"])
def test_the_edges_have_a_rate(name: Any, warmup: int) -> None:
    all_rates = rates(ScheduleConfig(name, warmup_steps=warmup, min_lr_ratio=0.1), 6)
    assert all_rates[0] > 0
    assert max(all_rates) == 1


@given(
    name=st.sampled_from(["wsd", "cosine", "constant"]),
    warmup=st.integers(0, 30),
    total=st.integers(1, 60),
    share=st.floats(0, 1),
    floor=st.floats(0, 1),
)
def test_after_the_peak_it_never_rises_nor_leaves_its_bounds(
    name: Any, warmup: int, total: int, share: float, floor: float
) -> None:
    schedule = ScheduleConfig(name, warmup, share, floor)
    # Beyond the horizon too: a run may be resumed at its very end.
    after = [factor(step, schedule, total) for step in range(warmup, total + 5)]
    assert all(later <= earlier + 1e-12 for earlier, later in itertools.pairwise(after))
    assert all(floor - 1e-12 <= value <= 1 for value in after)
    assert factor(0, schedule, total) > 0 or floor == 0


@pytest.mark.bug("B051")
def test_accumulation_does_not_hurry_the_schedule(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path
) -> None:
    plan = ("schedule=cosine", "schedule.warmup_steps=5", "trainer.max_steps=10", "optim.lr=0.01")
    train(tmp_path, *plan, "trainer.accumulate=4")
    cosine = ScheduleConfig("cosine", warmup_steps=5, min_lr_ratio=0.1)
    logged = [point["train/lr"] for point in points(tmp_path)]
    assert len(logged) == 10
    assert logged[:5] == pytest.approx([0.002, 0.004, 0.006, 0.008, 0.01])
    assert max(logged) == logged[4] == logged[5]
    assert logged == pytest.approx([0.01 * factor(step, cosine, 10) for step in range(10)])
