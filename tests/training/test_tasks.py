"""Training on a task: what is logged, bitwise resume, what a run folder gives back, starts from other weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import minillm
from minillm.config.compose import compose, compose_plain
from minillm.config.schema import Config
from minillm.data.tasks import task_from_plain
from minillm.errors import ConfigError
from minillm.training.run import train as train_run
from minillm.training.worker import train_rank

TINY = [
    "experiment=needle_micro",
    "size.hidden_size=16",
    "size.intermediate_size=32",
    "size.num_attention_heads=2",
    "size.num_key_value_heads=2",
    "size.head_dim=8",
    "size.window=4",
    "data.batch_size=4",
    "data.held_out=6",
    "logger=none",
    "trainer.max_steps=6",
    "trainer.val_every=2",
    "trainer.checkpoint_every=3",
    "trainer.sample_every=3",
    "trainer.log_every=1",
    "trainer.accelerator=cpu",
    "trainer.progress_bar=false",
    "schedule.warmup_steps=2",
]


def tiny(*more: str) -> Config:
    return compose([*TINY, *more], warn=False)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six updates, as the program makes them, without the table at the end."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    train_run(compose_plain([*TINY, f"run_dir={folder}", "eval_at_end=false"]))
    return folder


def test_validation_says_how_many_answers_are_right(run: Path, points: Callable[[Path], list[dict[str, Any]]]) -> None:
    lines = points(run)
    validated = [line for line in lines if "val/loss" in line]
    assert [line["step"] for line in validated] == [2, 4, 6]
    for line in validated:
        assert {k for k in line if k.startswith("val/")} == {"val/loss", "val/token_accuracy", "val/exact"}
    assert {k for k in lines[-1] if k.startswith("final/")} == {"final/loss", "final/token_accuracy", "final/exact"}


def test_they_are_those_of_the_whole_set_counted_by_hand(run: Path) -> None:
    """Six samples in batches of four: the last one is half empty."""
    model, _ = minillm.load(run)
    task = task_from_plain({"name": "needle"})
    right = tokens = exact = 0
    nats = 0.0
    for i in range(6):
        sample = task.sample(0, "val", 96, i)
        logits = model(torch.from_numpy(sample.tokens)[None])[0]
        targets = torch.from_numpy(sample.targets)
        asked = targets != -100
        hit = logits.argmax(dim=-1)[asked] == targets[asked]
        right, tokens, exact = right + int(hit.sum()), tokens + int(asked.sum()), exact + int(hit.all())
        nats += torch.nn.functional.cross_entropy(logits[asked], targets[asked], reduction="sum").item()
    result = json.loads((run / "result.json").read_text())["metrics"]
    assert result["final/loss"] == pytest.approx(nats / tokens, abs=1e-5)
    assert result["final/token_accuracy"] == right / tokens
    assert result["final/exact"] == exact / 6


def test_a_resumed_run_gives_the_same_numbers_bit_for_bit(
    run: Path, tmp_path: Path, timeless: Callable[[Path], list[dict[str, Any]]]
) -> None:
    train_rank(tiny("trainer.stop_at_step=3"), tmp_path, None)
    train_rank(tiny(), tmp_path, tmp_path / "checkpoints/step-3.ckpt")
    assert timeless(tmp_path) == timeless(run)


def test_micro_batches_and_workers_change_nothing_but_rounding(
    run: Path, tmp_path: Path, points: Callable[[Path], list[dict[str, Any]]]
) -> None:
    train_rank(tiny("trainer.accumulate=2", "data.num_workers=1", "trainer.stop_at_step=3"), tmp_path, None)
    losses = [[line["train/loss"] for line in points(folder)[:3]] for folder in (run, tmp_path)]
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)


def test_the_run_folder_has_the_tasks_words_and_a_sample(run: Path) -> None:
    model, tokenizer = minillm.load(run)
    assert tokenizer.vocab_size == model.config.vocab_size == 128
    (new,) = minillm.generate(model, [tokenizer.encode("n1 k3 v4 v5 ? k3", bos=True)], max_new_tokens=2)
    assert len(tokenizer.decode(new).split()) == 2
    text = (run / "samples.txt").read_text()
    assert text.count("=== step") == 2
    assert "? k" in text


def test_a_task_goes_on_from_its_own_weights_at_another_length(run: Path, tmp_path: Path) -> None:
    longer = [*TINY, f"init_from={run}", "size.seq_len=120", "trainer.max_steps=1", f"run_dir={tmp_path / 'longer'}"]
    train_run(compose_plain([*longer, "eval_at_end=false"]))
    assert minillm.load(tmp_path / "longer")[0].config.max_position_embeddings == 120


def test_weights_of_another_vocabulary_are_refused(run: Path, tmp_path: Path) -> None:
    other = [*TINY, f"init_from={run}", "data=copy", f"run_dir={tmp_path / 'other'}", "trainer.max_steps=1"]
    with pytest.raises(ConfigError, match=r"another vocabulary \(128 tokens\) than the task copy"):
        train_run(compose_plain(other))
    assert not (tmp_path / "other").exists()


def test_the_table_at_the_end_is_the_tasks_own(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from minillm.evaluation import length_table
    from minillm.evaluation import settings as evaluation_settings

    short = replace(evaluation_settings.RecallSettings(), samples=2, lengths=(1, 2))
    with pytest.MonkeyPatch.context() as patch:
        compose_default = evaluation_settings.default_config

        def shortened(*given: Any) -> Any:
            config = compose_default(*given)
            return replace(config, suite=replace(config.suite, recall=short))

        patch.setattr("minillm.evaluation.evaluate.default_config", shortened)
        table = length_table(run)
    assert table.startswith("needle by length, 2 samples (training length 96 tokens)")
    assert "undertrained" in table
