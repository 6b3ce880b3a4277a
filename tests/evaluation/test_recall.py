"""Suites named after tasks: what counts as right, where needles are counted, what stacked windows can reach."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import minillm
from minillm.data.tasks import Task, task_from_plain
from minillm.data.tasks.data import task_data
from minillm.errors import ConfigError, PositionUndefined
from minillm.evaluation import recall
from minillm.evaluation.evaluate import evaluate
from minillm.evaluation.intervals import clustered_share, wilson
from minillm.evaluation.runs import find_runs
from minillm.evaluation.settings import RecallSettings, compose_eval
from minillm.evaluation.table import plain_recall_table
from minillm.model.decoder import Decoder

NEEDLE = task_from_plain({"name": "needle"})
FEW = RecallSettings(lengths=(1, 2), samples=12, batch_tokens=500)
TINY = (
    "size.hidden_size=16", "size.intermediate_size=32", "size.num_hidden_layers=4", "size.num_attention_heads=2",
    "size.num_key_value_heads=1", "size.head_dim=8", "size.seq_len=96", "size.window=4",
)  # fmt: skip


class Reader:
    """Looks each question's key up in the text, up to `reach` tokens back; else says token 1."""

    def __init__(self, reach: int | None = None, limit: int | None = None) -> None:
        self.reach, self.limit = reach, limit

    def hidden(self, tokens: Tensor) -> Tensor:
        if self.limit is not None and tokens.shape[1] > self.limit:
            raise PositionUndefined("no position")
        logits = torch.zeros(*tokens.shape, 128)
        logits[..., 1] = 0.5
        for row, line in enumerate(tokens.tolist()):
            for at, token in enumerate(line):
                behind = [i for i in range(at) if line[i : i + 1] == [token] and 2 <= token < 34]
                if behind and self._sees(at, behind[0] + 1):
                    logits[row, at, line[behind[0] + 1]] = 1.0
                    if at + 1 < len(line):  # the second token of the value, behind the first
                        logits[row, at + 1, line[behind[0] + 2]] = 1.0
        return logits

    def _sees(self, at: int, evidence: int) -> bool:
        return self.reach is None or at - evidence <= self.reach

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden


def decoder(model: str, *more: str, task: Task = NEEDLE, seed: int = 0) -> Decoder:
    cfg = minillm.compose([f"model={model}", *TINY, *more], warn=False)
    return minillm.build_model(dataclasses.replace(cfg.model, vocab_size=len(task.vocabulary)), seed=seed).eval()


def of(rows: list[dict[str, Any]], metric: str, **where: Any) -> list[dict[str, Any]]:
    asked = {"depth": None, "reach": None, **where}
    return [r for r in rows if r["metric"] == metric and all(r.get(k) == v for k, v in asked.items())]


def test_a_model_that_reads_is_right_at_every_length_and_depth() -> None:
    read: list[int] = []
    rows = recall.measure(Reader(), NEEDLE, 96, FEW, progress=read.append)
    assert sum(read) == recall.total_tokens(96, FEW) == 12 * 3 * 96
    for metric in ("token_accuracy", "exact"):
        assert [r["value"] for r in of(rows, metric)] == [1.0, 1.0]
        assert all(r["low"] < 1 <= r["high"] for r in of(rows, metric)), "twelve samples do not prove 100 %"
        by_depth = [r for r in rows if r["metric"] == metric and r["depth"] is not None and r["length"] == 192]
        assert [r["depth"] for r in by_depth] == [0.125, 0.375, 0.625, 0.875]
        assert all(r["value"] == 1.0 for r in by_depth)
    assert [r["n"] for r in of(rows, "token_accuracy")] == [12 * 4 * 2] * 2
    assert [r["n"] for r in of(rows, "exact")] == [12] * 2
    tokens = [r for r in rows if r["metric"] == "token_accuracy" and r["depth"] is not None and r["length"] == 96]
    assert sum(r["n"] for r in tokens) == 96, "every needle is in one bin"
    without_keys = ((1 / 4 + 1 / 3 + 1 / 2 + 1) / 4 + 1) / 2  # by elimination, then the second token behind the first
    assert all(r["task"] == "needle" and r["chance"] == pytest.approx(without_keys) for r in rows)


def test_a_model_that_cannot_read_is_right_about_nothing() -> None:
    rows = recall.measure(Reader(reach=-1), NEEDLE, 96, FEW)
    assert {r["value"] for r in of(rows, "exact")} == {0.0}
    # Of two guesses of token 1, which is the question mark, none is a value.
    assert {r["value"] for r in of(rows, "token_accuracy")} == {0.0}


