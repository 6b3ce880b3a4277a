"""metrics.jsonl has each measured step once; samples.txt each sample once."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm.errors import MinillmError
from minillm.training.callbacks import metrics_file, sample
from minillm.training.callbacks.base import append

KEYS = {
    "step",
    "tokens",
    "time",
    "train/loss",
    "train/lr",
    "train/grad_norm",
    "train/tokens_per_second",
    "train/mfu",
    "train/data_wait",
}


def write(path: Path, steps: list[int], tail: str = "") -> None:
    path.write_text("".join(json.dumps({"step": step}) + "\n" for step in steps) + tail)


@pytest.mark.bug("B094")
@pytest.mark.parametrize("step", [0, 2, 3, 9])
def test_going_back_drops_the_lines_after_the_step(tmp_path: Path, step: int) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2, 3, 4])
    metrics_file.keep_up_to(path, step)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [
        s for s in (1, 2, 3, 4) if s <= step
    ]


def test_a_line_cut_short_by_a_kill_is_dropped(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write(path, [1, 2], tail='{"step": 3, "train/lo')
    metrics_file.keep_up_to(path, 5)
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2]


def test_going_back_without_a_file_makes_none(tmp_path: Path) -> None:
    metrics_file.keep_up_to(tmp_path / "metrics.jsonl", 5)
    sample.keep_up_to(tmp_path / "samples.txt", 5)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("step", "left"), [(5, []), (10, [10]), (15, [10]), (20, [10, 20])])
def test_going_back_drops_the_samples_after_the_step(tmp_path: Path, step: int, left: list[int]) -> None:
    path = tmp_path / "samples.txt"
    blocks = {at: f"{sample.HEADER.format(at)}\nsome text\nof {at}\n\n" for at in (10, 20)}
    path.write_text("".join(blocks.values()))
    sample.keep_up_to(path, step)
    assert path.read_text() == "".join(blocks[at] for at in left)


@pytest.mark.bug("B093")
def test_sparse_logging_keeps_every_validation_and_the_end(
    train: Callable[..., Any], points: Callable[..., Any], tmp_path: Path
) -> None:
    metrics = train(
        tmp_path, "trainer.max_steps=8", "trainer.log_every=3", "trainer.val_every=5", "trainer.accumulate=4"
    )
    lines = points(tmp_path)
    assert [line["step"] for line in lines] == [3, 5, 6, 8]
    validated = {"val/loss", "val/bits_per_byte"}
    final = {"final/loss", "final/bits_per_byte"}
    assert [line.keys() - KEYS for line in lines] == [set(), validated, set(), final]
    assert all(line.keys() >= KEYS for line in lines)
    times = [line["time"] for line in lines]
    assert times == sorted(times)
    assert metrics == lines[-1]


def test_samples_are_made_at_their_steps_and_at_the_end(train: Callable[..., Any], tmp_path: Path) -> None:
    train(tmp_path, "trainer.max_steps=5", "trainer.sample_every=2", "trainer.sample_prompt=that is")
    text = (tmp_path / "samples.txt").read_text()
    assert [line for line in text.splitlines() if line.startswith("===")] == [
        sample.HEADER.format(step) for step in (2, 4, 5)
    ]
    assert text.count("\nthat is") == 3


def test_samples_can_be_turned_off(train: Callable[..., Any], tmp_path: Path) -> None:
    train(tmp_path, "trainer.max_steps=2", "trainer.sample_every=null")
    assert not (tmp_path / "samples.txt").exists()


def test_a_full_disk_is_an_error_that_names_the_file_and_the_remedy() -> None:
    with pytest.raises(MinillmError, match=r"/dev/full could not be written: No space left on device.* make room"):
        append(Path("/dev/full"), "a line\n")
