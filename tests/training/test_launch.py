"""Processes of a run: who may start, how they end together, and that nothing of them is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from minillm.config.schema import Config
from minillm.data import prepare
from minillm.errors import ConfigError, Interrupted, MinillmError
from minillm.training import launch, run
from minillm.training.launch import RankError, Ranks
from minillm.training.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
Compose = Callable[..., Config]
Points = Callable[[Path], list[dict[str, Any]]]
TWO = ("trainer.strategy=ddp", "trainer.devices=2", "eval_at_end=false")


@pytest.mark.parametrize(
    ("asked", "ranks", "in_sweep", "word"),
    [
        (["trainer.accelerator=gpu"], None, False, "trainer.accelerator"),
        ([*TWO, "trainer.num_nodes=2"], None, False, "torchrun --nnodes=2 --nproc-per-node=2"),
        ([], Ranks(0, 2), False, "torchrun started 2 processes"),
        ([*TWO], Ranks(1, 4), False, "torchrun started 4 processes"),
        ([*TWO], Ranks(0, 2), True, "multirun"),
    ],
)
def test_what_cannot_be_started_here_is_refused(
    tiny: Compose, asked: list[str], ranks: Ranks | None, in_sweep: bool, word: str
) -> None:
    with pytest.raises(ConfigError, match=word):
        launch.check(tiny(*asked), ranks, in_sweep)


def test_more_devices_than_gpus_are_refused_on_a_gpu_machine_only(
    tiny: Compose, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch.check(tiny(*TWO, "trainer.accelerator=auto"), None, False)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    launch.check(tiny(*TWO, "trainer.accelerator=cpu"), None, False)
    with pytest.raises(ConfigError, match="this machine has 1 GPU"):
        launch.check(tiny(*TWO, "trainer.accelerator=auto"), None, False)


CRASHED = {"rank": 1, "traceback": "Traceback: ZeroDivisionError"}


@pytest.mark.parametrize(
    ("reports", "failure", "expected", "words"),
    [
        (
            [CRASHED, {"rank": 0, "user_error": "The loss is nan."}],
            "rank 1 ...",
            MinillmError,
            "The loss is nan.",
        ),
        ([{"rank": 0, "signum": 15}, CRASHED], "rank 1 ...", Interrupted, "SIGTERM"),
        ([CRASHED], "rank 1 ...", RankError, "rank 1 crashed:\nTraceback: ZeroDivisionError"),
        ([], "rank 1 was killed", RankError, "rank 1 was killed"),
    ],
    ids=["the user can mend it", "a rank was told to stop", "a bug", "no word"],
)
def test_the_report_that_explains_best_is_raised(
    reports: list[dict[str, Any]], failure: str, expected: type[BaseException], words: str
) -> None:
    with pytest.raises(expected) as raised:
        launch._outcome(reports, failure)
    assert words in str(raised.value)


def test_a_killed_rank_is_described_with_the_likely_reason(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert "memory ran out" in launch._describe(0, -9, folder)
    assert str(tmp_path / "logs" / "rank-3.log") in launch._describe(3, -11, folder)
    assert "SIGSEGV" in launch._describe(3, -11, folder)


@pytest.mark.bug("B062")
@pytest.mark.bug("B092")
def test_two_processes_train_as_one_and_leave_nothing_in_this_one(
    tiny: Compose, tmp_path: Path, points: Points, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    prepare(tiny().data, tiny().tokenizer)  # the libraries that it imports set variables of their own
    others = psutil.Process().children(recursive=True)  # wandb's service, where a test before this one used it
    before = dict(os.environ), [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    wandb = ("logger=wandb", "logger.mode=offline", "trainer.max_steps=4")
    returned = run.train(tiny("run_dir=two", *TWO, *wandb).plain)
    assert (dict(os.environ), [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]) == before
    left = [process for process in psutil.Process().children(recursive=True) if process not in others]
    assert psutil.wait_procs(left, timeout=30)[1] == []

    run.train(tiny("run_dir=one", "eval_at_end=false", "trainer.max_steps=4").plain)
    one, two = points(tmp_path / "one"), points(tmp_path / "two")
    assert [p["step"] for p in two] == [1, 2, 3, 4]
    assert [p["train/loss"] for p in two] == pytest.approx([p["train/loss"] for p in one], abs=1e-5)
    assert returned == two[-1]["final/loss"] == pytest.approx(one[-1]["final/loss"], abs=1e-5)
    assert len(list((tmp_path / "two").glob("wandb/*run-*"))) == 1
    assert (tmp_path / "two" / "logs" / "rank-1.log").exists()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `python train.py` with these arguments in tmp_path; whatever the test leaves running is killed."""
    programs: list[subprocess.Popen[str]] = []

    def program(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, str(ROOT / "train.py"), *arguments]
        programs.append(
            subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
        return programs[-1]

    yield program
    for left in (*programs, *processes_of(tmp_path / "run")):
        left.kill()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Ranks that work on `folder`, wherever they hang in the process tree."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        line = process.info["cmdline"] or []
        if "minillm.training.rank" in line and str(folder) in line and process.info["status"] != "zombie":
            found.append(process)
    return found


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s for {what}"
        time.sleep(0.1)


def lines(path: Path) -> int:
    return len(path.read_text().splitlines()) if path.exists() else 0


@pytest.mark.bug("B073")
@pytest.mark.timeout(400)
def test_sigterm_saves_and_sigkill_leaves_no_rank_alive(
    start: Callable[..., subprocess.Popen[str]], overrides: list[str], tmp_path: Path, points: Points
) -> None:
    folder = tmp_path / "run"
    endless = ["trainer.max_steps=100000", "trainer.val_every=100000", "trainer.sample_every=null"]
    arguments = [*overrides, *TWO, *endless, f"run_dir={folder}"]
    program = start(*arguments)
    wait_until(lambda: lines(folder / "metrics.jsonl") >= 3, 150, "three steps")
    program.send_signal(signal.SIGTERM)
    out, _ = program.communicate(timeout=60)
    assert program.returncode == 143, out
    assert "Run stopped by SIGTERM. The same command goes on" in out
    assert "Traceback" not in out
    assert processes_of(folder) == []
    saved = RunFolder(folder).newest_checkpoint()
    assert saved is not None
    assert saved.step == points(folder)[-1]["step"], "every update made is in the checkpoint"

    program = start(*arguments)
    wait_until(lambda: lines(folder / "metrics.jsonl") >= saved.step + 3, 150, "three more steps")
    assert len(processes_of(folder)) == 2
    second = start(*arguments)
    out, _ = second.communicate(timeout=150)
    assert second.returncode == 2
    assert f"is being trained by process {program.pid}" in out
    program.kill()
    program.communicate(timeout=10)
    wait_until(lambda: processes_of(folder) == [], 10, "the ranks to die with their parent")
    with RunFolder(folder).lock():
        assert [p["step"] for p in points(folder)] == list(range(1, len(points(folder)) + 1))


def test_under_torchrun_the_program_is_a_rank(overrides: list[str], tmp_path: Path, points: Points) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    arguments = [*overrides, *TWO, "trainer.max_steps=2", "trainer.val_every=2"]
    done = subprocess.run(
        [*torchrun, str(ROOT / "train.py"), *arguments, "run_dir=x"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("validation loss") == 1, "one rank speaks"
    assert [p["step"] for p in points(tmp_path / "x")] == [1, 2]
    assert json.loads((tmp_path / "x" / "result.json").read_text())["complete"] is True