def test_the_nll_is_that_of_the_answers_alone() -> None:
    model = decoder("rope")
    rows = recall.measure(model, NEEDLE, 96, FEW)
    losses = []
    for i in range(12):
        sample = NEEDLE.sample(0, "test", 192, i)
        logits = model(torch.from_numpy(sample.tokens)[None])[0]
        targets = torch.from_numpy(sample.targets)
        losses.append(torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100).item())
    (row,) = of(rows, "nll", length=192)
    assert row["value"] == pytest.approx(np.mean(losses), abs=1e-5)


def test_rows_over_whole_samples_keep_what_each_sample_adds_to_them() -> None:
    rows = recall.measure(decoder("rope"), NEEDLE, 96, FEW)
    for metric, trials in (("nll", 8), ("token_accuracy", 8), ("exact", 1)):
        for row in of(rows, metric):
            assert row["sample_counts"] == [trials] * 12
            assert sum(row["sample_sums"]) / sum(row["sample_counts"]) == pytest.approx(row["value"])
    model = decoder("rope")
    sample = NEEDLE.sample(0, "test", 192, 5)
    logits, targets = model(torch.from_numpy(sample.tokens)[None])[0], torch.from_numpy(sample.targets)
    gold = torch.nn.functional.cross_entropy(logits, targets, ignore_index=-100, reduction="sum").item()
    assert of(rows, "nll", length=192)[0]["sample_sums"][5] == pytest.approx(gold, abs=1e-4)
    assert not any("sample_sums" in r for r in rows if r["depth"] is not None)


def test_needles_beyond_the_reach_of_the_windows_are_counted_apart() -> None:
    specs = decoder("swa_only").layer_specs
    assert recall.reach(specs) == 4 * 3
    rows = recall.measure(Reader(reach=12), NEEDLE, 96, dataclasses.replace(FEW, samples=100), specs)
    for length in (96, 192):
        (within,) = of(rows, "exact", length=length, reach="within")
        (beyond,) = of(rows, "exact", length=length, reach="beyond")
        assert within["value"] == 1.0
        assert beyond["value"] == 0.0
        assert within["n"] + beyond["n"] == 400
        assert beyond["n"] > within["n"] > 0


def test_a_plan_with_a_full_layer_reaches_everything() -> None:
    specs = decoder("rnope_swa").layer_specs
    assert recall.reach(specs) is None
    assert not [r for r in recall.measure(Reader(), NEEDLE, 96, FEW, specs) if r["reach"] is not None]


def test_nothing_passes_from_beyond_the_reach_of_stacked_windows() -> None:
    """Random weights: another token one place beyond changes no logit at all, one at its very end changes them."""
    model = decoder("swa_only")
    far = recall.reach(model.layer_specs)
    assert far is not None
    tokens = torch.randint(1, 128, (1, 40), generator=torch.Generator().manual_seed(0))
    before = model(tokens)[0, -1]
    for distance, changes in ((far + 1, False), (far, True)):
        other = tokens.clone()
        other[0, 39 - distance] = 1 + (other[0, 39 - distance] + 5) % 127
        assert torch.equal(model(other)[0, -1], before) != changes


def test_a_length_without_positions_is_said_to_have_none() -> None:
    rows = recall.measure(Reader(limit=96), NEEDLE, 96, FEW)
    assert [r["value"] for r in of(rows, "exact", length=96)] == [1.0]
    assert [(r["value"], r["n"], r["note"]) for r in of(rows, "exact", length=192)] == [(None, 0, "not defined")]


@pytest.fixture(scope="module")
def half_trained() -> tuple[Decoder, Task]:
    """A model that copies short strings of two letters, and fails on some: a few seconds of training."""
    task = task_from_plain({"name": "copy", "letters": 2})
    model = decoder("rope", "size.hidden_size=32", "size.num_hidden_layers=2", task=task)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    from minillm.data.tasks.batches import TaskLoader

    for batch in TaskLoader(task, 14, 32, seed=0, num_batches=150):
        optimizer.zero_grad()
        model.loss(batch["tokens"], batch["targets"]).backward()
        optimizer.step()
    return model.eval(), task


def test_exact_is_what_greedy_decoding_gives(half_trained: tuple[Decoder, Task]) -> None:
    model, task = half_trained
    rows = recall.measure(model, task, 14, RecallSettings(lengths=(1,), samples=60))
    exact = 0
    for i in range(60):
        sample = task.sample(0, "test", 14, i)
        (answer,) = sample.answers
        prompt = sample.tokens[: answer.at + 1].tolist()
        (decoded,) = minillm.generate(model, [prompt], max_new_tokens=answer.length)
        exact += decoded == sample.targets[answer.at : answer.at + answer.length].tolist()
    assert 0 < exact < 60, "a test of both kinds"
    (row,) = of(rows, "exact")
    assert row["value"] == exact / 60


