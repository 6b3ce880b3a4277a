"""`train_only` moves what its patterns name, and leaves everything else as it was, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.config.schema import Config
from minillm.errors import ConfigError, MinillmError
from minillm.model.decoder import build_model
from minillm.training import dry_run, identity, run
from minillm.training.run_folder import RunFolder
from minillm.training.train_only import freeze, trained_names

Compose = Callable[..., Config]
Train = Callable[..., dict[str, float]]
Points = Callable[[Path], list[dict[str, Any]]]
FIT = ("model=nope", "model.attention.temperature={type:per_head,init:1.2}", "train_only=['*.temperature.scale']")
SCALES = {f"layers.{i}.attention.temperature.scale" for i in range(4)}


def read(run_dir: Path) -> dict[str, Any]:
    return torch.load(run_dir / "checkpoints/last.ckpt", weights_only=True)


def test_only_the_named_parameters_move_and_only_they_have_optimiser_state(
    train: Train, tiny: Compose, tmp_path: Path
) -> None:
    train(tmp_path, *FIT, "trainer.stop_at_step=4")
    state = read(tmp_path)
    start = build_model(tiny(*FIT).model, seed=1).state_dict()
    moved = {name for name, weight in state["state_dict"].items() if not torch.equal(weight, start[name])}
    assert moved == SCALES
    assert set(state["optimizer"]) == SCALES


def test_a_stopped_run_goes_on_bit_for_bit(train: Train, timeless: Points, tmp_path: Path) -> None:
    parts, straight = tmp_path / "parts", tmp_path / "straight"
    train(straight, *FIT)
    for stop_at in (7, 20):
        newest = RunFolder(parts).newest_checkpoint()
        train(parts, *FIT, f"trainer.stop_at_step={stop_at}", resume_from=newest and newest.path)
    assert timeless(parts) == timeless(straight)
    ours, theirs = read(parts), read(straight)
    for name in SCALES:
        assert torch.equal(ours["state_dict"][name], theirs["state_dict"][name])
        assert torch.equal(ours["optimizer"][name]["exp_avg_sq"], theirs["optimizer"][name]["exp_avg_sq"])


def test_the_gradient_of_what_is_trained_is_that_of_a_run_that_trains_all(tiny: Compose) -> None:
    cfg = tiny(*FIT)
    tokens = torch.randint(cfg.model.vocab_size, (2, 33), generator=torch.Generator().manual_seed(0))
    grads = []
    for patterns in (None, ["layers.2.*.scale"]):
        model = build_model(cfg.model, seed=3)
        freeze(model, patterns)
        model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
        grads.append({name: p.grad for name, p in model.named_parameters()})
    everything, part = grads
    assert {name for name, grad in part.items() if grad is not None} == {"layers.2.attention.temperature.scale"}
    torch.testing.assert_close(
        part["layers.2.attention.temperature.scale"], everything["layers.2.attention.temperature.scale"]
    )


def test_the_summary_and_the_dry_run_say_how_many_numbers_train(
    tiny: Compose, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run.train(tiny(*FIT, f"run_dir={tmp_path}", "trainer.stop_at_step=1").plain)
    line = "8 numbers in 4 parameters: layers 0-3: attention.temperature.scale"
    assert line in capsys.readouterr().out
    assert line in dry_run.describe(tiny(*FIT))
    all_of_it, part = dry_run.memory(tiny(*FIT[:2])), dry_run.memory(tiny(*FIT))
    parameters = sum(p.numel() for p in build_model(tiny(*FIT).model, device="meta").parameters())
    assert all_of_it - part == 12 * (parameters - 8)


def test_a_pattern_without_a_match_is_refused_with_the_names_there_are(tiny: Compose) -> None:
    with pytest.raises(ConfigError, match=r"'\*\.temprature\.scale' matches no parameter\. Did you mean .*temperature"):
        run.train(tiny(*FIT[:2], "train_only=['*.temprature.scale']").plain)
    with pytest.raises(ConfigError, match="nothing would be trained"):
        tiny("train_only=[]")
    assert trained_names(["a.1.b", "a.2.b", "c"], ["*.b", "c"]) == ["a.1.b", "a.2.b", "c"]
    with pytest.raises(ConfigError, match=r"The parameters are a\.\*\.b, c\."):
        trained_names(["a.1.b", "a.2.b", "c"], ["*.b", "d*"])


def test_it_is_part_of_the_runs_name(tiny: Compose) -> None:
    assert identity.run_name(tiny(*FIT).plain) != identity.run_name(tiny(*FIT[:2]).plain)


def test_a_run_goes_on_with_less_to_train_if_forced_and_not_with_more(tiny: Compose, tmp_path: Path) -> None:
    short = ("eval_at_end=false", "trainer.max_steps=3", f"run_dir={tmp_path}", "resume=force")
    run.train(tiny(*FIT, *short, "trainer.stop_at_step=1").plain)
    with pytest.raises(
        MinillmError, match=r"with another train_only: 26 parameters, such as embed_tokens.* init_from="
    ):
        run.train(tiny(*FIT[:2], *short).plain)
    run.train(tiny(*FIT[:2], "train_only=['layers.1.*.scale']", *short).plain)
    assert set(read(tmp_path)["optimizer"]) == {"layers.1.attention.temperature.scale"}
