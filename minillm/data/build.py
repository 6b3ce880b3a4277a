"""The work behind `prepare`: train or load the tokenizer, encode every document, write the folder and its manifest.

build(folder, identity, split, cfg.tokenizer, seq_len=256)      # folder exists and is empty
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from minillm.config.schema import TokenizerConfig
from minillm.data.compression import LIMIT, xz_bits_per_byte
from minillm.data.progress import track
from minillm.data.shards import ShardWriter, TokenShards
from minillm.data.sources import Document
from minillm.data.split import Role, Split
from minillm.data.tokenizer import CHUNK, SPLIT, Tokenizer, chunks
from minillm.errors import MinillmError

TRAINING_CHARACTERS = 100_000_000
"""A tokenizer is trained on about this much text at most: more changes its tokens little, and takes long."""
BATCH_CHARACTERS = 1 << 22
"""Encoded at a time: enough for all cores, little memory."""

RULES = {
    "format": 1,
    "document": "marker, then the tokens of the text; documents of white space alone are dropped",
    "held_out": "by document: the embedded corpus' list, else the smallest blake2b; copies of held-out text dropped",
    "tokenizer": {"split": SPLIT, "chunk": CHUNK, "min_frequency": 2, "characters": TRAINING_CHARACTERS},
}
"""How text becomes tokens. Part of the fingerprint: change a rule in the code, and its line here with it."""


def build(
    folder: Path,
    identity: dict[str, Any],
    split: Split,
    config: TokenizerConfig,
    seq_len: int,
    ready: Tokenizer | None = None,
) -> None:
    """Fill `folder` with tokenizer.json, train/, val/ and, last, manifest.json.

    `ready` is the tokenizer where it is not trained on the text.

    Raises MinillmError where the text is too short for `seq_len`, or changed while it was being read.
    """
    notes: list[str] = []
    tokenizer = ready if ready is not None else _trained(split, config, notes)
    tokenizer.save(folder / "tokenizer.json")
    held_out = _encode(folder, split, tokenizer, notes)
    train, val = TokenShards.open(folder / "train"), TokenShards.open(folder / "val")
    need_a_block(train.num_tokens, seq_len, split.source.description)
    if split.source.fingerprint() != identity["content"]:
        raise MinillmError(f"{split.source.description} changed while it was being read. Start again.")
    if split.cut is not None:
        notes.append(f"{split.source.description} is a single document: its tail is held out.")
    for role, what in ((Role.EMPTY, "nothing but white space"), (Role.COPY, "copies of held-out text")):
        if split.count(role):
            notes.append(f"{split.count(role)} documents dropped: {what}.")
    manifest = {
        "description": split.source.description,
        "identity": identity,
        "tokenizer": {"asked": config.vocab_size, "vocab_size": tokenizer.vocab_size, "bos_token": tokenizer.bos_token},
        "splits": {"train": _summary(train), "val": _summary(val)},
        "xz_bits_per_byte": xz_bits_per_byte(held_out),
        "notes": notes,
        "files": _checksums(folder),
    }
    with (folder / "manifest.json").open("w", encoding="utf-8") as file:
        json.dump(manifest, file, indent=2)
        file.flush()
        os.fsync(file.fileno())


def need_a_block(num_tokens: int, seq_len: int, description: str) -> None:
    """Raise MinillmError where `num_tokens` of training text do not fill one window and its last target."""
    if num_tokens < seq_len + 1:
        raise MinillmError(
            f"{description} is shorter than a block: it gives {num_tokens} training tokens, and data.seq_len={seq_len} "
            f"needs {seq_len + 1}. Give more text, or a smaller data.seq_len."
        )


def _trained(split: Split, config: TokenizerConfig, notes: list[str]) -> Tokenizer:
    assert config.vocab_size is not None  # a checked configuration has it
    pieces = (piece for text in split.texts(Role.TRAIN) for piece in chunks(text))
    step = -(-split.characters // TRAINING_CHARACTERS)
    if step > 1:
        notes.append(f"The tokenizer was trained on every {step}. piece of the text.")
    texts = track(islice(pieces, 0, None, step), "Training the tokenizer")
    tokenizer = Tokenizer.train(texts, config.vocab_size, config.bos_token)
    if tokenizer.vocab_size < config.vocab_size:
        notes.append(
            f"The tokenizer has {tokenizer.vocab_size} tokens, not the {config.vocab_size} asked "
            f"(tokenizer.vocab_size): the training text holds no more repeated pairs. The model gets that many rows."
        )
    return tokenizer


def _encode(folder: Path, split: Split, tokenizer: Tokenizer, notes: list[str]) -> list[str]:
    """Write both splits; the held-out texts come back, as many as their compression needs."""
    writers = {
        Role.TRAIN: ShardWriter(folder / "train", tokenizer.vocab_size),
        Role.VAL: ShardWriter(folder / "val", tokenizer.vocab_size),
    }
    held_out: list[str] = []
    kept = 0
    for batch in _batches(split):
        encoded = tokenizer.encode_many([document.text for document, _ in batch], bos=True)
        for (document, role), ids in zip(batch, encoded, strict=True):
            if role is Role.VAL and kept < LIMIT:
                held_out.append(document.text)
                kept += len(document.text)
                if len(held_out) == 1 and tokenizer.decode(ids) != document.text:
                    notes.append("The tokenizer does not give a text back as it was: bits per byte are only near.")
            writers[role].add(document.name, ids, len(document.text.encode("utf-8")))
    for writer in writers.values():
        writer.close()
    return held_out


def _batches(split: Split) -> Iterator[list[tuple[Document, Role]]]:
    batch: list[tuple[Document, Role]] = []
    size = 0
    for document, role in track(split.documents(), "Encoding", total=len(split.roles)):
        if role in (Role.TRAIN, Role.VAL):
            batch.append((document, role))
            size += len(document.text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _summary(shards: TokenShards) -> dict[str, int]:
    return {"documents": len(shards), "tokens": shards.num_tokens, "bytes": shards.num_bytes}


def _checksums(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of each file; the bytes are forced to the disk before the rename says they are there."""
    found = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        found[path.relative_to(folder).as_posix()] = {"size": path.stat().st_size, "sha256": digest}
    return found
