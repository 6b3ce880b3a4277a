"""What one update does: the gradient of the token-weighted mean over the global batch, however it is cut up."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch

from minillm.config.schema import Config
from minillm.data import Windows, prepare
from minillm.data.loader import BatchLoader
from minillm.training.callbacks.base import AfterUpdate
from minillm.training.module import TrainingModule


@pytest.mark.bug("B056")
@pytest.mark.parametrize("accumulate", [1, 4])
def test_the_first_loss_is_that_of_guessing(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path, accumulate: int
) -> None:
    train(tmp_path, f"trainer.accumulate={accumulate}", "trainer.max_steps=1")
    vocab_size = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["config"]["model"]["vocab_size"]
    assert points(tmp_path)[0]["train/loss"] == pytest.approx(math.log(vocab_size), abs=0.2)


@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_micro_batches_of_unequal_token_counts_weigh_by_their_tokens(
    train: Callable[..., Any], timeless: Callable[..., Any], tmp_path: Path, accumulate: int
) -> None:
    """The tiny corpus' last window is mostly padding, so the means of micro-batches are not the mean of the batch."""
    plan = ("trainer.max_steps=6", "optim.grad_clip=null")
    train(tmp_path / "whole", *plan)
    train(tmp_path / "parts", *plan, f"trainer.accumulate={accumulate}")
    whole, parts = timeless(tmp_path / "whole"), timeless(tmp_path / "parts")
    assert any(point["tokens"] % 256 for point in whole), "no update had padding"
    for one, other in zip(whole, parts, strict=True):
        assert one.keys() == other.keys()
        for key, value in one.items():
            assert other[key] == pytest.approx(value, rel=1e-5), (one["step"], key)


def test_the_loss_and_gradient_are_those_of_a_plain_loop(
    train: Callable[..., Any], tiny: Callable[..., Config], points: Callable[..., Any], tmp_path: Path
) -> None:
    cfg = tiny()
    train(tmp_path, "trainer.max_steps=1", "trainer.accumulate=2", "optim.grad_clip=null")
    from dataclasses import replace

    from minillm.model.decoder import build_model

    data = prepare(cfg.data, cfg.tokenizer)
    model = build_model(replace(cfg.model, vocab_size=data.tokenizer.vocab_size), seed=cfg.seed)
    windows = Windows(data.train, cfg.data.seq_len, cfg.data.document_mask)
    batch = next(iter(BatchLoader(windows, cfg.data.batch_size, cfg.seed, num_batches=1)))
    logits = model(batch["tokens"], document_ids=batch["document_ids"])
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), ignore_index=-100)
    loss.backward()
    norm = torch.stack([p.grad.pow(2).sum() for p in model.parameters()]).sum().sqrt()
    (point,) = points(tmp_path)
    assert point["train/loss"] == pytest.approx(loss.item(), abs=1e-5)
    assert point["train/grad_norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert point["tokens"] == int((batch["targets"] != -100).sum())


def test_lightning_counts_the_same_updates_after_a_resume(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    seen = []

    def look(callback: AfterUpdate, trainer: pl.Trainer, module: TrainingModule, *_: Any) -> None:
        seen.append((module.step, trainer.global_step))

    train(tmp_path, "trainer.stop_at_step=3")
    from minillm.training.callbacks.logger import ToLoggers

    monkeypatch.setattr(ToLoggers, "act", look)
    train(tmp_path, "trainer.stop_at_step=5", resume_from=tmp_path / "checkpoints/last.ckpt")
    assert seen == [(4, 4), (5, 5)]
