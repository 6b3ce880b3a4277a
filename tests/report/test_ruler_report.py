"""What the report says of the suite `ruler`: each task under its length, means, what is missing and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm.evaluation.evaluate import Evaluation
from minillm.report import content, figures, ruler, tables, write_report
from minillm.report.blocks import Bullets, Heading, Table
from minillm.report.collect import collect, tidy_rows

Make = Callable[..., Evaluation]


def rows(form: str, scores: dict[str, tuple[float | None, ...]], effective: float | None) -> list[dict[str, Any]]:
    """Scores at 256 and 512 tokens; None is a task that did not fit."""
    out = []
    for at, length in enumerate((256, 512)):
        common = {"form": form, "length": length, "depth": None, "note": None, "n": 10}
        for task, values in scores.items():
            value = values[at]
            ends = {} if value is None else {"low": value - 0.1, "high": value + 0.1}
            note = "not measured: the shortest prompt takes 300 tokens" if value is None else None
            row = {**common, "metric": "score", "task": task, "value": value, "low": None, "high": None, "note": note}
            out.append({**row, **ends, "cases": [{"index": 0}]})
            if value is not None:
                out += [{**row, "depth": depth, "value": value * depth, "n": 2} for depth in (0.25, 0.75)]
        fit = [v[at] for v in scores.values() if v[at] is not None]
        mean = sum(v or 0 for v in fit) / len(fit)
        out.append({**common, "metric": "mean_score", "task": None, "value": mean, "low": 0.2, "high": 0.9, "tasks": 2})
    end = {"metric": "effective_length", "task": None, "form": form, "length": None, "depth": None, "n": 2}
    note = None if effective else "not measured: at 256 tokens it is no better than chance"
    return [*out, {**end, "value": effective, "low": None, "high": None, "note": note}]


def evaluated(make_evaluation: Make, arm: str, digest: str = "a", **how: Any) -> Evaluation:
    settings = {"forms": ["likelihood"], "lengths": [256, 512], "tasks": ["vt", "fwe"], "samples": 10}
    result = {"suite": "ruler", "settings": {**settings, "documents_digest": digest}, "seconds": 1.0}
    evaluation = make_evaluation(f"model={arm}", name=arm, suites=(), metrics=False)
    return dataclasses.replace(evaluation, results={"ruler": {**result, "rows": rows("likelihood", **how)}})


def test_tasks_means_and_the_effective_length_have_tables_and_what_is_missing_a_reason(make_evaluation: Make) -> None:
    subjects = collect(
        [
            evaluated(make_evaluation, "rope", scores={"vt": (None, 0.5), "fwe": (0.75, 0.25)}, effective=256.0),
            evaluated(make_evaluation, "nope", scores={"vt": (0.1, 0.1), "fwe": (0.1, 0.1)}, effective=None),
        ]
    )
    report = content.compose(subjects, {}, "python eval.py")
    at = report.blocks.index(Heading("RULER tasks"))
    about, summary, by_task = report.blocks[at + 1 : at + 4]
    assert isinstance(about, Bullets)
    assert "not comparable" in about.items[0]
    assert len(about.items) == 2
    assert isinstance(summary, Table)
    assert summary.header == ["run", "256", "512", "effective length"]
    assert summary.rows[0] == ["rope", "0.750 [0.200, 0.900] (2)", "0.375 [0.200, 0.900] (2)", "256"]
    assert summary.rows[1][-1] == "at 256 tokens it is no better than chance"
    assert isinstance(by_task, Table)
    assert ["rope", "vt", "not measured", "0.500 [0.400, 0.600]"] in by_task.rows
    limits = report.blocks[report.blocks.index(Heading("Limits")) + 1]
    assert isinstance(limits, Bullets)
    reason = "rope: ruler's vt was not measured at 256 tokens: the shortest prompt takes 300 tokens."
    assert reason in limits.items
    assert not any("cases" in row for row in tidy_rows(subjects))


def test_runs_that_were_asked_other_things_are_said_to_be(make_evaluation: Make) -> None:
    scores = {"vt": (0.5, 0.5), "fwe": (0.5, 0.5)}
    pair = [evaluated(make_evaluation, a, d, scores=scores, effective=512.0) for a, d in (("rope", "a"), ("nope", "b"))]
    about = ruler.section(collect(pair))[0]
    assert isinstance(about, Bullets)
    assert "asked other things" in about.items[-1]
    assert [row[-1] for row in ruler.summary(collect(pair), "likelihood").rows] == ["512 or more"] * 2
    assert ruler.section(collect([make_evaluation("model=rope", suites=())])) == []


def test_a_map_shows_the_score_of_all_needles_by_length_and_depth(make_evaluation: Make, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    scores = {"vt": (None, 0.4), "fwe": (0.8, 0.8)}
    subjects = collect([evaluated(make_evaluation, "rope", scores=scores, effective=512.0)])
    drawn = ruler.depths(subjects)
    written = {text.get_text() for text in drawn.axes[0].texts}
    assert written == {"20", "60", "15", "45"}, "0.8 alone at 256 tokens, 0.6 at 512, times the depth"
    assert "ruler_by_depth.png" in figures.draw(subjects, tmp_path)


def test_where_nothing_else_was_measured_the_summary_is_that_of_the_tasks(
    make_evaluation: Make, tmp_path: Path
) -> None:
    scores = {"vt": (0.5, 0.5), "fwe": (0.5, 0.5)}
    one = evaluated(make_evaluation, "rope", scores=scores, effective=512.0)
    assert tables.headline(collect([one])) is None
    lines = write_report([one], tmp_path, "python eval.py").summary.splitlines()
    assert lines[0].split() == ["run", "256", "512", "effective", "length"]
    assert len(lines) == 2
    assert lines[1].startswith("rope")
    assert lines[1].endswith("512 or more")
    assert "At a glance" not in (tmp_path / "report.md").read_text()
