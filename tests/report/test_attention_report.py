"""The attention suite in a report: tables and figures of what was measured, nothing where nothing was."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import minillm
from minillm.evaluation.attention.suite import Text, measure
from minillm.evaluation.evaluate import Evaluation
from minillm.evaluation.settings import AttentionSettings
from minillm.report import attention_figures, attention_tables, content, figures
from minillm.report.collect import Subject, collect

SIZE = (
    "size.hidden_size=16",
    "size.intermediate_size=32",
    "size.num_hidden_layers=4",
    "size.num_attention_heads=2",
    "size.num_key_value_heads=1",
    "size.head_dim=8",
    "size.seq_len=48",
    "size.window=6",
)
SETTINGS = AttentionSettings(lengths=(1, 2), samples=3, rows=8, positions=24, knockout_draws=1, similarity_rows=3)


@pytest.fixture
def subjects(make_evaluation: Callable[..., Evaluation]) -> list[Subject]:
    """Random weights, measured on random tokens."""
    draw = np.random.default_rng(0)
    texts = [np.concatenate([[0], draw.integers(1, 30, 100)]) for _ in range(3)]
    evaluations = []
    for seed, arm in enumerate(("rnope_swa", "nope", "t5")):
        evaluation = make_evaluation(f"model={arm}", *SIZE, name=arm, suites=(), metrics=False)
        model = minillm.build_model(dataclasses.replace(evaluation.config.model, vocab_size=30), seed=seed).eval()
        rows = measure(model, 48, SETTINGS, Text(texts, SETTINGS))
        result = {"suite": "attention", "settings": {}, "rows": rows, "seconds": 1.0}
        evaluations.append(dataclasses.replace(evaluation, results={"attention": result}))
    return collect(evaluations)


def test_the_papers_table_has_a_line_for_each_kind_and_length_that_adds_up(subjects: list[Subject]) -> None:
    table = attention_tables.segments(subjects)
    assert table is not None
    assert [row[:2] for row in table.rows] == [
        [name, length]
        for length in ("1x (48)", "2x (96)")
        for name in ("rnope_swa, local", "rnope_swa, global", "nope", "t5")
    ]
    for row in table.rows:
        assert sum(float(cell) for cell in row[2:6]) == pytest.approx(1, abs=3e-4)
    assert "a span of the document repeated at its end" in table.caption


def test_windows_have_a_dash_for_their_sinks(subjects: list[Subject]) -> None:
    table = attention_tables.sinks(subjects)
    assert table is not None
    dashes = {row[0] for row in table.rows if "–" in row[2:]}  # noqa: RUF001
    assert dashes == {"rnope_swa, local"}
    assert "sink logit" not in table.header, "no run has any"


def test_runs_on_the_same_tokens_are_compared_and_others_are_not(subjects: list[Subject]) -> None:
    table = attention_tables.similarity(subjects)
    assert table is not None
    assert table.header == ["run", "rnope_swa", "nope", "t5"]
    for i, row in enumerate(table.rows):
        for j, cell in enumerate(row[1:]):
            assert cell == table.rows[j][i + 1]
            if i != j:
                closest, every = cell.rstrip(")").split(" (")
                assert 0 < float(closest) <= float(every) <= 1
    for row in subjects[1].rows("attention", "attention_rows"):
        row["data"]["tokens"] = "others"
    table = attention_tables.similarity(subjects)
    assert table is not None
    assert table.rows[1][1:] == ["–"] * 3  # noqa: RUF001
    assert attention_tables.similarity(subjects[:1]) is None


def test_every_figure_is_drawn_and_stands_in_the_report(subjects: list[Subject], tmp_path: Path) -> None:
    drawn = figures.draw(subjects, tmp_path)
    assert set(drawn) == set(attention_figures.FIGURES)
    report = content.compose(subjects, drawn, "python eval.py")
    files = [block.file for block in report.blocks if hasattr(block, "file")]
    assert set(files) >= set(attention_figures.FIGURES)


def test_without_the_suite_there_is_no_section(make_evaluation: Callable[..., Evaluation], tmp_path: Path) -> None:
    subjects = collect([make_evaluation("model=rope")])
    assert not set(figures.draw(subjects, tmp_path)) & set(attention_figures.FIGURES)
    texts = [block.text for block in content.compose(subjects, {}, "x").blocks if hasattr(block, "text")]
    assert "Attention" not in texts
