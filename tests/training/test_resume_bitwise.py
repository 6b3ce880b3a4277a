"""Stopping and going on changes nothing: bit for bit on one CPU in fp32, wherever the cut falls."""

from __future__ import annotations

import io
import multiprocessing
import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.errors import Interrupted
from minillm.training import checkpoint_io, module
from minillm.training.callbacks.checkpoint import Checkpoints
from minillm.training.callbacks.sample import Samples
from minillm.training.callbacks.validation import Validation
from minillm.training.module import TrainingModule
from minillm.training.run_folder import RunFolder, damage

Train = Callable[..., dict[str, float]]
Points = Callable[[Path], list[dict[str, Any]]]


def newest(run_dir: Path) -> Path | None:
    checkpoint = RunFolder(run_dir).newest_checkpoint()
    return None if checkpoint is None else checkpoint.path


def assert_same_run(timeless: Points, run_dir: Path, straight: Path) -> None:
    """Same losses, rates, norms and validation points at every step, same weights and moments at the last."""
    assert timeless(run_dir) == timeless(straight)
    ours, theirs = (torch.load(folder / "checkpoints/last.ckpt", weights_only=True) for folder in (run_dir, straight))
    assert ours["step"] == theirs["step"]
    for name, weight in theirs["state_dict"].items():
        assert torch.equal(ours["state_dict"][name], weight), name
    for name, moments in theirs["optimizer"].items():
        for kind, value in moments.items():
            assert torch.equal(ours["optimizer"][name][kind], value), (name, kind)
    assert torch.equal(ours["rng"]["torch"], theirs["rng"]["torch"])
    assert (run_dir / "samples.txt").read_text() == (straight / "samples.txt").read_text()


@pytest.fixture(scope="module")
def straight(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 updates in one go: two passes over the tiny corpus, with validations at 5, 10, 15 and 20."""
    run_dir = tmp_path_factory.mktemp("straight")
    train(run_dir)
    return run_dir


@pytest.mark.bug("B074")
def test_the_straight_run_has_each_step_once_and_validates_at_its_steps(straight: Path, timeless: Points) -> None:
    lines = timeless(straight)
    assert [line["step"] for line in lines] == list(range(1, 21))
    assert [line["step"] for line in lines if "val/loss" in line] == [5, 10, 15, 20]
    assert [line["step"] for line in lines if "final/loss" in line] == [20]
    assert len({line["train/loss"] for line in lines}) == 20
    # The padding at the end of the corpus was met, so a pass over the data ended in between.
    assert lines[0]["tokens"] == 8 * 32
    assert lines[-1]["tokens"] < 20 * 8 * 32


@pytest.mark.bug("B047", "B049", "B052")
@pytest.mark.parametrize("workers", [0, 2], ids=lambda n: f"{n} workers")
def test_twenty_steps_are_seven_and_six_and_seven(
    train: Train, timeless: Points, straight: Path, tmp_path: Path, workers: int
) -> None:
    for stop_at in (7, 13, 20):
        plan = (f"trainer.stop_at_step={stop_at}", f"data.num_workers={workers}")
        metrics = train(tmp_path, *plan, resume_from=newest(tmp_path))
        assert metrics["step"] == stop_at
        assert ("final/loss" in metrics) == (stop_at == 20)
    assert_same_run(timeless, tmp_path, straight)


@pytest.mark.bug("B047")
def test_a_run_that_is_already_done_is_left_as_it_is(
    train: Train, straight: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (straight / "checkpoints/last.ckpt").read_bytes()
    metrics = train(straight, resume_from=straight / "checkpoints/last.ckpt")
    assert metrics["step"] == 20
    assert "final/bits_per_byte" in metrics
    assert "Nothing to train" in capsys.readouterr().out
    assert (straight / "checkpoints/last.ckpt").read_bytes() == before


def die(*_: Any, **__: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dies_at_step(method: Any, step: int) -> Any:
    """`method` of a callback, but the process is killed when it is called after update `step`."""

    def act(callback: Any, trainer: Any, training: TrainingModule) -> None:
        if training.step == step:
            die()
        method(callback, trainer, training)

    return act


def in_the_middle_of_an_update(patch: pytest.MonkeyPatch) -> None:
    clip = module.clip_gradients
    calls = iter(range(100))
    patch.setattr(module, "clip_gradients", lambda *a: die() if next(calls) == 11 else clip(*a))


def half_way_through_the_file(patch: pytest.MonkeyPatch) -> None:
    save, calls = torch.save, iter(range(1, 100))

    def save_half(state: Any, file: Any) -> None:
        if next(calls) < 3:
            return save(state, file)
        whole = io.BytesIO()
        save(state, whole)
        file.write(whole.getvalue()[: len(whole.getvalue()) // 2])
        file.flush()
        die()

    patch.setattr(torch, "save", save_half)


def at_the_third_file_operation(name: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Step 15's checkpoint is the third to be written; each write makes two renames: the file, then last.ckpt."""

    def prepare(patch: pytest.MonkeyPatch) -> None:
        original, calls = getattr(checkpoint_io.os, name), iter(range(1, 100))
        last = {"fsync": 5, "replace": 5, "link": 3}[name]

        def call(*args: Any, **kwargs: Any) -> Any:
            in_checkpoints = name == "fsync" or "checkpoints" in str(args[0])
            if in_checkpoints and next(calls) == last:
                die()
            return original(*args, **kwargs)

        patch.setattr(checkpoint_io.os, name, call)

    return prepare


MOMENTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "before any checkpoint": lambda p: p.setattr(Checkpoints, "act", dies_at_step(Checkpoints.act, 3)),
    "in the middle of an update": in_the_middle_of_an_update,
    "between update and validation": lambda p: p.setattr(Validation, "act", dies_at_step(Validation.act, 10)),
    "between metrics line and sample": lambda p: p.setattr(Samples, "act", dies_at_step(Samples.act, 10)),
    "between validation and checkpoint": lambda p: p.setattr(Checkpoints, "act", dies_at_step(Checkpoints.act, 10)),
    "half-way through the checkpoint's file": half_way_through_the_file,
    "while the checkpoint is flushed": at_the_third_file_operation("fsync"),
    "before the checkpoint gets its name": at_the_third_file_operation("replace"),
    "before last.ckpt points at it": at_the_third_file_operation("link"),
}


