"""Checkpoint files: whole or not there at all, plain values only, one consolidated file.

    checkpoints/step-120.ckpt    N is the number of updates inside
    checkpoints/last.ckpt        the newest of them (a hard link, a copy where links are impossible)

A file is written under a name that no reader looks for, flushed to the disk and renamed; so a kill at any moment
leaves the old files as they were. `torch.load(weights_only=True)` reads it: tensors, numbers, text, lists, mappings.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import torch

from minillm.errors import MinillmError

FORMAT = 1
"""Raised when the meaning of a key changes, so that an old file is refused and not misread."""
_STEP = re.compile(r"step-(\d+)\.ckpt")
_TEMPORARY = ".writing-"


def write_checkpoint(folder: Path, state: dict[str, Any], keep: int | None) -> Path:
    """Write `state` as ``step-<state["step"]>.ckpt``, point last.ckpt at it, and keep the `keep` newest (None: all).

    Raises:
        MinillmError: the disk is full or the folder not writable. Nothing that was there is lost.
    """
    path = folder / f"step-{state['step']}.ckpt"
    temporary = folder / f"{_TEMPORARY}{path.name}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as file:
            torch.save({"format": FORMAT, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        _point_last_at(path)
        _sync_folder(folder)
    except (OSError, RuntimeError) as error:
        # torch turns a failed write into a RuntimeError about its zip file; the OSError is then its cause or context.
        reason = _os_error(error)
        if reason is None:
            raise
        temporary.unlink(missing_ok=True)
        newest = max(_steps(folder), default=None)
        kept = f"The last good checkpoint is step-{newest}.ckpt" if newest is not None else "There is no checkpoint yet"
        raise MinillmError(
            f"The checkpoint of step {state['step']} could not be written to {folder}: {reason.strerror or reason}. "
            f"{kept}; make room and start the same command again to go on from there."
        ) from error
    _drop_old(folder, state["step"], keep)
    return path


def read_checkpoint(path: Path, lazily: bool = False) -> dict[str, Any]:
    """The content of a checkpoint file, on the CPU; `lazily` leaves tensors on the disk until they are used.

    Raises:
        MinillmError: the file is missing, cut short, or not one of ours.
    """
    try:
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=lazily)
    except FileNotFoundError:
        raise MinillmError(f"There is no checkpoint {path}.") from None
    except Exception as error:  # torch.load raises many kinds for a damaged file
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise MinillmError(f"The checkpoint {path} cannot be read ({first}). Is it cut short?") from error
    if not isinstance(state, dict) or "format" not in state:
        raise MinillmError(f"{path} is not a checkpoint of minillm.")
    if state["format"] != FORMAT:
        raise MinillmError(f"{path} has checkpoint format {state['format']}; this version of minillm reads {FORMAT}.")
    return state


def remove_unfinished(folder: Path) -> None:
    """Delete what a killed process was writing."""
    for path in folder.glob(f"{_TEMPORARY}*"):
        path.unlink(missing_ok=True)


def _point_last_at(path: Path) -> None:
    last, temporary = path.with_name("last.ckpt"), path.with_name(f"{_TEMPORARY}last.ckpt")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary)
    except OSError:  # a file system without hard links; a full disk shows in the copy
        shutil.copyfile(path, temporary)
    os.replace(temporary, last)


def _sync_folder(folder: Path) -> None:
    """Make the renames themselves survive a power cut."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _steps(folder: Path) -> list[int]:
    if not folder.is_dir():
        return []
    return [int(match.group(1)) for path in folder.iterdir() if (match := _STEP.fullmatch(path.name))]


def _drop_old(folder: Path, step: int, keep: int | None) -> None:
    """Delete all but the `keep` newest up to `step`. A later file is not ours to judge: it counts for nothing here."""
    if keep is None:
        return
    for old in sorted(s for s in _steps(folder) if s <= step)[: -max(keep, 1)]:
        (folder / f"step-{old}.ckpt").unlink(missing_ok=True)


def _os_error(error: BaseException | None) -> OSError | None:
    while error is not None:
        if isinstance(error, OSError):
            return error
        error = error.__cause__ or error.__context__
    return None
