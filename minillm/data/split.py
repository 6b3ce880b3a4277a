"""Which documents train and which are held out: by document, the same ones each time.

The embedded corpus fixes its held-out documents by name. For other text the held-out ones are those whose content has
the smallest hashes: a choice at random that does not depend on the order of files, and changes little when documents
are added. Exact copies of a held-out document are dropped from training, or it would not be held out.

    split = plan_split(source, cfg.data.held_out)
    for document, role in split.documents(): ...
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

import numpy as np

from minillm.data.progress import track
from minillm.data.sources import Document, Source
from minillm.errors import MinillmError


class Role(Enum):
    """What becomes of a document."""

    TRAIN = 0
    VAL = 1
    EMPTY = 2
    """Nothing but white space: dropped, without a marker."""
    COPY = 3
    """The same text as a held-out document: dropped."""


@dataclass(frozen=True)
class Split:
    """A source and the role of each of its documents."""

    source: Source
    roles: np.ndarray
    """Role values, (documents,) int8."""
    characters: int
    """Of all documents together."""
    cut: float | None
    """Share of a lone document's characters that trains; its tail is held out. None where documents are many."""

    def documents(self) -> Iterator[tuple[Document, Role]]:
        """All documents with their roles. Raises MinillmError where the source has changed since the roles were set."""
        count = 0
        for count, document in enumerate(self.source.documents(), start=1):
            if count > len(self.roles):
                break
            role = Role(int(self.roles[count - 1]))
            if self.cut is not None and role is Role.TRAIN:
                yield from _cut(document, self.cut)
            else:
                yield document, role
        if count != len(self.roles):
            raise MinillmError(f"{self.source.description} changed while it was being read. Start again.")

    def texts(self, role: Role) -> Iterator[str]:
        return (document.text for document, r in self.documents() if r is role)

    def count(self, role: Role) -> int:
        return int((self.roles == role.value).sum())


def plan_split(source: Source, held_out: int | float | None) -> Split:
    """Give each document its role. `held_out` is a count, or a share of the documents (at least one).

    None where the source fixes its held-out documents.
    """
    characters = 0
    digests: list[int] = []
    roles: list[int] = []
    for document in track(source.documents(), f"Reading {source.description}"):
        characters += len(document.text)
        empty = not document.text.strip()
        named = source.held_out is not None and document.name in source.held_out
        roles.append((Role.EMPTY if empty else Role.VAL if named else Role.TRAIN).value)
        digests.append(int.from_bytes(hashlib.blake2b(document.text.encode(), digest_size=8).digest(), "little"))
    role = np.array(roles, dtype=np.int8)
    digest = np.array(digests, dtype=np.uint64)
    real = np.flatnonzero(role != Role.EMPTY.value)
    if len(real) == 0:
        raise MinillmError(f"{source.description} is empty: no document holds anything but white space.")
    if source.held_out is not None or held_out is None:
        return Split(source, role, characters, cut=None)
    if len(real) == 1 and isinstance(held_out, float):
        return Split(source, role, characters, cut=1 - held_out)
    distinct, first = np.unique(digest[real], return_index=True)  # sorted by hash
    count = held_out if isinstance(held_out, int) else max(1, round(held_out * len(real)))
    if count >= len(distinct):
        raise MinillmError(
            f"data.held_out: {held_out} leaves nothing to train on: {source.description} has {len(distinct)} "
            f"distinct documents that are not empty. Of a lone document a share holds out the tail."
        )
    role[real[np.isin(digest[real], distinct[:count])]] = Role.COPY.value
    role[real[first[:count]]] = Role.VAL.value
    return Split(source, role, characters, cut=None)


def _cut(document: Document, share: float) -> Iterator[tuple[Document, Role]]:
    """A lone document as two: its beginning trains, its tail is held out. Cut at the next line end, or space."""
    text = document.text
    at = min(max(1, int(len(text) * share)), len(text) - 1)
    for mark in ("\n", " "):
        found = text.find(mark, at, at + 1000)
        if found >= 0:
            at = found + 1
            break
    parts = (("beginning", text[:at], Role.TRAIN), ("tail", text[at:], Role.VAL))
    for part, piece, role in parts:
        if not piece.strip():
            raise MinillmError(f"{document.name} is a single document, too short to hold out its tail.")
        yield Document(f"{document.name} ({part})", piece), role
