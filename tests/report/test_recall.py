"""What the report says of task suites: numbers with intervals, nothing beyond 1x of a model that has not learned."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm.evaluation.evaluate import Evaluation
from minillm.report import content, figures, recall, tables
from minillm.report.blocks import Bullets, Heading, Table
from minillm.report.collect import collect

Make = Callable[..., Evaluation]
ARM = "data=needle", "size.seq_len=96"


def result(falling: float, first: float = 1.0, far: int | None = None) -> dict[str, Any]:
    """A result that loses `falling` with each doubling of the length."""
    rows = []
    for power, multiple in enumerate((1, 2, 4)):
        value = first - falling * power
        common = {
            "task": "needle", "length": 96 * multiple, "multiple": multiple, "chance": 0.25, "depth": None,
            "reach": None, "n": 64, "low": value - 0.05, "high": min(1.0, value + 0.05), "value": value, "note": None,
        }  # fmt: skip
        for metric in ("token_accuracy", "exact"):
            rows.append({**common, "metric": metric})
            rows += [{**common, "metric": metric, "depth": depth} for depth in (0.25, 0.75)]
            if far is not None:
                for name, share in (("within", 1.0), ("beyond", 0.0)):
                    rows.append({**common, "metric": metric, "reach": name, "reach_tokens": far, "value": share})
    return {"suite": "needle", "settings": {"task": {"name": "needle"}, "samples": 8}, "rows": rows, "seconds": 1.0}


@pytest.fixture
def measured(make_evaluation: Make) -> Make:
    def make(model: str, skipped: dict[str, str] | None = None, **how: Any) -> Evaluation:
        evaluation = make_evaluation(f"model={model}", *ARM, name=model, suites=())
        return dataclasses.replace(evaluation, results={"needle": result(**how)}, skipped=skipped or {})

    return make


def cells(table: Table | None) -> dict[str, dict[str, str]]:
    assert table is not None
    return {row[0]: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}


def test_accuracy_stands_under_its_length_with_its_interval(measured: Make) -> None:
    subjects = collect([measured("rope", falling=0.3), measured("nope", falling=0.0)])
    found = cells(recall.by_length(subjects, "token_accuracy"))
    assert found["rope"] == {
        "task": "needle",
        "1x": "1.000 [0.950, 1.000]",
        "2x": "0.700 [0.650, 0.750]",
        "4x": "0.400 [0.350, 0.450]",
    }
    assert found["nope"]["4x"] == "1.000 [0.950, 1.000]"
    assert cells(tables.headline(subjects))["rope"]["recall at 4x"] == "0.400 [0.350, 0.450]"


def test_an_undertrained_run_has_its_number_at_1x_and_the_word_beyond(measured: Make) -> None:
    subjects = collect([measured("rope", falling=0.3), measured("nope", falling=0.0, first=0.97)])
    found = cells(recall.by_length(subjects, "exact"))["nope"]
    assert found == {"task": "needle", "1x": "0.970 [0.920, 1.000]", "2x": "undertrained", "4x": "undertrained"}
    assert [row["multiple"] for row in recall.shown(subjects[1], "exact")] == [1], "one point in the figure"
    assert cells(tables.headline(subjects))["nope"]["recall at 4x"] == "undertrained"


def test_needles_beyond_the_windows_have_a_table_of_their_own(measured: Make) -> None:
    assert recall.beyond_reach(collect([measured("rope", falling=0.0)])) is None
    table = recall.beyond_reach(collect([measured("swa_only", falling=0.0, far=12)]))
    assert table is not None
    assert table.rows[0] == ["swa_only", "12", "1x", "1.000 [0.950, 1.000]", "0.000 [0.950, 1.000]", "64"]


def test_the_figures_are_drawn_of_runs_that_have_a_task(measured: Make, make_evaluation: Make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    subjects = collect([measured("rope", falling=0.3), measured("nope", falling=0.0, first=0.5)])
    assert {"recall.png", "recall_by_depth.png"} <= set(figures.draw(subjects, tmp_path))
    text = collect([make_evaluation("model=rope", name="text")])
    assert not {"recall.png", "recall_by_depth.png"} & set(figures.draw(text, tmp_path))


def test_a_suite_that_was_left_out_is_named_with_the_reason(measured: Make) -> None:
    subjects = collect([measured("rope", falling=0.0, skipped={"copy": "it was trained on the task needle."})])
    blocks = content.compose(subjects, {}, "python eval.py").blocks
    assert "Recall past the training length" in [b.text for b in blocks if isinstance(b, Heading)]
    limits = [item for block in blocks if isinstance(block, Bullets) for item in block.items]
    assert "rope: no copy, as it was trained on the task needle." in limits
