"""Checkpoint files are whole or absent, are named after the step inside, and hold plain values only."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.errors import MinillmError
from minillm.training import checkpoint_io
from minillm.training.checkpoint_io import read_checkpoint, remove_unfinished, write_checkpoint


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def state(step: int, values: int = 10) -> dict[str, Any]:
    return {"step": step, "state_dict": {"weight": torch.full((values,), float(step))}}


@pytest.mark.bug("B072")
def test_last_is_the_newest_file_and_no_link_that_can_dangle(tmp_path: Path) -> None:
    for step in (5, 10):
        write_checkpoint(tmp_path, state(step), keep=None)
    assert names(tmp_path) == ["last.ckpt", "step-10.ckpt", "step-5.ckpt"]
    last = tmp_path / "last.ckpt"
    assert not last.is_symlink()
    (tmp_path / "step-10.ckpt").unlink()
    assert read_checkpoint(last)["step"] == 10


def test_without_hard_links_last_is_a_copy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def no_links(*_: Any) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", no_links)
    write_checkpoint(tmp_path, state(5), keep=2)
    assert read_checkpoint(tmp_path / "last.ckpt")["step"] == 5


@pytest.mark.parametrize(("keep", "left"), [(1, [15]), (2, [10, 15]), (None, [5, 10, 15])], ids=["1", "2", "all"])
def test_only_the_newest_are_kept(tmp_path: Path, keep: int | None, left: list[int]) -> None:
    for step in (5, 10, 15):
        write_checkpoint(tmp_path, state(step), keep)
    assert names(tmp_path) == ["last.ckpt", *sorted(f"step-{step}.ckpt" for step in left)]


def test_a_later_damaged_file_does_not_push_out_the_one_being_written(tmp_path: Path) -> None:
    (tmp_path / "step-20.ckpt").write_bytes(b"cut short")
    write_checkpoint(tmp_path, state(12), keep=1)
    assert read_checkpoint(tmp_path / "step-12.ckpt")["step"] == 12


@pytest.mark.parametrize("where", ["the checkpoint", "the copy for last.ckpt"])
def test_a_full_disk_leaves_the_last_good_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, where: str
) -> None:
    write_checkpoint(tmp_path, state(5), keep=2)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    if where == "the checkpoint":
        # The real thing: the kernel refuses to let the file grow.
        limit, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    else:

        def full(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(checkpoint_io, "_point_last_at", full)
    try:
        with pytest.raises(
            MinillmError, match=r"step 10 could not be written .* last good checkpoint is step-\d+\.ckpt"
        ):
            write_checkpoint(tmp_path, state(10, values=100_000), keep=2)
    finally:
        if where == "the checkpoint":
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    assert {name: (tmp_path / name).read_bytes() for name in before} == before
    assert not [name for name in names(tmp_path) if name.startswith(".")]


@pytest.mark.parametrize("length", [0, 100, -1], ids=["empty", "beginning", "all but a byte"])
def test_a_file_cut_short_is_refused_by_name(tmp_path: Path, length: int) -> None:
    path = write_checkpoint(tmp_path, state(5), keep=2)
    path.write_bytes(path.read_bytes()[:length])
    with pytest.raises(MinillmError, match=r"step-5\.ckpt cannot be read"):
        read_checkpoint(path)


def test_a_missing_file_and_a_stranger_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(MinillmError, match=r"no checkpoint .*gone\.ckpt"):
        read_checkpoint(tmp_path / "gone.ckpt")
    torch.save({"weights": 1}, tmp_path / "other.ckpt")
    with pytest.raises(MinillmError, match=r"other\.ckpt is not a checkpoint of minillm"):
        read_checkpoint(tmp_path / "other.ckpt")
    torch.save({"format": 99}, tmp_path / "newer.ckpt")
    with pytest.raises(MinillmError, match="format 99; this version of minillm reads 1"):
        read_checkpoint(tmp_path / "newer.ckpt")


def test_what_a_killed_process_was_writing_is_removed(tmp_path: Path) -> None:
    write_checkpoint(tmp_path, state(5), keep=2)
    (tmp_path / ".writing-step-10.ckpt").write_bytes(b"half")
    remove_unfinished(tmp_path)
    assert names(tmp_path) == ["last.ckpt", "step-5.ckpt"]


PLAIN = (dict, list, tuple, str, int, float, bool, type(None), torch.Tensor)


def strangers(value: Any, where: str = "") -> list[str]:
    """Where a nested value is not of exactly the plain types: subclasses need code to be read again."""
    found = [] if type(value) in PLAIN else [f"{where}: {type(value)}"]
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, (list, tuple)) else ()
    )
    for key, child in children:
        found += strangers(child, f"{where}.{key}")
    return found


@pytest.mark.bug("B064", "B089")
def test_a_run_saves_plain_values_under_plain_names(train: Callable[..., Any], tmp_path: Path) -> None:
    train(tmp_path, "trainer.stop_at_step=2", "model=gemma3")
    saved = torch.load(tmp_path / "checkpoints" / "step-2.ckpt", weights_only=True)
    assert strangers(saved) == []
    assert saved["step"] == 2
    from minillm.config.parse import parse_config
    from minillm.data.tokenizer import Tokenizer
    from minillm.model.decoder import build_model

    # All that a model needs is inside: no file, no Hydra, no interpolation left.
    cfg = parse_config(saved["config"])
    model = build_model(cfg.model)
    assert saved["state_dict"].keys() == model.state_dict().keys()
    model.load_state_dict(saved["state_dict"])
    assert Tokenizer.from_json(saved["tokenizer"]).vocab_size == cfg.model.vocab_size
    assert [layer["kind"] for layer in saved["layers"]] == [spec.kind for spec in model.layer_specs]
