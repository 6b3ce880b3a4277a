"""What makes a run the run it is: the settings that shape its result, their hash, and the folder name made of it.

    name = run_name(cfg.plain)                        # rnope_swa-micro-embedded-s1-3f9c2a1b
    for change in changes(saved_plain, cfg.plain):    # what a resume would change, and whether it may
        print(change)

Works on the plain mapping alone, so that a run whose settings are refused still has a name for its error.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# Settings that say where or how a run is carried out. Its losses do not depend on them (beyond rounding when the
# number of processes changes), so they may differ between the parts of one run.
FREE = (
    "logger",
    "callbacks",
    "data.num_workers",
    "data.cache_dir",
    "trainer.devices",
    "trainer.num_nodes",
    "trainer.strategy",
    "trainer.accelerator",
    "trainer.accumulate",
    "trainer.num_threads",
    "trainer.stop_at_step",
    "trainer.val_every",
    "trainer.checkpoint_every",
    "trainer.keep_checkpoints",
    "trainer.log_every",
    "trainer.sample_every",
    "trainer.sample_prompt",
    "trainer.sample_tokens",
    "trainer.loss_spike",
    "trainer.progress_bar",
)
# Names, modes and sources of interpolations: what they lead to is compared in its own place.
OUTSIDE = (
    "choices",
    "name",
    "run_dir",
    "output_dir",
    "resume",
    "init_from",  # init_from_fingerprint says what lies there
    "dry_run",
    "eval_at_end",
    "size.seq_len",
    "size.window",
    "model.vocab_size",  # follows the tokenizer
)
MAX_READABLE = 160
"""Bytes for the readable part of a folder name; file systems allow 255 for the whole."""


class Change(NamedTuple):
    """A setting that differs between a saved run and the one asked for. `absent` stands for a key that is not there."""

    key: str
    saved: Any
    asked: Any

    def __str__(self) -> str:
        return f"{self.key}: {_show(self.saved)} -> {_show(self.asked)}"


class _Absent:
    def __repr__(self) -> str:
        return "absent"


absent = _Absent()


def shaping(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that shape a run's result, by dotted key, in one canonical spelling each."""
    flat = flatten(plain)
    return {key: value for key, value in flat.items() if not _under(key, OUTSIDE) and not _under(key, FREE)}


def run_hash(plain: Mapping[str, Any]) -> str:
    """Eight hex digits over `shaping`; equal for settings that mean the same however they are spelt (1e-3, 0.001)."""
    text = json.dumps(shaping(plain), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def run_name(plain: Mapping[str, Any]) -> str:
    """``<model>-<size>-<data>-s<seed>-<hash>``, or ``<name>-s<seed>-<hash>``: only ``[A-Za-z0-9._-]``, < 255 bytes."""
    choices = plain.get("choices") or {}
    parts = [plain["name"]] if plain.get("name") else [choices.get(k) or k for k in ("model", "size", "data")]
    readable = "-".join(filter(None, (_clean(part) for part in parts))) or "run"
    readable = readable[:MAX_READABLE].rstrip("-._")
    return f"{readable}-s{_clean(plain.get('seed'))[:20]}-{run_hash(plain)}"


def run_path(plain: Mapping[str, Any], sweep_dir: str | Path | None = None) -> Path:
    """The run's folder: `run_dir` if set, else its name under `sweep_dir` (a multirun) or `output_dir`."""
    if plain.get("run_dir"):
        return Path(str(plain["run_dir"]))
    return Path(sweep_dir if sweep_dir is not None else str(plain.get("output_dir") or "outputs")) / run_name(plain)


def changes(saved: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Change]:
    """Every setting that differs between two plain configurations, names and modes apart, sorted by key."""
    old, new = flatten(saved), flatten(asked)
    keys = sorted(k for k in old.keys() | new.keys() if not _under(k, OUTSIDE))
    pairs = [Change(k, old.get(k, absent), new.get(k, absent)) for k in keys]
    return [c for c in pairs if c.saved is absent or c.asked is absent or c.saved != c.asked]


def refused(differing: list[Change]) -> list[Change]:
    """Those among `changes` that would make another run of it."""
    return [c for c in differing if not _under(c.key, FREE)]


def other_choices(saved: Mapping[str, Any], asked: Mapping[str, Any]) -> list[Change]:
    """The model, block, size and data groups in which two configurations chose different files."""
    old, new = saved.get("choices") or {}, asked.get("choices") or {}
    pairs = [Change(group, old.get(group), new.get(group)) for group in ("model", "block", "size", "data")]
    return [c for c in pairs if c.saved != c.asked]


def flatten(plain: Any, prefix: str = "") -> dict[str, Any]:
    """Nested plain values by dotted key; lists are leaves, empty mappings stay visible as ``{}``."""
    if isinstance(plain, Mapping) and (plain or not prefix):
        flat: dict[str, Any] = {}
        for key, value in plain.items():
            flat |= flatten(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    return {prefix: _canonical(plain)}


def _canonical(value: Any) -> Any:
    """One spelling for each value: 1, 1.0 and "1" are the same setting, as for `minillm.config.fields`."""
    if isinstance(value, Mapping):
        return {str(k): _canonical(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(v) for v in value]
    if isinstance(value, (bool, int)) or value is None:
        return value
    if isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            return value
    else:
        number = float(value)
    if not math.isfinite(number):
        return str(value)
    return int(number) if number.is_integer() else number


def _under(key: str, roots: tuple[str, ...]) -> bool:
    return any(key == root or key.startswith(f"{root}.") for root in roots)


def _clean(part: Any) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", str(part)).strip("-._")


def _show(value: Any) -> str:
    return "absent" if value is absent else "null" if value is None else json.dumps(value, ensure_ascii=False)
