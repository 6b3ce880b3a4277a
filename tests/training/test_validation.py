"""The held-out loss is the mean over tokens, over all of the text, at the right steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.config.schema import Config
from minillm.data import Windows, prepare
from minillm.model.decoder import build_model


@pytest.mark.bug("B057")
@pytest.mark.parametrize("accumulate", [1, 2])
def test_it_is_the_mean_over_all_held_out_tokens(
    train: Callable[..., Any], tiny: Callable[..., Config], tmp_path: Path, accumulate: int
) -> None:
    """The last batch has 5 of 8 windows, one of them half padding: a mean of batch means would differ."""
    metrics = train(tmp_path, "trainer.max_steps=3", "trainer.val_every=3", f"trainer.accumulate={accumulate}")
    cfg = tiny()
    data = prepare(cfg.data, cfg.tokenizer)
    model = build_model(replace(cfg.model, vocab_size=data.tokenizer.vocab_size))
    model.load_state_dict(torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["state_dict"])
    windows = Windows(data.val, cfg.data.seq_len, cfg.data.document_mask)
    nats, tokens = 0.0, 0
    for index in range(len(windows)):
        window = windows.window(index)
        with torch.no_grad():
            logits = model(window.tokens[None], document_ids=window.document_ids[None])
        losses = torch.nn.functional.cross_entropy(logits[0], window.targets, ignore_index=-100, reduction="none")
        nats += losses.double().sum().item()
        tokens += int((window.targets != -100).sum())
    assert tokens == data.val.num_tokens - 1
    assert metrics["val/loss"] == pytest.approx(nats / tokens, abs=1e-5)
    assert metrics["val/bits_per_byte"] == pytest.approx(nats / math.log(2) / data.val.num_bytes, abs=1e-5)


@pytest.mark.bug("B074")
def test_it_comes_at_multiples_whatever_the_length_of_a_pass(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path
) -> None:
    """97 windows in batches of 8: no pass over the data ends at a multiple of 10 updates."""
    train(tmp_path, "trainer.max_steps=30", "trainer.val_every=10", "trainer.sample_every=null", "trainer.log_every=7")
    assert [point["step"] for point in points(tmp_path) if "val/loss" in point] == [10, 20, 30]


def test_an_interval_longer_than_the_run_leaves_the_final_one(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path
) -> None:
    train(tmp_path, "trainer.max_steps=3", "trainer.val_every=100")
    assert [sorted(k for k in p if k.startswith(("val/", "final/"))) for p in points(tmp_path)] == [
        [],
        [],
        ["final/bits_per_byte", "final/loss"],
    ]


def test_a_limit_holds_at_intervals_and_not_for_the_final_one(train: Callable[..., Any], tmp_path: Path) -> None:
    limited = train(tmp_path / "a", "trainer.max_steps=3", "trainer.val_every=3", "trainer.val_batches=1")
    whole = train(tmp_path / "b", "trainer.max_steps=3", "trainer.val_every=3")
    assert whole["final/loss"] == whole["val/loss"] == limited["final/loss"] != limited["val/loss"]


def test_validating_does_not_change_the_training(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path
) -> None:
    train(tmp_path / "often", "trainer.max_steps=6", "trainer.val_every=1", "trainer.sample_every=1")
    train(tmp_path / "never", "trainer.max_steps=6", "trainer.val_every=100", "trainer.sample_every=null")
    often, never = ([point["train/loss"] for point in points(tmp_path / name)] for name in ("often", "never"))
    assert often == never
