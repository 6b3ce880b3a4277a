"""The tokens of one call as attention sees them: where they stand, not what they say.

`arrange` turns what a caller knows (batch, length, perhaps document ids, positions, a cache) into `Tokens`::

    tokens = arrange(batch=2, length=16, device=x.device, document_ids=ids, past=cache.past)
    context = StepContext(tokens, contiguous=len(cache) == 0)
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from minillm.attention.machine import machine
from minillm.errors import MinillmError

T = TypeVar("T")


class Tokens(NamedTuple):
    """Index, position and document of a run of tokens; each (B, T) int64, or (1, T) where all rows agree.

    index: place in the row, counting padding and everything already in the cache: causality and windows compare it.
        (1, T) and consecutive, but for a cache's keys.
    position: place in the document: rotations, biases, temperatures and chunks read it. The very same tensor object as
        `index` where the two are known to be equal: that is how a fast path knows without looking at the values.
    document: id of the packed document, negative for padding; None where the row is one document without padding.
    """

    index: Tensor  # type: ignore[assignment]  # shadows tuple.index, which nobody needs here
    position: Tensor
    document: Tensor | None


def cut(tokens: Tokens, start: int, stop: int) -> Tokens:
    """The tokens from `start` up to `stop`; position stays the same object as index where it was."""
    index = tokens.index[:, start:stop]
    position = index if tokens.position is tokens.index else tokens.position[:, start:stop]
    return Tokens(index, position, None if tokens.document is None else tokens.document[:, start:stop])


class Past(NamedTuple):
    """What a cache has seen: enough to say where the next token of each row stands.

    seen: tokens so far, padding included. position: (B or 1,) of each row's last real token, None where positions have
    equalled indices all along. document: (B,) of the last real token (negative: none yet), None where none was given.
    """

    seen: int
    position: Tensor | None
    document: Tensor | None


class StepContext:
    """One forward call: the query tokens, and what layers of equal specs share (tables, masks, biases).

    `contiguous` is True when this call's keys are exactly its queries and index == 0..T-1 (no cache, or an empty one):
    banded and the causal fast path rely on it. `past` is what a cache has seen before, None without one. `machine` says
    which kernels there are for these tokens' device.
    """

    def __init__(self, tokens: Tokens, contiguous: bool, past: Past | None = None) -> None:
        self.tokens = tokens
        self.contiguous = contiguous
        self.past = past
        self.machine = machine(tokens.index.device.type)
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()` at the first call with `key`, the same object afterwards."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


def arrange(
    batch: int,
    length: int,
    device: torch.device | str,
    document_ids: Tensor | None = None,
    positions: Tensor | None = None,
    past: Past | None = None,
) -> Tokens:
    """Where the next `length` tokens of `batch` rows stand.

    document_ids: (B, T) integers, negative for padding. None: the row goes on with the document it is in, or is one
        document. Tokens cached without ids count as document 0 once ids are given.
    positions: (B, T), (1, T) or (T,) integers, taken as they are. None: 0, 1, 2, ... from the start of each document,
        going on from the cache; padding is not counted and stands at 0.
    """
    seen = past.seen if past is not None else 0
    index = torch.arange(seen, seen + length, device=device)[None]
    document = _documents(batch, length, document_ids, past)
    if positions is not None:
        if positions.dim() == 1:
            positions = positions[None]
        if positions.dim() != 2 or positions.shape[1] != length or positions.shape[0] not in (1, batch):
            raise MinillmError(f"positions: expected shape ({batch}, {length}), got {tuple(positions.shape)}.")
        position = positions.to(device=device, dtype=torch.int64)
    elif document is not None:
        position = _count_in_documents(document, past)
    elif past is not None and past.position is not None:
        position = past.position[:, None] + (index - seen + 1)
    else:
        position = index
    return Tokens(index, position, document)


def _documents(batch: int, length: int, document_ids: Tensor | None, past: Past | None) -> Tensor | None:
    if document_ids is not None:
        if tuple(document_ids.shape) != (batch, length):
            raise MinillmError(f"document_ids: expected shape ({batch}, {length}), got {tuple(document_ids.shape)}.")
        return document_ids.to(torch.int64)
    if past is not None and past.document is not None:
        # A row that was all padding so far begins its document here.
        return past.document.clamp(min=0)[:, None].expand(batch, length)
    return None


def _count_in_documents(document: Int[Tensor, "B T"], past: Past | None) -> Int[Tensor, "B T"]:
    """Position in the document: real tokens since its first, on top of what the cache holds of it."""
    before_document, before_position = row_ends(document, past)
    real = document >= 0
    starts = document_starts(document, before_document)
    count = real.cumsum(dim=1)
    # Count at the newest start; before any start of this piece, the cache's last position is one below its next.
    base = torch.where(starts, count, 0).cummax(dim=1).values
    position = torch.where(base > 0, count - base, before_position[:, None] + count)
    return torch.where(real, position, 0)


def document_starts(document: Int[Tensor, "B T"], before: Int[Tensor, "B"]) -> Bool[Tensor, "B T"]:
    """True at the first token of each document, padding not looked at; `before` is each row's document before this."""
    real = document >= 0
    place = torch.arange(document.shape[1], device=document.device)
    last_real = torch.where(real, place, -1).cummax(dim=1).values
    previous = torch.cat([last_real.new_full((document.shape[0], 1), -1), last_real[:, :-1]], dim=1)
    previous_document = torch.where(previous >= 0, document.gather(1, previous.clamp(min=0)), before[:, None])
    return real & (document != previous_document)


def row_ends(document: Int[Tensor, "B T"], past: Past | None) -> tuple[Int[Tensor, "B"], Int[Tensor, "B"]]:
    """Document and position of each row's last real token before this piece; -1 and -1 where there is none."""
    none = document.new_full((document.shape[0],), -1)
    if past is None or past.seen == 0:
        return none, none
    ids = past.document if past.document is not None else torch.zeros_like(none)
    last = past.position if past.position is not None else none.new_tensor([past.seen - 1])
    return ids, last.expand_as(none)


def follow(past: Past, tokens: Tokens) -> Past:
    """`past` after `tokens`: what `arrange` needs for the piece that comes next."""
    seen = past.seen + tokens.index.shape[1]
    if tokens.document is None:
        position = None if tokens.position is tokens.index else tokens.position[:, -1]
        return Past(seen, position, None)
    document = tokens.document
    before_document, before_position = row_ends(document, past)
    place = torch.arange(document.shape[1], device=document.device)
    last = torch.where(document >= 0, place, -1).amax(dim=1)
    at = last.clamp(min=0)[:, None]
    position = tokens.position.expand_as(document).gather(1, at)[:, 0]
    return Past(
        seen,
        torch.where(last >= 0, position, before_position),
        torch.where(last >= 0, document.gather(1, at)[:, 0], before_document),
    )
