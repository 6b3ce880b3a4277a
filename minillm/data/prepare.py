"""From a corpus to token shards, once: the work is done in `build`, and kept on disk.

The result lies in `<cache_dir>/<fingerprint>/`. The fingerprint covers the corpus' bytes, the tokenizer's (or how it
is trained), and the rules, so that a change of any of them gives another folder and never a stale one. The folder is
made under a temporary name and renamed when it is whole, under a file lock: killed or concurrent preparations leave
nothing half-made that could be taken for whole.

    prepared = prepare(cfg.data, cfg.tokenizer)
    prepared.tokenizer, prepared.train, prepared.val, prepared.manifest
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.data.build import RULES, build, need_a_block
from minillm.data.check import check
from minillm.data.loader import BatchLoader, ValLoader, val_batches
from minillm.data.progress import say
from minillm.data.prompt import Prompt
from minillm.data.shards import TokenShards
from minillm.data.sources import open_source
from minillm.data.split import Split, plan_split
from minillm.data.tokenizer import Tokenizer, load_from_config
from minillm.data.windows import Windows
from minillm.errors import MinillmError


@dataclass(frozen=True)
class Prepared:
    """A corpus ready to train on."""

    tokenizer: Tokenizer
    train: TokenShards
    val: TokenShards
    manifest: dict[str, Any]
    """What was done, as in manifest.json: description, identity, tokenizer, splits, notes, files."""
    folder: Path
    reused: bool
    """Whether the cache had it."""

    @property
    def fingerprint(self) -> str:
        """Of text, tokenizer and rules."""
        return self.folder.name

    @property
    def tokens_per_byte(self) -> float:
        """Of the held-out text: turns nats per token into bits per byte."""
        return (self.val.num_tokens - 1) / self.val.num_bytes

    @property
    def notes(self) -> list[str]:
        """What the user should be told: a smaller vocabulary than asked, dropped documents, ..."""
        return list(self.manifest["notes"])

    @property
    def xz_bits_per_byte(self) -> float:
        """Of the held-out text (its first 16 MB): what a model's bits per byte stand beside."""
        return float(self.manifest["xz_bits_per_byte"])

    def describe(self, count: Callable[[float], str]) -> str:
        """For the lines at a run's start; `count` writes a number."""
        train, val = (count(shards.num_tokens) for shards in (self.train, self.val))
        return f"{self.manifest['description']}: {train} training tokens, {val} held out"

    def train_loader(
        self, data: DataConfig, seed: int, num_batches: int, rank: int = 0, world_size: int = 1
    ) -> BatchLoader:
        """The training batches of one rank."""
        windows = Windows(self.train, data.seq_len, data.document_mask)
        return BatchLoader(windows, data.batch_size, seed, num_batches, rank, world_size, data.num_workers)

    def val_loader(self, data: DataConfig, rank: int = 0, world_size: int = 1, limit: int | None = None) -> ValLoader:
        """The held-out batches of one rank, the first `limit` of them."""
        windows = Windows(self.val, data.seq_len, data.document_mask)
        return val_batches(windows, data.batch_size, rank, world_size, limit)

    def prompt(self, text: str | None, new_tokens: int) -> Prompt:
        """What text samples begin with; null is "The "."""
        text = "The " if text is None else text
        return Prompt(self.tokenizer.encode(text, bos=True), text, new_tokens)