@pytest.mark.bug("B073", "B094")
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_run_goes_on_as_if_nothing_had_been(
    train: Train, timeless: Points, straight: Path, tmp_path: Path, moment: str
) -> None:
    def doomed() -> None:
        with pytest.MonkeyPatch.context() as patch:
            MOMENTS[moment](patch)
            train(tmp_path)

    # A fork, because a new interpreter would spend seconds on imports.
    child = multiprocessing.get_context("fork").Process(target=doomed)
    child.start()
    child.join(60)
    assert child.exitcode == -signal.SIGKILL
    assert [damage(path) for path in (tmp_path / "checkpoints").glob("[!.]*") if damage(path)] == []
    done_before = len(timeless(tmp_path))
    resume_from = newest(tmp_path)
    assert (resume_from is None) == (moment == "before any checkpoint")
    # Step 15's file, which the kill may have cut short, is not written a second time.
    train(tmp_path, "trainer.checkpoint_every=20", resume_from=resume_from)
    assert done_before < 20
    assert_same_run(timeless, tmp_path, straight)
    assert not list((tmp_path / "checkpoints").glob(".*")), "a half-written file was left"


@pytest.mark.bug("B073")
@pytest.mark.parametrize(
    ("signum", "where", "call", "stops_at"),
    [
        pytest.param(signal.SIGINT, (module, "clip_gradients"), 7, 7, id="Ctrl-C in the middle of an update"),
        pytest.param(signal.SIGTERM, (module, "clip_gradients"), 7, 7, id="SIGTERM in the middle of an update"),
        pytest.param(signal.SIGTERM, (checkpoint_io, "_point_last_at"), 1, 6, id="SIGTERM while a checkpoint is saved"),
    ],
)
def test_a_signal_leaves_a_checkpoint_of_the_update_in_progress(
    train: Train,
    timeless: Points,
    straight: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    signum: int,
    where: tuple[Any, str],
    call: int,
    stops_at: int,
) -> None:
    original, calls = getattr(*where), iter(range(1, 100))

    def with_signal(*args: Any) -> Any:
        if next(calls) == call:
            os.kill(os.getpid(), signum)
        return original(*args)

    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    monkeypatch.setattr(*where, with_signal)
    with pytest.raises(Interrupted) as stop:
        train(tmp_path)
    assert stop.value.exit_code == 128 + signum
    assert {number: signal.getsignal(number) for number in before} == before
    assert newest(tmp_path) == tmp_path / "checkpoints" / f"step-{stops_at}.ckpt"
    assert len(timeless(tmp_path)) == stops_at
    train(tmp_path, resume_from=newest(tmp_path))
    assert_same_run(timeless, tmp_path, straight)


@pytest.mark.bug("B073")
@pytest.mark.parametrize("step", [10, 20], ids=["at an interval", "at the end"])
def test_a_signal_during_validation_is_not_kept_waiting_and_loses_no_point(
    train: Train, timeless: Points, straight: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int
) -> None:
    loss_sum = TrainingModule.loss_sum
    seen = []

    def loss_and_signal(training: TrainingModule, *batch: torch.Tensor) -> torch.Tensor:
        if training.step == step and not training.decoder.training:
            seen.append(step)
            os.kill(os.getpid(), signal.SIGTERM)
        return loss_sum(training, *batch)

    monkeypatch.setattr(TrainingModule, "loss_sum", loss_and_signal)
    with pytest.raises(Interrupted):
        train(tmp_path)
    assert seen == [step], "the rest of the validation was not waited for"
    assert newest(tmp_path) == tmp_path / "checkpoints" / f"step-{step}.ckpt"
    assert [line["step"] for line in timeless(tmp_path)] == list(range(1, step))
    monkeypatch.setattr(TrainingModule, "loss_sum", loss_sum)
    assert train(tmp_path, resume_from=newest(tmp_path))["step"] == 20
    assert_same_run(timeless, tmp_path, straight)


def test_random_draws_go_on_after_a_resume(train: Train, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing in the model draws from the global generators today; dropout would."""
    loss_sum = TrainingModule.loss_sum
    drawn: list[tuple[float, float]] = []

    def noisy(training: TrainingModule, *batch: torch.Tensor) -> torch.Tensor:
        drawn.append((torch.rand(()).item(), random.random()))
        return loss_sum(training, *batch)

    monkeypatch.setattr(TrainingModule, "loss_sum", noisy)
    train(tmp_path / "straight", "trainer.max_steps=4", "trainer.val_every=9", "trainer.stop_at_step=3")
    straight, drawn = drawn, []
    plan = ("trainer.max_steps=4", "trainer.val_every=9")
    train(tmp_path / "parts", *plan, "trainer.stop_at_step=2")
    train(tmp_path / "parts", *plan, "trainer.stop_at_step=3", resume_from=newest(tmp_path / "parts"))
    assert drawn == straight
    assert len(set(straight)) == 3
