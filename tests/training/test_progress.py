"""What is printed while a run trains, without a terminal."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from minillm.training.callbacks import progress


def test_lines_show_step_loss_speed_and_time_left(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    train(tmp_path, "trainer.progress_bar=true", "trainer.max_steps=6", "trainer.val_every=4", "trainer.sample_every=6")
    out = capsys.readouterr().out
    lines = re.findall(
        r"^step (\d)/6  loss \d\.\d{3}  [\d,]+ tokens/s, MFU \d+%, \d+% waiting for data  \d:\d\d:\d\d left$",
        out,
        flags=re.MULTILINE,
    )
    assert lines == ["1", "2", "3", "4", "5", "6"]
    assert re.findall(r"^step (\d): held-out loss \d\.\d{3}, \d\.\d{3} bits per byte$", out, flags=re.MULTILINE) == [
        "4",
        "6",
    ]
    assert len(re.findall(r"^step 6 sample: ", out, flags=re.MULTILINE)) == 1


def test_lines_come_every_few_seconds_and_at_the_end(
    train: Callable[..., Any], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    train(
        tmp_path, "trainer.progress_bar=true", "trainer.max_steps=4", "trainer.val_every=9", "trainer.sample_every=null"
    )
    assert re.findall(r"^step (\d)/4 ", capsys.readouterr().out, flags=re.MULTILINE) == ["1", "4"]


def test_it_can_be_turned_off(train: Callable[..., Any], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    train(tmp_path, "trainer.max_steps=2", "trainer.sample_every=null")
    assert "step" not in capsys.readouterr().out


def test_on_a_terminal_it_is_a_bar(
    train: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    train(
        tmp_path, "trainer.progress_bar=true", "trainer.max_steps=4", "trainer.val_every=9", "trainer.sample_every=null"
    )
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", capsys.readouterr().out)
    assert re.search(r"4/4 ━+ loss \d\.\d{3}  [\d,]+ tokens/s, MFU \d+%, \d+% waiting for data  0:00:00 left", plain)
