"""wandb, TensorBoard and CSV show what metrics.jsonl has, and their absence changes nothing."""

from __future__ import annotations

import builtins
import csv
import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.config.schema import LoggerConfig
from minillm.errors import ConfigError, Interrupted
from minillm.training import loggers
from minillm.training.guard import TrainingDiverged
from minillm.training.module import TrainingModule

OFFLINE = (
    "logger=wandb",
    "logger.mode=offline",
    "trainer.max_steps=4",
    "trainer.val_every=2",
    "trainer.sample_every=2",
)


def records(run_dir: Path) -> list[Any]:
    """Everything in the run's wandb file, whose last records its service writes after `finish` has returned."""
    (path,) = (run_dir / "wandb").glob("offline-run-*/*.wandb")
    for _ in range(100):
        found = parse(path.read_bytes())
        if any(record.WhichOneof("record_type") == "exit" for record in found):
            return found
        time.sleep(0.2)
    raise AssertionError(f"{path} has no exit record")


def parse(data: bytes) -> list[Any]:
    """Protocol buffers in LevelDB's log format, after a header of 7 bytes."""
    from wandb.proto import wandb_internal_pb2

    at, found, pieces = 7, [], b""
    while at + 7 <= len(data):
        left_in_block = 32768 - at % 32768
        if left_in_block < 7:
            at += left_in_block
            continue
        length, part = int.from_bytes(data[at + 4 : at + 6], "little"), data[at + 6]
        pieces += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # whole, or the last piece
            record = wandb_internal_pb2.Record()
            record.ParseFromString(pieces)
            found.append(record)
            pieces = b""
    return found


def of_kind(run_dir: Path, kind: str) -> list[Any]:
    return [getattr(record, kind) for record in records(run_dir) if record.WhichOneof("record_type") == kind]


def history(run_dir: Path) -> list[dict[str, float]]:
    """What was logged, row by row, without wandb's own columns."""
    rows = [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in row.item}
        for row in of_kind(run_dir, "history")
    ]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in rows]


