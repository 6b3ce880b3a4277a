"""What the report says of the suite `harness`: metrics under their length, what is missing and why."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from minillm.evaluation.evaluate import Evaluation
from minillm.report import content, harness
from minillm.report.blocks import Bullets, Heading, Table
from minillm.report.collect import collect

Make = Callable[..., Evaluation]


def row(task: str, metric: str, length: int | None, value: float | None, note: str | None = None) -> dict[str, Any]:
    ends = {"low": None, "high": None} if value is None else {"low": value - 0.1, "high": value + 0.1}
    return {
        "metric": metric,
        "task": task,
        "length": length,
        "depth": None,
        "value": value,
        "n": 20,
        "note": note,
        **ends,
    }


ROWS = [
    row("minillm_vt_likelihood", "acc", 512, 0.5),
    row("minillm_vt_likelihood", "acc", 1024, 0.25),
    row("minillm_cwe_likelihood", "score", 512, None, "not measured: the shortest prompt takes 900 tokens"),
    row("hellaswag", "acc_norm", None, 0.375),
    row("arc_easy", "score", None, None, "not cached: Couldn't reach it"),
    {**row("gsm8k", "exact_match", None, 0.125), "filter": "strict-match"},
]


def evaluated(make_evaluation: Make, arm: str, limit: int = 20) -> Evaluation:
    settings = {"lm_eval": "0.4.13", "limit": limit, "lengths": [512, 1024], "tasks": []}
    evaluation = make_evaluation(f"model={arm}", name=arm, suites=(), metrics=False)
    result = {"suite": "harness", "settings": settings, "rows": ROWS, "seconds": 1.0}
    return dataclasses.replace(evaluation, results={"harness": result})


def test_each_metric_has_a_line_and_what_is_missing_its_reason(make_evaluation: Make) -> None:
    subjects = collect([evaluated(make_evaluation, "rope"), evaluated(make_evaluation, "nope", limit=5)])
    report = content.compose(subjects, {}, "python eval.py")
    at = report.blocks.index(Heading("lm-evaluation-harness"))
    about, table = report.blocks[at + 1 : at + 3]
    assert isinstance(about, Bullets)
    assert "asked other things" in about.items[-1]
    assert isinstance(table, Table)
    assert table.header == ["run", "task", "metric", "512", "1024", "no length"]
    assert table.rows[0] == [
        "rope", "minillm_vt_likelihood", "acc", "0.500 [0.400, 0.600]", "0.250 [0.150, 0.350]", "–",  # noqa: RUF001
    ]  # fmt: skip
    assert [r[:3] for r in table.rows[1:3]] == [["nope", *table.rows[0][1:3]], ["rope", "hellaswag", "acc_norm"]]
    assert table.rows[-1][2] == "exact_match (strict-match)"
    limits = report.blocks[report.blocks.index(Heading("Limits")) + 1]
    assert isinstance(limits, Bullets)
    assert (
        "rope: harness's minillm_cwe_likelihood was not measured at 512 tokens: the shortest prompt takes 900 tokens."
        in limits.items
    )
    assert "rope: harness's arc_easy was not measured: not cached: Couldn't reach it." in limits.items


def test_without_the_suite_there_is_no_section(make_evaluation: Make) -> None:
    assert harness.section(collect([make_evaluation("model=rope", suites=())])) == []
