"""What lies in a run folder, who may write there, and which checkpoint a run goes on from."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import yaml

from minillm.config.parse import parse_config
from minillm.config.schema import Config
from minillm.errors import MinillmError
from minillm.training import run_folder
from minillm.training.run_folder import Checkpoint, RunFolder

Compose = Callable[..., Config]


class FakeTokenizer:
    def save(self, path: Path) -> None:
        path.write_text("{}")


def checkpoint(folder: RunFolder, name: str, step: int) -> Path:
    folder.checkpoints.mkdir(parents=True, exist_ok=True)
    path = folder.checkpoints / name
    torch.save({"step": step, "weights": torch.arange(1000.0)}, path)
    return path


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(tmp_path / "run")


def names(folder: RunFolder) -> list[str]:
    return sorted(p.name for p in folder.path.iterdir() if p.name != ".lock")


@pytest.mark.bug("B064")
@pytest.mark.bug("B096")
def test_config_yaml_is_resolved_nested_and_builds_the_same_run_alone(tiny: Compose, folder: RunFolder) -> None:
    cfg = tiny("model.layers.kinds.local.window=7", "data.seq_len=16", "run_dir=x")
    with folder.lock():
        folder.write(cfg, FakeTokenizer())
    text = folder.config.read_text()
    assert "${" not in text
    assert yaml.safe_load(text)["model"]["layers"]["kinds"]["local"]["window"] == 7
    assert parse_config(folder.read_config()) == cfg
    assert names(folder) == ["config.yaml", "layers.json", "tokenizer.json"]
    assert [layer["window"] for layer in json.loads(folder.layers.read_text())["layers"]] == [7, 7, 7, None]


@pytest.mark.bug("B088")
def test_numbers_in_config_yaml_are_numbers_for_every_yaml_reader(tiny: Compose, folder: RunFolder) -> None:
    with folder.lock():
        folder.write(tiny("optim.lr=1e-4", "optim.eps=1e-10"), FakeTokenizer())
    optim = yaml.safe_load(folder.config.read_text())["optim"]
    assert optim["lr"] == 1e-4
    assert optim["eps"] == 1e-10


def test_braces_and_dollars_in_a_prompt_come_back_as_they_were(tiny: Compose, folder: RunFolder) -> None:
    cfg = tiny(r"trainer.sample_prompt='\${x} \${'")
    with folder.lock():
        folder.write(cfg, FakeTokenizer())
    assert parse_config(folder.read_config()).trainer.sample_prompt == cfg.trainer.sample_prompt == "${x} ${"


@pytest.mark.bug("B082")
def test_a_second_process_is_refused_and_told_who_trains(folder: RunFolder) -> None:
    with folder.lock(), pytest.raises(MinillmError, match=f"process {os.getpid()} on "), RunFolder(folder.path).lock():
        pass
    with folder.lock():
        pass


def test_a_folder_of_something_else_is_left_alone(folder: RunFolder) -> None:
    folder.path.mkdir()
    (folder.path / "thesis.tex").write_text("years")
    with pytest.raises(MinillmError, match="holds no run"):
        folder.holds_a_run()
    assert names(folder) == ["thesis.tex"]


def test_a_file_in_the_place_of_the_folder_is_an_error(folder: RunFolder) -> None:
    folder.path.write_text("a file")
    with pytest.raises(MinillmError, match="is a file"):
        folder.holds_a_run()


@pytest.mark.parametrize("left", ["error.txt", "tokenizer.json", "layers.json", ".tokenizer.json.123", "starts.jsonl"])
def test_what_a_killed_start_left_behind_is_no_run_and_no_obstacle(folder: RunFolder, left: str) -> None:
    folder.path.mkdir()
    (folder.path / left).write_text("")
    assert not folder.holds_a_run()


def test_without_checkpoints_there_is_no_newest_one(folder: RunFolder) -> None:
    assert folder.newest_checkpoint() is None
    folder.checkpoints.mkdir(parents=True)
    assert folder.newest_checkpoint() is None


@pytest.mark.bug("B072")
def test_the_highest_step_is_the_newest_whatever_was_written_last(folder: RunFolder) -> None:
    for step in (10, 9, 2):
        path = checkpoint(folder, f"step-{step}.ckpt", step)
    os.link(path, folder.checkpoints / "last.ckpt")
    assert folder.newest_checkpoint() == Checkpoint(10, folder.checkpoints / "step-10.ckpt")


@pytest.mark.bug("B072")
def test_last_is_taken_where_its_step_has_no_file_of_its_own(folder: RunFolder) -> None:
    checkpoint(folder, "step-5.ckpt", 5)
    last = checkpoint(folder, "last.ckpt", 7)
    assert folder.newest_checkpoint() == Checkpoint(7, last)


@pytest.mark.bug("B073")
@pytest.mark.parametrize("name", [".writing-step-9.ckpt", "step-9.ckpt.tmp", "step-9-v1.ckpt", "step-x.ckpt"])
def test_other_files_are_never_taken_for_checkpoints(folder: RunFolder, name: str) -> None:
    good = checkpoint(folder, "step-5.ckpt", 5)
    checkpoint(folder, name, 9)
    assert folder.newest_checkpoint() == Checkpoint(5, good)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.bug("B073")
@pytest.mark.parametrize("harm", [cut_short, flipped, emptied])
@pytest.mark.parametrize("last_is", ["a link", "a copy"])
def test_a_damaged_checkpoint_is_passed_over_and_that_is_said(
    folder: RunFolder, harm: Callable[[Path], None], last_is: str
) -> None:
    good, bad = checkpoint(folder, "step-5.ckpt", 5), checkpoint(folder, "step-9.ckpt", 9)
    last = folder.checkpoints / "last.ckpt"
    if last_is == "a link":
        os.link(bad, last)
        content = bad.stat().st_ino
        harm(bad)
        assert last.stat().st_ino == content
    else:
        harm(bad)
        last.write_bytes(bad.read_bytes())
    said: list[str] = []
    assert folder.newest_checkpoint(said.append) == Checkpoint(5, good)
    assert any("step-9.ckpt is damaged" in line for line in said)
    assert said[-1] == f"Using the checkpoint before it: {good} (step 5)."


def test_a_damaged_last_next_to_its_sound_original_costs_nothing(folder: RunFolder) -> None:
    good = checkpoint(folder, "step-5.ckpt", 5)
    (folder.checkpoints / "last.ckpt").write_bytes(good.read_bytes()[:100])
    assert folder.newest_checkpoint() == Checkpoint(5, good)


def test_when_no_checkpoint_can_be_read_nothing_is_started_over(folder: RunFolder) -> None:
    cut_short(checkpoint(folder, "step-5.ckpt", 5))
    with pytest.raises(MinillmError, match="delete that folder"):
        folder.newest_checkpoint()


@pytest.mark.parametrize(("step", "max_steps", "complete"), [(6, 6, True), (5, 6, False), (6, 7, False)])
def test_a_run_is_complete_when_all_its_steps_are_done(
    folder: RunFolder, step: int, max_steps: int, complete: bool
) -> None:
    folder.path.mkdir()
    assert not folder.complete(max_steps)
    folder.write_result({"step": step, "final/loss": 1.5}, min(max_steps, 6), xz_bits_per_byte=2.0)
    assert folder.complete(max_steps) == complete


def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("old")

    def full(handle: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(run_folder.os, "fsync", full)
    with pytest.raises(MinillmError, match=r"config\.yaml cannot be written: No space left"):
        run_folder.write_atomically(path, "new")
    assert [p.name for p in tmp_path.iterdir()] == ["config.yaml"]
    assert path.read_text() == "old"
