"""eval.py from the command line to the files, on runs with random weights."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm.evaluation import evaluate, length_table
from minillm.evaluation.program import program

QUICK = ["suite.cost.seconds=1e-6", "suite.cost.decode_tokens=2", "suite.cost.lengths=[1,2]"]


def rows_of(run: Path, suite: str) -> list[dict[str, Any]]:
    result = json.loads((run / "eval" / f"{suite}.json").read_text())
    assert set(result) == {"suite", "settings", "rows", "seconds"}
    return result["rows"]


def test_two_runs_give_results_of_their_own_and_one_comparison(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [make_run(tmp_path / arm, f"model={arm}") for arm in ("rope", "learned")]
    out = tmp_path / "out"
    assert program([f"runs=[{runs[0]},{runs[1]}]", f"out={out}", *QUICK]) == 0
    for run in runs:
        lengths = {r["length"] for r in rows_of(run, "length_perplexity") if r["protocol"] == "same_target"}
        assert lengths == {16, 32, 64, 128, 256}
        assert {r["metric"] for r in rows_of(run, "cost")} >= {"train_tokens_per_second", "decode_tokens_per_second"}
    assert {p.name for p in out.iterdir()} == {"report.html", "report.md", "table.csv", "figures"}
    with (out / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert {(r["run"], r["suite"]) for r in table} == {
        (run.name, suite) for run in runs for suite in ("length_perplexity", "attention", "cost")
    }
    page = (out / "report.html").read_text()
    assert "not defined" in page
    assert "learned is not defined beyond 16 tokens" in page
    said = capsys.readouterr()
    assert str(out / "report.html") in said.out
    assert "Traceback" not in said.err


def test_seeds_of_two_arms_are_put_together(make_run: Callable[..., Path], tmp_path: Path) -> None:
    """Values of each seed are those of its own eval folder, and the paired difference is of the same documents."""
    arms, seeds = ("rope", "swa_only"), (1, 2)
    for arm in arms:
        for seed in seeds:
            make_run(tmp_path / f"{arm}-{seed}", f"model={arm}", f"seed={seed}", weights_seed=seed)
    out = tmp_path / "out"
    command = [f"runs=[{tmp_path}/rope-*,{tmp_path}/swa_only-*]", f"out={out}", "suites=length_perplexity"]
    assert program(command) == 0
    with (out / "seeds.csv").open() as file:
        table = [r for r in csv.DictReader(file) if r["suite"] == "length_perplexity"]

    def saved(arm: str, seed: int, metric: str) -> float:
        rows = rows_of(tmp_path / f"{arm}-{seed}", "length_perplexity")
        (row,) = [r for r in rows if (r["protocol"], r["metric"], r["length"]) == ("same_target", metric, 64)]
        return float(row["value"])

    (change,) = [r for r in table if (r["variant"], r["metric"], r["length"]) == ("rope", "nll_change", "64")]
    assert [float(v) for v in change["values"].split()] == pytest.approx(
        [saved("rope", s, "nll_change") for s in seeds]
    )
    assert float(change["low"]) <= float(change["mean"]) <= float(change["high"])
    (paired,) = [r for r in table if r["against"] and r["length"] == "64"]
    assert (paired["variant"], paired["against"], paired["note"]) == ("swa_only", "rope", "")
    differences = [saved("swa_only", s, "nll") - saved("rope", s, "nll") for s in seeds]
    assert [float(v) for v in paired["values"].split()] == pytest.approx(differences)
    assert "## Over seeds" in (out / "report.md").read_text()


def test_what_was_measured_is_reused_until_something_changes(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from minillm.evaluation import length_perplexity

    calls: list[int] = []
    measure = length_perplexity.measure

    def counted(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return measure(*args, **kwargs)

    monkeypatch.setattr(length_perplexity, "measure", counted)
    run = make_run(tmp_path / "run", "model=rope")
    command = [f"runs={run}", f"out={tmp_path / 'out'}", "suites=length_perplexity"]
    for arguments, measured in (
        (command, 1),
        (command, 1),
        ([*command, "suite.length_perplexity.lengths=[1,2]"], 2),
        ([*command, "suite.length_perplexity.lengths=[1,2]", "again=true"], 3),
    ):
        assert program(arguments) == 0
        assert len(calls) == measured
    # Other weights in the same folder are another measurement.
    other = make_run(tmp_path / "other", "model=rope", weights_seed=1)
    (other / "checkpoints" / "step-10.ckpt").replace(run / "checkpoints" / "step-10.ckpt")
    (run / "checkpoints" / "last.ckpt").unlink()
    assert program([*command, "suite.length_perplexity.lengths=[1,2]"]) == 0
    assert len(calls) == 4


def test_the_table_at_the_end_of_training_is_what_eval_reuses(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run, with [odd] name", "model=rope")
    table = length_table(run)
    assert "training length 16 tokens" in table
    lines = {line[:16].strip(): line[16:].split() for line in table.splitlines()[1:]}
    assert lines["context, tokens"] == ["16", "32", "64", "128", "256"]
    same = [r for r in rows_of(run, "length_perplexity") if r["protocol"] == "same_target" and r["metric"] == "nll"]
    assert lines["same targets"] == [f"{r['value']:.3f}" for r in same]
    assert lines["change"][0] == "+0.000"
    assert len(lines["by position"]) == len(lines["strided"]) == len(lines["non-overlapping"]) == 5
    before = (run / "eval" / "length_perplexity.json").stat().st_mtime_ns
    config = evaluate.default_config([str(run)], ["length_perplexity"])
    (found,) = evaluate.find_runs(config.runs)
    evaluate.evaluate(found, config)
    assert "as measured before" in capsys.readouterr().out
    assert (run / "eval" / "length_perplexity.json").stat().st_mtime_ns == before


def test_documents_that_are_too_short_are_said_at_the_end_of_training(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", "model=rope", "size.seq_len=1500", "trainer.max_steps=10")
    assert "not measured, as fewer than 2 held-out documents are longer than 1500 tokens" in length_table(run)


def test_other_documents_can_be_given(make_run: Callable[..., Path], tmp_path: Path, corpus: Path) -> None:
    run = make_run(tmp_path / "run", "model=rope")
    command = [f"runs={run}", f"out={tmp_path / 'out'}", "suites=length_perplexity", f"documents={corpus}"]
    assert program(command) == 0
    result = json.loads((run / "eval" / "length_perplexity.json").read_text())
    assert result["settings"]["source"] == str(corpus)
    assert len(result["settings"]["documents"]) == 8


def test_a_run_that_cannot_be_read_does_not_keep_the_others_from_the_report(
    make_run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good, bad = make_run(tmp_path / "good", "model=rope"), make_run(tmp_path / "bad", "model=rope")
    for checkpoint in (bad / "checkpoints").iterdir():
        checkpoint.write_bytes(checkpoint.read_bytes()[:1000])
    out = tmp_path / "out"
    assert program([f"runs=[{bad},{good}]", f"out={out}", "suites=length_perplexity"]) == 2
    assert "good" in (out / "report.md").read_text()
    errors = capsys.readouterr().err
    assert "Not evaluated, and not in the report: bad: No checkpoint in" in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "runs: nothing to evaluate"),
        (["runs=nowhere"], "runs: nowhere does not exist"),
        (["--multirun", "runs=a"], "--multirun: eval.py takes key=value only"),
        (["runs=a", "suite.cost.lenghts=[1]"], "suite.cost.lenghts: unknown key. Did you mean 'suite.cost.lengths'?"),
        (["runs=a", "suites=[needles]"], "unknown suite 'needles'. Did you mean 'needle'?"),
    ],
    ids=["no runs", "a run that is not there", "a flag", "a misspelt key", "an unknown suite"],
)
def test_a_mistake_gets_one_paragraph_and_exit_code_2(
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert program(arguments) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert len(errors.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_help_lists_every_key_and_needs_no_torch() -> None:
    code = "import sys; from minillm.evaluation.program import program; program(['--help']); "
    code += "assert 'torch' not in sys.modules"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ)
    )
    for key in ("runs:", "out:", "suite.length_perplexity.lengths:", "suite.cost.decode_tokens:"):
        assert key in done.stdout
    assert "_self_" not in done.stdout
