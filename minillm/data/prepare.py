"""From a corpus to token shards, once: read, split, train the tokenizer, encode, and keep the result on disk.

The result lies in `<cache_dir>/<fingerprint>/`. The fingerprint covers the corpus' bytes, the tokenizer's (or how it
is trained), and the rules below, so that a change of any of them gives another folder and never a stale one. The
folder is made under a temporary name and renamed when it is whole, under a file lock: killed or concurrent
preparations leave nothing half-made that could be taken for whole.

    prepared = prepare(cfg.data, cfg.tokenizer)
    prepared.tokenizer, prepared.train, prepared.val, prepared.manifest
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.data import tokenizer as tokenizers
from minillm.data.check import check
from minillm.data.compression import xz_bits_per_byte
from minillm.data.progress import say, track
from minillm.data.shards import FILES, ShardWriter, TokenShards
from minillm.data.sources import Document, open_source
from minillm.data.split import Role, Split, plan_split
from minillm.data.tokenizer import Tokenizer
from minillm.errors import MinillmError

RULES = {
    "format": 1,
    "document": "marker, then the tokens of the text; documents of white space alone are dropped",
    "held_out": "by document: the embedded corpus' list, else the smallest blake2b; copies of held-out text dropped",
    "split": tokenizers.SPLIT,
    "chunk": tokenizers.CHUNK,
}
"""How text becomes tokens. Part of the fingerprint: change a rule in the code, and its line here with it."""

BATCH_CHARACTERS = 1 << 22


@dataclass(frozen=True)
class Prepared:
    """A corpus ready to train on."""

    tokenizer: Tokenizer
    train: TokenShards
    val: TokenShards
    manifest: dict[str, Any]
    """What was done, as in manifest.json: fingerprint, source, rules, tokenizer, splits, notes, files."""
    folder: Path
    reused: bool
    """Whether the cache had it."""

    @property
    def notes(self) -> list[str]:
        """What the user should be told: a smaller vocabulary than asked, dropped documents, ..."""
        return list(self.manifest["notes"])

    @property
    def xz_bits_per_byte(self) -> float:
        """Of the held-out text: what a model's bits per byte stand beside."""
        return float(self.manifest["xz_bits_per_byte"])


def prepare(data: DataConfig, tokenizer: TokenizerConfig) -> Prepared:
    """Token shards and tokenizer for `data`, from the cache or made now. Raises MinillmError for text unfit to use."""
    check(data, tokenizer)
    source = open_source(data)
    identity = _identity(source.fingerprint(), data, tokenizer)
    fingerprint = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:16]
    cache = Path(data.cache_dir)
    folder = cache / fingerprint
    try:
        prepared = _open(folder, tokenizer.bos_token, reused=True)
        if prepared is None:
            cache.mkdir(parents=True, exist_ok=True)
            with _lock(cache / f"{fingerprint}.lock"):
                prepared = _open(folder, tokenizer.bos_token, reused=True)  # another process may have made it meanwhile
                if prepared is None:
                    _make(folder, identity, plan_split(source, data.held_out), tokenizer)
                    prepared = _open(folder, tokenizer.bos_token, reused=False)
    except OSError as error:
        raise MinillmError(f"data.cache_dir: cannot prepare data in {cache}: {error}.") from error
    if prepared is None:
        raise MinillmError(f"data.cache_dir: {folder} is not what was just written there.")
    if prepared.train.num_tokens < data.seq_len + 1:
        raise MinillmError(
            f"{source.description} is shorter than a block: it gives {prepared.train.num_tokens} training tokens, and "
            f"data.seq_len={data.seq_len} needs {data.seq_len + 1}. Give more text, or a smaller data.seq_len."
        )
    return prepared


def _identity(content: str, data: DataConfig, tokenizer: TokenizerConfig) -> dict[str, Any]:
    """All that decides the shards' bytes. The block length does not: windows are cut from the stream when read."""
    how: dict[str, Any] = {"source": tokenizer.source, "bos_token": tokenizer.bos_token}
    if tokenizer.source == "file":
        how["sha256"] = hashlib.sha256(tokenizers.load_from_config(tokenizer).to_json().encode()).hexdigest()
    else:
        how["vocab_size"] = tokenizer.vocab_size
    return {
        "rules": RULES,
        "source": data.source,
        "content": content,
        "held_out": repr(data.held_out),
        "tokenizer": how,
    }


def _lock(path: Path) -> FileLock:
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
        lock.release()
    except Timeout:
        say("another process is preparing the same data; waiting for it ...")
    return lock