@pytest.mark.bug("B056", "B092", "B093", "B096")
def test_one_offline_run_holds_every_point_and_the_nested_configuration(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(tmp_path, *OFFLINE, "trainer.accumulate=4")
    lines, rows = points(tmp_path), history(tmp_path)
    assert [row["trainer/global_step"] for row in rows] == [1, 2, 3, 4]
    for line, row in zip(lines, rows, strict=True):
        assert {key: row[key] for key in line} == pytest.approx(line)
    assert sum("val/loss" in row for row in rows) == 2
    assert "monotonic" not in "".join(capfd.readouterr()).lower()
    assert {metric.step_metric for metric in of_kind(tmp_path, "metric")} >= {"trainer/global_step"}
    stored = {item.key: json.loads(item.value_json) for item in of_kind(tmp_path, "run")[0].config.update}
    assert stored["layer_table"][1]["window"] == 4
    assert stored["model"]["layers"]["kinds"]["local"]["window"] == 4
    assert stored["optim"]["lr"] == 0.01
    assert [ended.exit_code for ended in of_kind(tmp_path, "exit")] == [0]


@pytest.mark.bug("B091")
@pytest.mark.parametrize("how", ["error", "signal"])
def test_a_run_that_failed_is_not_shown_as_finished(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    def fail(*_: Any) -> Any:
        if how == "error":
            raise TrainingDiverged("as if")
        os.kill(os.getpid(), signal.SIGTERM)
        return torch.zeros((), requires_grad=True)

    monkeypatch.setattr(TrainingModule, "loss_sum", fail)
    with pytest.raises((TrainingDiverged, Interrupted)):
        train(tmp_path, *OFFLINE, "optim.grad_clip=null")
    assert [ended.exit_code for ended in of_kind(tmp_path, "exit")] == [1 if how == "error" else 143]


@pytest.mark.bug("B097")
@pytest.mark.parametrize("missing", ["package", "network", "mode"])
def test_a_run_without_wandb_is_the_same_run(
    train: Callable[..., Any],
    timeless: Callable[..., Any],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    missing: str,
) -> None:
    train(tmp_path / "reference", "trainer.max_steps=2", "logger=none")
    import wandb

    if missing == "package":
        find = builtins.__import__

        def no_wandb(name: str, *rest: Any, **more: Any) -> Any:
            if name == "wandb":
                raise ImportError("No module named 'wandb'")
            return find(name, *rest, **more)

        monkeypatch.setattr(builtins, "__import__", no_wandb)
    elif missing == "network":

        def unreachable(**_: Any) -> None:
            raise wandb.errors.CommError("Run initialization has timed out")

        monkeypatch.setattr(wandb, "init", unreachable)
    mode = "disabled" if missing == "mode" else "online"
    capsys.readouterr()
    train(tmp_path / "run", "trainer.max_steps=2", "logger=wandb", f"logger.mode={mode}")
    assert timeless(tmp_path / "run") == timeless(tmp_path / "reference")
    assert not (tmp_path / "run" / "wandb").exists()
    said = capsys.readouterr().out
    assert ("metrics.jsonl has everything" in said) == (missing != "mode")


@pytest.mark.bug("B094", "B095")
def test_a_resumed_offline_run_is_a_second_run_of_its_group(train: Callable[..., Any], tmp_path: Path) -> None:
    train(tmp_path, *OFFLINE, "trainer.stop_at_step=2")
    first = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["wandb_id"]
    train(tmp_path, *OFFLINE, resume_from=tmp_path / "checkpoints/last.ckpt")
    second = torch.load(tmp_path / "checkpoints/last.ckpt", weights_only=True)["wandb_id"]
    # `wandb sync` of a second folder with the first one's id would replace what the first had.
    assert first != second
    folders = [path.name for path in (tmp_path / "wandb").glob("offline-run-*")]
    assert sorted(name.rpartition("-")[2] for name in folders) == sorted([first, second])


@pytest.mark.parametrize(
    ("mode", "variables", "expected"),
    [
        ("auto", {}, "offline"),
        ("auto", {"WANDB_API_KEY": "k" * 40}, "online"),
        ("auto", {"WANDB_API_KEY": "k" * 40, "WANDB_MODE": "offline"}, "offline"),
        ("auto", {"WANDB_MODE": "disabled"}, "disabled"),
        ("offline", {"WANDB_API_KEY": "k" * 40}, "offline"),
        ("disabled", {}, "disabled"),
    ],
)
def test_the_mode_follows_the_key(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, mode: Any, variables: dict[str, str], expected: str
) -> None:
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert loggers._mode(LoggerConfig("wandb", mode=mode)) == expected


def test_a_key_in_netrc_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert loggers._mode(LoggerConfig("wandb")) == "online"


def test_csv_holds_every_point(train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path) -> None:
    train(tmp_path, "logger=csv", "trainer.max_steps=4", "trainer.val_every=2")
    with open(tmp_path / "csv" / "from-step-0" / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    lines = points(tmp_path)
    assert [int(float(row["step"])) for row in rows] == [1, 2, 3, 4]
    assert [float(row["train/loss"]) for row in rows] == [line["train/loss"] for line in lines]
    assert [row["val/loss"] != "" for row in rows] == [False, True, False, True]


def test_tensorboard_holds_every_point(train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    train(tmp_path, "logger=tensorboard", "trainer.max_steps=4", "trainer.val_every=2")
    events = accumulator.EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    shown = [(event.step, event.value) for event in events.Scalars("train/loss")]
    assert shown == [(line["step"], pytest.approx(line["train/loss"])) for line in points(tmp_path)]
    assert [event.step for event in events.Scalars("val/loss")] == [2, 4]


def test_a_missing_tensorboard_is_refused_with_what_to_do(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: Any, **__: Any) -> None:
        raise ModuleNotFoundError("Neither `tensorboard` nor `tensorboardX` is available.")

    monkeypatch.setattr(loggers, "TensorBoardLogger", missing)
    with pytest.raises(ConfigError, match=r"logger=tensorboard: .*pip install tensorboard"):
        train(tmp_path, "logger=tensorboard")
