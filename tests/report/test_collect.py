"""What a report knows of its runs: names that tell them apart, curves, one tidy table."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.evaluation.evaluate import Evaluation
from minillm.report.collect import collect, write_csv

Make = Callable[..., Evaluation]


@pytest.mark.parametrize(
    ("runs", "labels"),
    [
        ([["model=rope"], ["model=nope"]], ["rope", "nope"]),
        ([["model=rope", "seed=1"], ["model=rope", "seed=2"]], ["rope (seed 1)", "rope (seed 2)"]),
        (
            [["model=rope"], ["model=rope", "optim.lr=0.5"], ["model=nope"]],
            ["rope, optim.lr=", "rope, optim.lr=0.5", "nope"],
        ),
        ([["model=rope", "size=micro"], ["model=rope", "size=mini"]], ["rope, size=micro", "rope, size=mini"]),
        ([["model=rope", "name=short"], ["model=rope"]], ["short", "rope"]),
    ],
    ids=["other arms", "other seeds", "another learning rate", "another size", "a name of one's own"],
)
def test_runs_are_called_by_what_tells_them_apart(
    runs: list[list[str]], labels: list[str], make_evaluation: Make
) -> None:
    subjects = collect([make_evaluation(*overrides, name=f"r{i}") for i, overrides in enumerate(runs)])
    assert len({s.label for s in subjects}) == len(subjects)
    for subject, label in zip(subjects, labels, strict=True):
        assert subject.label.startswith(label)


def test_seeds_of_one_plan_are_one_variant(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", f"seed={s}", name=f"r{s}") for s in (1, 2)]
    assert {s.variant for s in collect(runs)} == {"rope"}


def test_runs_that_nothing_tells_apart_keep_their_folder_names(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", name=name) for name in ("first", "second")]
    assert [s.label for s in collect(runs)] == ["first", "second"]


def test_curves_leave_out_what_was_not_logged_and_a_line_that_is_being_written(make_evaluation: Make) -> None:
    (subject,) = collect([make_evaluation("model=rope")])
    tokens, seconds, values = subject.curve("val/loss")
    assert tokens == [s * 4096 for s in range(100, 601, 100)]
    assert seconds == [50, 100, 150, 200, 250, 300]
    assert values == pytest.approx([8.1 - s / 100 for s in range(100, 601, 100)])
    assert subject.last("final/loss", "val/loss") == pytest.approx(2.1)


def test_curves_end_at_the_checkpoint_that_was_evaluated(make_evaluation: Make) -> None:
    (subject,) = collect([make_evaluation("model=rope", step=250)])
    assert subject.last("val/loss") == pytest.approx(8.1 - 2)


def test_a_checkpoint_without_its_run_folder_has_no_curves(make_evaluation: Make) -> None:
    (subject,) = collect([make_evaluation("model=rope", metrics=False)])
    assert (subject.curve("val/loss"), subject.commands, subject.data) == (([], [], []), [], None)


def test_the_table_is_tidy_and_has_every_row_of_every_run(make_evaluation: Make, tmp_path: Path) -> None:
    evaluations = [make_evaluation("model=rope", name="a, 1"), make_evaluation("model=learned", name="b", table=True)]
    write_csv(collect(evaluations), tmp_path / "table.csv")
    with (tmp_path / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == sum(len(r["rows"]) for e in evaluations for r in e.results.values())
    (row,) = [
        r for r in rows if (r["run"], r["protocol"], r["metric"], r["length"]) == ("a, 1", "strided", "nll", "1024")
    ]
    assert float(row["value"]) == pytest.approx(3.1)
    assert (row["variant"], row["seed"], row["suite"], row["n"]) == ("rope", "1", "length_perplexity", "300")
    undefined = [r for r in rows if r["run"] == "b" and r["note"] == "not defined"]
    assert undefined
    assert all(r["value"] == "" for r in undefined)
    assert "document_nll" not in rows[0]