def _make(folder: Path, identity: dict[str, Any], split: Split, config: TokenizerConfig) -> None:
    """Write the whole folder under a temporary name, then rename it. Called with the lock held."""
    for leftover in folder.parent.glob(f".{folder.name}.*.tmp"):
        shutil.rmtree(leftover)  # of a killed process: the lock says that nobody is at work on it
    temporary = folder.parent / f".{folder.name}.{os.getpid()}.tmp"
    temporary.mkdir()
    try:
        _fill(temporary, folder.name, identity, split, config)
        if folder.exists():
            shutil.rmtree(folder)  # it did not pass `_open`: damaged
        temporary.replace(folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _fill(folder: Path, fingerprint: str, identity: dict[str, Any], split: Split, config: TokenizerConfig) -> None:
    notes: list[str] = []
    tokenizer = _tokenizer(split, config, notes)
    tokenizer.save(folder / "tokenizer.json")
    writers = {Role.TRAIN: ShardWriter(folder / "train", tokenizer.vocab_size)}
    writers[Role.VAL] = ShardWriter(folder / "val", tokenizer.vocab_size)
    for batch in _batches(split):
        encoded = tokenizer.encode_many([document.text for document, _ in batch], bos=True)
        for (document, role), ids in zip(batch, encoded, strict=True):
            writers[role].add(document.name, ids, len(document.text.encode("utf-8")))
    splits = {}
    for role, writer in writers.items():
        writer.close()
        shards = TokenShards.open(writer.folder)
        splits[role.name.lower()] = {
            "documents": len(shards),
            "tokens": shards.num_tokens,
            "bytes": shards.num_bytes,
        }
    if split.cut is not None:
        notes.append(f"{split.source.description} is a single document: its last part is held out.")
    for role, what in ((Role.EMPTY, "empty"), (Role.COPY, "copies of held-out documents")):
        if split.count(role):
            notes.append(f"{split.count(role)} documents dropped: {what}.")
    manifest = {
        "fingerprint": fingerprint,
        "description": split.source.description,
        "identity": identity,
        "tokenizer": {"vocab_size": tokenizer.vocab_size, "asked": config.vocab_size, "bos_id": tokenizer.bos_id},
        "splits": splits,
        "xz_bits_per_byte": xz_bits_per_byte(split.texts(Role.VAL)),
        "notes": notes,
        "files": _checksums(folder),
    }
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n", encoding="utf-8")
    for note in notes:
        say(note)


def _tokenizer(split: Split, config: TokenizerConfig, notes: list[str]) -> Tokenizer:
    if config.source == "file":
        return tokenizers.load_from_config(config)
    assert config.vocab_size is not None  # checked by asked_vocab_size
    texts = track(split.texts(Role.TRAIN), "Training the tokenizer")
    tokenizer = Tokenizer.train(texts, config.vocab_size, config.bos_token)
    if tokenizer.vocab_size < config.vocab_size:
        notes.append(
            f"The tokenizer has {tokenizer.vocab_size} tokens, not the {config.vocab_size} asked "
            f"(tokenizer.vocab_size): the training text holds no more repeated pairs. The model gets that many rows."
        )
    return tokenizer


def _batches(split: Split) -> Iterator[list[tuple[Document, Role]]]:
    """Documents that are kept, in batches of some megabytes: enough for all cores, little memory."""
    batch: list[tuple[Document, Role]] = []
    size = 0
    for document, role in track(split.documents(), "Encoding", total=len(split.roles)):
        if role in (Role.TRAIN, Role.VAL):
            batch.append((document, role))
            size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    yield batch


def _checksums(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of each file; the bytes are forced to the disk before the rename says they are there."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        found[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": digest}
    return found


def _open(folder: Path, bos_token: str, reused: bool) -> Prepared | None:
    """The prepared folder, or None where there is none or a file of it is missing or cut short."""
    try:
        manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
        files = manifest["files"]
        whole = all((folder / name).stat().st_size == entry["size"] for name, entry in files.items())
        if not whole or not {f"{s}/{f}" for s in ("train", "val") for f in FILES} < set(files):
            return None
    except (FileNotFoundError, ValueError, KeyError):
        return None
    return Prepared(
        tokenizer=Tokenizer.load(folder / "tokenizer.json", bos_token),
        train=TokenShards.open(folder / "train"),
        val=TokenShards.open(folder / "val"),
        manifest=manifest,
        folder=folder,
        reused=reused,
    )
