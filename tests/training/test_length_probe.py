"""Loss past the training length while a run is trained: what eval.py would say, and nothing of the training changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.checkpoint import load
from minillm.config.compose import compose
from minillm.config.schema import Config
from minillm.data import prepare
from minillm.data.tasks.data import task_of
from minillm.errors import ConfigError, MinillmError
from minillm.evaluation import length_perplexity, recall
from minillm.evaluation.settings import LengthPerplexitySettings, RecallSettings
from minillm.training.worker import train_rank

PROBE = ["callbacks=length_probe", "callbacks.length_probe.every=3", "callbacks.length_probe.lengths=[1,2]"]
STEPS = ["trainer.max_steps=5", "trainer.log_every=4"]


def test_it_measures_what_eval_measures_at_intervals_and_at_the_end(
    train: Callable[..., Any], tiny: Callable[..., Config], points: Callable[..., Any], tmp_path: Path
) -> None:
    train(tmp_path, *PROBE, *STEPS)
    probed = {p["step"]: p for p in points(tmp_path) if any(k.startswith("length/") for k in p)}
    assert list(probed) == [3, 5]
    cfg = tiny()
    model, tokenizer = load(tmp_path)
    val = prepare(cfg.data, cfg.tokenizer, tokenizer).val
    settings = LengthPerplexitySettings(("same_target",), (1, 2), max_documents=4, min_documents=1)
    rows = length_perplexity.measure(model, [val.document(i) for i in range(len(val))], 32, settings)
    wanted = {f"length/nll@{r['length']}": r["value"] for r in rows if r["metric"] == "nll"}
    assert set(wanted) == {"length/nll@32", "length/nll@64"}
    assert {k: probed[5][k] for k in wanted} == pytest.approx(wanted, abs=1e-6)


def test_the_training_is_the_same_bit_for_bit_and_so_is_its_name(
    train: Callable[..., Any], tiny: Callable[..., Config], tmp_path: Path
) -> None:
    from minillm.training.identity import run_hash

    train(tmp_path / "probed", *PROBE, *STEPS)
    train(tmp_path / "plain", *STEPS)
    (one, _), (other, _) = load(tmp_path / "probed"), load(tmp_path / "plain")
    assert all(torch.equal(w, other.state_dict()[name]) for name, w in one.state_dict().items())
    assert run_hash(tiny(*PROBE).plain) == run_hash(tiny().plain)


def test_on_a_task_it_reads_validation_samples(points: Callable[..., Any], tmp_path: Path) -> None:
    tiny = ["hidden_size=16", "intermediate_size=32", "num_hidden_layers=2", "num_attention_heads=2"]
    tiny += ["num_key_value_heads=1", "head_dim=8", "seq_len=96"]
    task = ["data=needle", "data.held_out=8", "data.batch_size=4", "logger=none", *(f"size.{t}" for t in tiny)]
    cfg = compose([*task, *PROBE, *STEPS, "schedule.warmup_steps=1"], warn=False)
    train_rank(cfg, tmp_path, None)
    last = points(tmp_path)[-1]
    model, _ = load(tmp_path)
    own = RecallSettings(lengths=(1, 2), samples=4)
    rows = recall.measure(model, task_of(cfg.data), 96, own, split="val")
    whole = {f"length/{r['metric']}@{r['length']}": r["value"] for r in rows if r["depth"] is None}
    assert {k for k in last if k.startswith("length/")} == {k for k in whole if "nll" not in k}
    assert last["length/token_accuracy@192"] == pytest.approx(whole["length/token_accuracy@192"])


def test_texts_that_are_too_short_are_said_before_anything_is_trained(
    train: Callable[..., Any], tmp_path: Path
) -> None:
    with pytest.raises(MinillmError, match=r"callbacks\.length_probe: no held-out document is longer than 512 tokens"):
        train(tmp_path, *PROBE, "size.seq_len=512")


@pytest.mark.parametrize("wrong", ["every=0", "samples=0", "lengths=[2,4]", "lengths=[1,1]"])
def test_numbers_that_make_no_sense_are_refused(tiny: Callable[..., Config], wrong: str) -> None:
    with pytest.raises(ConfigError, match=rf"callbacks\.length_probe\.{wrong.split('=')[0]}"):
        tiny(*PROBE, f"callbacks.length_probe.{wrong}")