@pytest.mark.parametrize(("value", "n"), [(0.8, 10), (0.0, 20), (0.5, 7), (1.0, 3)])
def test_wilsons_ends_are_the_shares_that_a_score_test_just_rejects(value: float, n: int) -> None:
    """What defines the interval (Wilson 1927): |value - p| = z sqrt(p (1 - p) / n) at both ends, 0 and 1 aside."""
    low, high = wilson(value, n)
    assert low <= value <= high
    for end in (low, high):
        if end != value:
            assert abs(value - end) == pytest.approx(1.959963984540054 * np.sqrt(end * (1 - end) / n))


def test_trials_that_hang_together_count_as_their_clusters() -> None:
    alone = clustered_share([1.0] * 30 + [0.0] * 10, [1] * 40)
    assert (alone.low, alone.high) == pytest.approx(wilson(0.75, 40), abs=0.01)
    copied = clustered_share([4.0] * 30 + [0.0] * 10, [4] * 40)
    assert copied.n == 160
    assert (copied.low, copied.high) == pytest.approx((alone.low, alone.high), abs=0.01)
    independent = clustered_share([3.0] * 40, [4] * 40)
    assert independent.low is not None
    assert alone.low is not None
    assert independent.low > alone.low, "never more than the trials themselves"
    assert (independent.low, independent.high) == pytest.approx(wilson(0.75, 160))
    sure = clustered_share([4.0] * 40, [4] * 40)
    assert (sure.low, sure.high) == wilson(1.0, 40), "with no variance to learn from, a cluster counts once"
    assert clustered_share([], []).value is None


def make_run(folder: Path, *overrides: str) -> Path:
    """A run folder of a task with random weights."""
    from minillm.training.checkpoint_io import write_checkpoint
    from minillm.training.run_folder import RunFolder
    from minillm.training.state import fixed_facts

    cfg = minillm.compose([*TINY, "logger=none", *overrides], warn=False)
    data = task_data(cfg.data)
    run = RunFolder(folder)
    folder.mkdir(parents=True)
    run.write(cfg, data.tokenizer)
    decided = {"precision": "fp32", "backends": ["sdpa"] * 4, "device": "cpu", "torch": "2"}
    facts = fixed_facts(cfg, cfg.model.vocab_size, data.tokenizer.to_json(), decided, None)
    state = {"version": "0", "step": 3, "state_dict": minillm.build_model(cfg.model).state_dict(), **facts}
    write_checkpoint(run.checkpoints, state, keep=None)
    run.metrics.write_text(json.dumps({"step": 3, "tokens": 9, "time": 1.0, "train/loss": 4.0}) + "\n")
    return folder


def asked(folder: Path, suites: str, *more: str) -> Any:
    settings = ["suite.recall.samples=4", "suite.recall.lengths=[1,2]", "suite.cost.lengths=[1]"]
    return compose_eval([f"runs={folder}", f"suites={suites}", *settings, *more])


def test_suites_that_do_not_apply_are_left_out_with_the_reason(tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "data=needle")
    config = asked(folder, "[length_perplexity,copy,needle]")
    (run,) = find_runs(config.runs)
    told: list[str] = []
    evaluation = evaluate(run, config, say=told.append)
    assert list(evaluation.results) == ["needle"]
    assert set(evaluation.skipped) == {"length_perplexity", "copy"}
    assert "trained on the task needle" in evaluation.skipped["copy"]
    assert any("length_perplexity is left out" in text for text in told)
    saved = json.loads((folder / "eval/needle.json").read_text())
    assert saved["suite"] == "needle"
    assert saved["settings"]["task"]["name"] == "needle"
    assert {"metric", "length", "depth", "value", "n", "low", "high"} <= set(saved["rows"][0])
    told.clear()
    evaluate(run, asked(folder, "[recall]"), say=told.append)
    assert "as measured before" in told[0], "recall is the suite of the run's own task"
    del saved["settings"]["row_version"]
    (folder / "eval/needle.json").write_text(json.dumps(saved))
    told.clear()
    evaluate(run, config, say=told.append)
    assert any("needle measured in" in text for text in told), "rows of before samples were kept"


def test_an_unknown_suite_names_the_nearest_task() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'needle'"):
        compose_eval(["runs=a", "suites=[neddle]"])


def test_the_table_at_a_runs_end_shows_nothing_beyond_for_an_undertrained_model() -> None:
    def result(reader: Reader) -> dict[str, Any]:
        settings = {"task": {"name": "needle"}, "samples": 12, "train_length": 96}
        return {"rows": recall.measure(reader, NEEDLE, 96, FEW), "settings": settings}

    good, bad = plain_recall_table(result(Reader())), plain_recall_table(result(Reader(reach=30)))
    assert good.splitlines()[3].split() == ["answer", "tokens", "1.000", "1.000"]
    assert "undertrained" not in good
    assert len(bad.splitlines()[3].split()) == 3
    assert "undertrained" in bad