def prepare(data: DataConfig, tokenizer: TokenizerConfig, given: Tokenizer | None = None) -> Prepared:
    """Token shards and tokenizer for `data`, from the cache or made now.

    `given` is the tokenizer itself where the configuration does not say how to get it: tokenizer.source=init_from.

    Safe to call from many processes at once: one does the work, the others wait for it. Raises ConfigError for
    settings that cannot be honoured, MinillmError for text that cannot be used, naming the file.
    """
    check(data, tokenizer)
    source = open_source(data)
    ready = _ready(tokenizer, given)
    identity = _identity(source.fingerprint(), data, tokenizer, ready)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    cache = Path(data.cache_dir).expanduser()
    folder = cache / fingerprint
    try:
        prepared = _open(folder, reused=True)
        if prepared is None:
            with _locked(cache, fingerprint):
                prepared = _open(folder, reused=True)  # another process may have made it meanwhile
                if prepared is None:
                    _make(folder, identity, plan_split(source, data.held_out), tokenizer, data.seq_len, ready)
                    prepared = _open(folder, reused=False)
    except OSError as error:
        raise MinillmError(f"data.cache_dir: cannot prepare data in {cache}: {error}.") from error
    if prepared is None:
        raise MinillmError(f"data.cache_dir: {folder} does not hold what was just written there.")
    need_a_block(prepared.train.num_tokens, data.seq_len, source.description)
    return prepared


def _ready(config: TokenizerConfig, given: Tokenizer | None) -> Tokenizer | None:
    """The tokenizer, unless it is trained on the text."""
    if config.source == "train":
        return None
    if config.source == "file":
        return load_from_config(config)
    if given is None:
        raise MinillmError(
            "tokenizer.source = 'init_from': the tokenizer is in the run's folder, which was not given here."
        )
    return given


def _identity(content: str, data: DataConfig, tokenizer: TokenizerConfig, ready: Tokenizer | None) -> dict[str, Any]:
    """All that decides the shards' bytes. The block length does not: windows are cut from the stream when read."""
    how: dict[str, Any] = {"source": tokenizer.source, "bos_token": tokenizer.bos_token}
    if ready is not None:
        how["sha256"] = _sha256(ready.to_json().encode())
    else:
        how["vocab_size"] = tokenizer.vocab_size
    return {
        "rules": RULES,
        "source": data.source,
        "content": content,
        "held_out": repr(data.held_out),  # 1 is one document, 1.0 is not
        "tokenizer": how,
    }


@contextmanager
def _locked(cache: Path, fingerprint: str) -> Iterator[None]:
    """Hold the lock of one fingerprint. Text that is refused leaves nothing behind, not even the lock's file."""
    cache.mkdir(parents=True, exist_ok=True)
    lock = FileLock(cache / f"{fingerprint}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say("another process is preparing the same data; waiting for it ...")
        lock.acquire()
    try:
        yield
    except MinillmError:
        # Whoever waits for this lock will be refused for the same reason, so that it may go away under them.
        with suppress(OSError):
            Path(lock.lock_file).unlink()
            cache.rmdir()  # succeeds where nothing else is in it
        raise
    finally:
        lock.release()


def _make(
    folder: Path,
    identity: dict[str, Any],
    split: Split,
    tokenizer: TokenizerConfig,
    seq_len: int,
    ready: Tokenizer | None,
) -> None:
    """Build under a temporary name, then rename. Called with the lock held."""
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(leftover)  # of a killed process: the lock says that nobody is at work on it
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        build(temporary, identity, split, tokenizer, seq_len, ready)
        if folder.exists():
            shutil.rmtree(folder)  # it did not pass `_open`: damaged
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _open(folder: Path, reused: bool) -> Prepared | None:
    """The prepared folder, or None where there is none, or where a file of it is missing, cut short, or not its own."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        for name, entry in manifest["files"].items():
            if (folder / name).stat().st_size != entry["size"]:
                return None
        tokenizer = (folder / "tokenizer.json").read_text(encoding="utf-8")
        if _sha256(tokenizer.encode()) != manifest["files"]["tokenizer.json"]["sha256"]:
            return None
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return Prepared(
        tokenizer=Tokenizer.from_json(tokenizer, where=f"The tokenizer in {folder}"),
        train=TokenShards.open(folder / "train"),
        val=TokenShards.open(folder / "val"),
        manifest=manifest,
        folder=folder,
        reused=reused,
    )


def _sha256(raw: bytes) -> str:
    return hashlib.sha256(raw).hexdigest()
