"""DDP and FSDP2 on two real processes (gloo): the same run as one process, in one set of files.

One process trains 6 updates. DDP trains the same 6; FSDP begins, stops at 3, and goes on in one process and in DDP's
place: each reads the others' checkpoints. The run clips at a norm that bites, accumulates, meets padding, and its
held-out windows fall unequally to the ranks.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.config.schema import Config
from minillm.data import prepare
from minillm.training.launch import launch
from minillm.training.run_folder import RunFolder

pytestmark = pytest.mark.timeout(600)  # seconds when the processors are free, minutes when they are not

# A learned table, biases and layernorm beside the tied embedding: all kinds of parameters; wandb to be counted.
PLAN = (
    "model=learned",
    "block=gpt2",
    "trainer.max_steps=6",
    "trainer.val_every=3",
    "trainer.checkpoint_every=3",
    "trainer.sample_every=3",
    "trainer.accumulate=2",
    "trainer.keep_checkpoints=null",
    "optim.grad_clip=0.5",
    "logger=wandb",
    "logger.mode=offline",
)
Start = Callable[..., dict[str, float]]


@pytest.fixture(scope="module")
def two_ranks(tiny: Callable[..., Config]) -> Start:
    """Train in two processes, as `train.py trainer=STRATEGY trainer.devices=2` does."""

    def run(run_dir: Path, strategy: str, *more: str, resume_from: Path | None = None) -> dict[str, float]:
        cfg = tiny(*PLAN, f"trainer.strategy={strategy}", "trainer.devices=2", *more)
        folder = RunFolder(run_dir)
        run_dir.mkdir(exist_ok=True)
        folder.write(cfg, prepare(cfg.data, cfg.tokenizer).tokenizer)
        return launch(cfg, folder, resume_from)

    return run


@pytest.fixture(scope="module")
def single(train: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("single")
    train(run_dir, *PLAN, "logger=none", "trainer.accumulate=1")
    return run_dir


@pytest.fixture(scope="module")
def ddp(two_ranks: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir = tmp_path_factory.mktemp("ddp")
    two_ranks(run_dir, "ddp")
    return run_dir


@pytest.fixture(scope="module")
def fsdp(two_ranks: Start, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Stopped at step 3 of 6."""
    run_dir = tmp_path_factory.mktemp("fsdp")
    two_ranks(run_dir, "fsdp", "trainer.stop_at_step=3")
    return run_dir


def saved(run_dir: Path, step: int) -> dict[str, Any]:
    return torch.load(run_dir / f"checkpoints/step-{step}.ckpt", weights_only=True)


def assert_equal_runs(timeless: Callable[..., Any], run_dir: Path, single: Path, steps: int = 6) -> None:
    ours, theirs = timeless(run_dir), timeless(single)[:steps]
    assert [point["step"] for point in ours] == list(range(1, steps + 1))
    for one, other in zip(ours, theirs, strict=True):
        assert one.keys() == other.keys()
        for key, value in other.items():
            assert one[key] == pytest.approx(value, abs=1e-5), (other["step"], key)
    mine, reference = saved(run_dir, steps), saved(single, steps)
    assert mine["state_dict"].keys() == reference["state_dict"].keys()
    for name, weight in reference["state_dict"].items():
        assert torch.allclose(mine["state_dict"][name], weight, atol=1e-4), name
    assert mine["optimizer"].keys() == reference["optimizer"].keys()
    assert (run_dir / "samples.txt").read_text() == "".join(
        (single / "samples.txt").read_text().partition("=== step 6")[: 1 if steps < 6 else 3]
    )


@pytest.mark.bug("B057", "B059", "B066")
def test_ddp_is_the_run_of_one_process(ddp: Path, single: Path, timeless: Callable[..., Any]) -> None:
    assert_equal_runs(timeless, ddp, single)


@pytest.mark.bug("B066", "B068")
def test_fsdp_is_the_run_of_one_process(fsdp: Path, single: Path, timeless: Callable[..., Any]) -> None:
    assert_equal_runs(timeless, fsdp, single, steps=3)


@pytest.mark.bug("B066")
def test_the_clipping_norm_is_that_of_the_whole_gradient(single: Path, fsdp: Path, points: Callable[..., Any]) -> None:
    norms = [point["train/grad_norm"] for point in points(single)]
    assert min(norms) > 0.5, "the limit must bite for this file's comparisons to say anything"
    assert [point["train/grad_norm"] for point in points(fsdp)] == pytest.approx(norms[:3], abs=1e-4)


@pytest.mark.bug("B092")
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_ranks_are_one_wandb_run(strategy: str, request: pytest.FixtureRequest) -> None:
    run_dir: Path = request.getfixturevalue(strategy)
    assert len(list((run_dir / "wandb").glob("offline-run-*"))) == 1
    assert (run_dir / "logs" / "rank-1.log").read_text() == ""


@pytest.mark.bug("B067")
def test_one_process_goes_on_from_an_fsdp_checkpoint(
    train: Start, fsdp: Path, single: Path, tmp_path: Path, timeless: Callable[..., Any]
) -> None:
    shutil.copytree(fsdp, tmp_path, dirs_exist_ok=True)
    train(tmp_path, *PLAN, "logger=none", resume_from=tmp_path / "checkpoints/last.ckpt")
    assert_equal_runs(timeless, tmp_path, single)


@pytest.mark.bug("B067")
@pytest.mark.parametrize(("before", "after"), [("ddp", "fsdp"), ("fsdp", "ddp")])
def test_each_strategy_goes_on_from_the_others_checkpoint(
    two_ranks: Start,
    single: Path,
    tmp_path: Path,
    timeless: Callable[..., Any],
    request: pytest.FixtureRequest,
    before: str,
    after: str,
) -> None:
    shutil.copytree(request.getfixturevalue(before), tmp_path, dirs_exist_ok=True)
    two_ranks(tmp_path, after, "logger=none", resume_from=tmp_path / "checkpoints/step-3.ckpt")
    assert_equal_runs(timeless, tmp_path, single)


@pytest.mark.bug("B068")
def test_the_tied_weight_is_saved_once_and_still_tied(fsdp: Path) -> None:
    from minillm.config.parse import parse_config
    from minillm.model.decoder import build_model

    state = saved(fsdp, 3)
    model = build_model(parse_config(state["config"]).model)
    model.load_state_dict(state["state_dict"])
    assert model.head_weight is model.embed_tokens.weight
    assert "lm_head.weight" not in state["state_dict"]
