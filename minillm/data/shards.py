"""Token shards: one split of a prepared corpus on disk, memory-mapped.

A folder with the token stream (`tokens.bin`, 16 or 32 bit by vocabulary), where each document starts (`offsets.npy`),
how many UTF-8 bytes of text each has (`bytes.npy`), and its name (`names.jsonl`). A document is the marker token
followed by the tokens of its text; the marker of the next document doubles as the end of this one.

    shards = TokenShards.open(folder)
    shards.document(0)          # int64 ids, marker first
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """16 bit where every id fits, else 32; little-endian everywhere, so that a cache can move between machines."""
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


class TokenShards:
    """A split that can be read. Open it with `TokenShards.open`; it travels to worker processes as its path alone."""

    def __init__(self, folder: Path, tokens: np.ndarray, offsets: np.ndarray, document_bytes: np.ndarray) -> None:
        self.folder = folder
        self.tokens = tokens
        """The whole stream, (num_tokens,) uint16 or uint32, memory-mapped."""
        self.offsets = offsets
        """Start of each document and the end of the last, (num_documents + 1,) int64."""
        self.document_bytes = document_bytes
        """UTF-8 bytes of each document's text, markers not counted, (num_documents,) int64."""

    @classmethod
    def open(cls, folder: str | Path) -> TokenShards:
        folder = Path(folder)
        offsets = np.load(folder / "offsets.npy")
        size = (folder / "tokens.bin").stat().st_size
        dtype: np.dtype[Any] = np.dtype(f"<u{size // int(offsets[-1])}")
        tokens = np.memmap(folder / "tokens.bin", dtype=dtype, mode="r")
        return cls(folder, tokens, offsets, np.load(folder / "bytes.npy"))

    def __reduce__(self) -> tuple[Callable[[Path], TokenShards], tuple[Path]]:
        return TokenShards.open, (self.folder,)  # a pickled memmap would carry the whole stream

    def __len__(self) -> int:
        return len(self.document_bytes)

    @property
    def num_tokens(self) -> int:
        """Tokens of the stream, markers included."""
        return int(self.offsets[-1])

    @property
    def num_bytes(self) -> int:
        """UTF-8 bytes of the text behind the stream: what bits per byte divides by."""
        return int(self.document_bytes.sum())

    @cached_property
    def names(self) -> list[str]:
        with (self.folder / "names.jsonl").open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]

    def document(self, index: int) -> np.ndarray:
        """Token ids of document `index`, marker first: int64 (n,), a copy."""
        if not 0 <= index < len(self):
            raise IndexError(f"Document {index} of {len(self)}.")
        return self.tokens[self.offsets[index] : self.offsets[index + 1]].astype(np.int64)

    def document_ids(self, start: int, stop: int) -> np.ndarray:
        """Which document each token of stream[start:stop] belongs to: int64 (stop - start,)."""
        first = int(np.searchsorted(self.offsets, start, side="right")) - 1
        last = int(np.searchsorted(self.offsets, stop - 1, side="right")) - 1
        edges = np.clip(self.offsets[first : last + 2], start, stop)
        return np.repeat(np.arange(first, last + 1, dtype=np.int64), np.diff(edges))


class ShardWriter:
    """Writes a split document by document; `close` completes it."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        folder.mkdir(parents=True)
        self.folder = folder
        self.vocab_size = vocab_size
        self.dtype = token_dtype(vocab_size)
        self.offsets = [0]
        self.document_bytes: list[int] = []
        self._tokens = (folder / "tokens.bin").open("wb")
        self._names = (folder / "names.jsonl").open("w", encoding="utf-8")

    def add(self, name: str, ids: np.ndarray, num_bytes: int) -> None:
        """Append one document; `ids` with its marker. An id outside the vocabulary is a bug, not a wrapped number."""
        if len(ids) and int(ids.max()) >= self.vocab_size:
            raise ValueError(f"{name}: token {int(ids.max())} is outside a vocabulary of {self.vocab_size}.")
        self._tokens.write(ids.astype(self.dtype).tobytes())
        self._names.write(json.dumps(name) + "\n")
        self.offsets.append(self.offsets[-1] + len(ids))
        self.document_bytes.append(num_bytes)

    def close(self) -> None:
        self._tokens.close()
        self._names.close()
        np.save(self.folder / "offsets.npy", np.array(self.offsets, dtype=np.int64))
        np.save(self.folder / "bytes.npy", np.array(self.document_bytes, dtype=np.int64))
