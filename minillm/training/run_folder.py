"""The folder of one run: what lies where in it, who may write to it, and which of its checkpoints can be read.

    config.yaml  layers.json  tokenizer.json  metrics.jsonl  checkpoints/{step-N.ckpt,last.ckpt}  eval/  samples.txt
    result.json   how far the run is and what it measured last; "complete" once max_steps are done
    init_from.json  with init_from: which weights the run began with, and what became of each tensor
    starts.jsonl  one line for each time the run was started: command, overrides, what had changed
    logs/         output of the processes beside the first
    error.txt     why the last job of a multirun here failed

    folder = RunFolder(path)
    with folder.lock():                # a second process is refused
        folder.write(cfg, tokenizer)
        newest = folder.newest_checkpoint(print)

Files appear whole or not at all: they are written under another name and renamed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import yaml

from minillm.config.schema import Config
from minillm.config.table import layers_json
from minillm.errors import MinillmError

# What a folder may hold although no run has begun in it (that is when config.yaml appears): traces of a failed start.
_TRACES = {"error.txt", "starts.jsonl", "layers.json", "tokenizer.json"}
_STEP_NAME = re.compile(r"step-(\d+)\.ckpt")


class SavesItself(Protocol):
    """What the run folder needs of a tokenizer."""

    def save(self, path: Path) -> Any:
        """Write tokenizer.json to `path`."""


class Checkpoint(NamedTuple):
    """A checkpoint file that can be read, and the updates done when it was written."""

    step: int
    path: Path


class RunFolder:
    """One run's folder, which need not exist yet."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.layers = self.path / "layers.json"
        self.tokenizer = self.path / "tokenizer.json"
        self.metrics = self.path / "metrics.jsonl"
        self.checkpoints = self.path / "checkpoints"
        self.result = self.path / "result.json"
        self.starts = self.path / "starts.jsonl"
        self.samples = self.path / "samples.txt"
        self.error = self.path / "error.txt"
        self.init_from = self.path / "init_from.json"

    def holds_a_run(self) -> bool:
        """Whether a run was begun here.

        Raises:
            MinillmError: the folder holds something else, which a run must not mix with.
        """
        if not self.path.exists():
            return False
        if not self.path.is_dir():
            raise MinillmError(f"The run folder {self.path} is a file. Give another run_dir=.")
        if self.config.exists():
            return True
        if any(entry.name not in _TRACES and not entry.name.startswith(".") for entry in self.path.iterdir()):
            raise MinillmError(
                f"The folder {self.path} is not empty and holds no run (no config.yaml). Give a new or empty run_dir=."
            )
        return False

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other process out of this folder; the lock goes when this process does, however it ends.

        Raises:
            MinillmError: another process trains here.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            handle = open(self.path / ".lock", "a+")  # noqa: SIM115
        except OSError as error:
            raise MinillmError(f"The run folder {self.path} cannot be used: {error.strerror or error}.") from None
        with handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                handle.seek(0)
                owner = handle.read().strip() or "another process"
                raise MinillmError(
                    f"The run in {self.path} is being trained by {owner}. Wait for it, or give another run_dir=."
                ) from None
            handle.truncate(0)
            handle.write(f"process {os.getpid()} on {socket.gethostname()}")
            handle.flush()
            yield

    def write(self, cfg: Config, tokenizer: SavesItself) -> None:
        """Write what says which run this is: config.yaml, layers.json, tokenizer.json. config.yaml comes last."""
        plan = layers_json(cfg.model, cfg.data.seq_len)
        write_atomically(self.layers, json.dumps(plan, indent=1) + "\n")
        beside = self.tokenizer.with_name(f".tokenizer.json.{os.getpid()}")
        tokenizer.save(beside)
        os.replace(beside, self.tokenizer)
        write_atomically(self.config, to_yaml(cfg.plain))

    def read_config(self) -> dict[str, Any]:
        """The plain configuration of the run that lies here; `minillm.config.parse.parse_config` types it."""
        return read_yaml(self.config)

    def note_start(self, **facts: Any) -> None:
        """Append a line to starts.jsonl."""
        before = self.starts.read_text() if self.starts.exists() else ""
        line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts})
        write_atomically(self.starts, f"{before}{line}\n")

    def last_start(self) -> dict[str, Any]:
        """The last line of starts.jsonl; empty where the run was never started."""
        lines = self.starts.read_text().splitlines() if self.starts.exists() else []
        return dict(json.loads(lines[-1])) if lines else {}

    def read_result(self) -> dict[str, Any] | None:
        """result.json, or None where no part of the run has ended well yet."""
        try:
            result = json.loads(self.result.read_text())
        except FileNotFoundError:
            return None
        except ValueError:
            raise MinillmError(f"{self.result} is not JSON. Delete it to go on from the newest checkpoint.") from None
        return dict(result)

    def write_result(self, metrics: Mapping[str, float], max_steps: int, xz_bits_per_byte: float | None) -> None:
        """Record the end of a part of the run; it is complete once `step` has reached `max_steps`."""
        step = int(metrics["step"])
        result = {
            "step": step,
            "max_steps": max_steps,
            "complete": step >= max_steps,
            "metrics": dict(metrics),
            "xz_bits_per_byte": xz_bits_per_byte,
        }
        write_atomically(self.result, json.dumps(result, indent=1) + "\n")

    def complete(self, max_steps: int) -> bool:
        """Whether all of `max_steps` updates are done and what is measured at the end was measured."""
        result = self.read_result()
        return result is not None and bool(result.get("complete")) and int(result["step"]) >= max_steps

    def newest_checkpoint(self, say: Callable[[str], None] = print) -> Checkpoint | None:
        """The checkpoint of the highest step that can be read, None where there is no checkpoint file.

        Args:
            say: told of every newer file that is passed over because it is damaged.

        Raises:
            MinillmError: there are checkpoints and none can be read; starting again would lose them.
        """
        damaged: list[str] = []
        for checkpoint in self._candidates():
            reason = damage(checkpoint.path)
            if reason is None:
                if damaged:
                    say(f"Using the checkpoint before it: {checkpoint.path} (step {checkpoint.step}).")
                return checkpoint
            say(f"The checkpoint {checkpoint.path} is damaged ({reason}) and is not used.")
            damaged.append(checkpoint.path.name)
        if damaged:
            raise MinillmError(
                f"No checkpoint in {self.checkpoints} can be read ({', '.join(damaged)}). To start this run again "
                "from step 0, delete that folder; or give another name= or run_dir=."
            )
        return None

    def _candidates(self) -> list[Checkpoint]:
        """Checkpoint files, newest first. Temporary files have other names and are never taken for one."""
        if not self.checkpoints.is_dir():
            return []
        found = []
        for path in self.checkpoints.iterdir():
            match = _STEP_NAME.fullmatch(path.name)
            if match and path.is_file():
                found.append(Checkpoint(int(match.group(1)), path))
        last = self.checkpoints / "last.ckpt"
        if last.is_file() and not any(last.samefile(c.path) for c in found):
            step = _step_inside(last)
            if step is None or all(step != c.step for c in found):
                # A damaged last.ckpt is named first: it was the newest when it was written.
                found.append(Checkpoint(max((c.step for c in found), default=0) + 1 if step is None else step, last))
        return sorted(found, key=lambda c: c.step, reverse=True)


def damage(path: Path) -> str | None:
    """Why a checkpoint file cannot be read, or None. Reads the whole file: every part's checksum is compared."""
    try:
        with zipfile.ZipFile(path) as archive:
            bad = archive.testzip()
    except (OSError, zipfile.BadZipFile, EOFError) as error:
        return f"{str(error).rstrip('.') or type(error).__name__}, {path.stat().st_size if path.exists() else 0} bytes"
    return None if bad is None else f"{bad} has a wrong checksum"


def _step_inside(path: Path) -> int | None:
    """The step that a checkpoint holds, None where it cannot be read."""
    import torch

    if damage(path) is not None:
        return None
    return int(torch.load(path, map_location="cpu", weights_only=True, mmap=True)["step"])


def write_atomically(path: Path, text: str) -> None:
    """Write `text` so that `path` is, at every moment, either as it was or whole and new."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise MinillmError(f"{path} cannot be written: {error.strerror or error}.") from None
    finally:
        temporary.unlink(missing_ok=True)


def to_yaml(plain: Mapping[str, Any]) -> str:
    """`plain` as YAML that every reader takes for the same values: floats have a dot (YAML 1.1 reads 1e-05 as text)."""
    return yaml.safe_dump(dict(plain), sort_keys=False, allow_unicode=True, width=120)


def read_yaml(path: Path) -> dict[str, Any]:
    """A saved configuration as plain values.

    Raises:
        MinillmError: the file is missing or is not a mapping in YAML.
    """
    try:
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise MinillmError(f"{path} cannot be read: {str(error).splitlines()[0]}.") from None
    if not isinstance(plain, dict):
        raise MinillmError(f"{path} is not a configuration: a mapping is expected.")
    return plain
