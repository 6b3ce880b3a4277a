"""How long each document is in this call: what schemes ask that change with the length in use (position/rope.py).

The length of a token is that of its own document up to the end of this call: its largest position + 1. So what stands
in the same batch, in the same row, or between documents as padding changes nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from minillm.attention.tokens import Past, StepContext, Tokens, document_starts, row_ends


class Length(NamedTuple):
    """Tokens of a document at the end of this call, and when the newest of its cached tokens was computed (0: none is
    cached)."""

    now: int
    before: int


class Lengths(NamedTuple):
    """The distinct lengths of a call, and which of them each token has: (B, T) or (B, 1) int64 places in `distinct`,
    or None where there is only one. B is 1 where all rows agree."""

    distinct: tuple[Length, ...]
    which: Tensor | None


def context_lengths(context: StepContext) -> Lengths:
    """`document_lengths` of a call's own tokens, computed once for all layers."""
    tokens = context.tokens
    if tokens.document is None and tokens.position is tokens.index:
        # Known without looking at the values, for which a GPU would have to be waited for.
        seen = 0 if context.past is None else context.past.seen
        return Lengths((Length(seen + tokens.index.shape[1], seen),), None)
    return context.once("document lengths", lambda: document_lengths(tokens, context.past))


def document_lengths(tokens: Tokens, past: Past | None) -> Lengths:
    """Lengths of the documents that `tokens` belong to; `past` is what a cache has seen of them.

    Of what is cached the last position counts. It is the largest unless a caller gave positions that fall.
    """
    if tokens.position.is_meta or tokens.position.numel() == 0:
        return Lengths((Length(0, 0),), None)  # there are shapes only
    now, before = _row_lengths(tokens, past) if tokens.document is None else _packed_lengths(tokens, past)
    pairs = torch.stack((torch.maximum(now, before), before), dim=-1)
    distinct, which = torch.unique(pairs.flatten(0, 1), dim=0, return_inverse=True)
    out = tuple(Length(*pair) for pair in distinct.tolist())
    return Lengths(out, which.view(now.shape) if len(out) > 1 else None)


def _row_lengths(tokens: Tokens, past: Past | None) -> tuple[Int[Tensor, "B 1"], Int[Tensor, "B 1"]]:
    """now and before where each row is one document."""
    now = tokens.position.amax(dim=1, keepdim=True) + 1
    if past is None or past.seen == 0:
        return now, torch.zeros_like(now)
    if past.position is None:
        return now, torch.full_like(now, past.seen)
    now, before = torch.broadcast_tensors(now, past.position[:, None] + 1)
    return now, before


def _packed_lengths(tokens: Tokens, past: Past | None) -> tuple[Int[Tensor, "B T"], Int[Tensor, "B T"]]:
    """now and before of each token's document."""
    document = tokens.document
    assert document is not None
    run, starts = _runs(document)
    now = _longest(run, tokens.position.expand_as(run) + 1)
    if past is None or past.seen == 0:
        return now, torch.zeros_like(now)
    ids, last = row_ends(document, past)
    # Only the first document of a row can go on from the cache.
    goes_on = starts & (run == 1) & (document == ids[:, None])
    return now, _longest(run, torch.where(goes_on, last[:, None] + 1, 0))


def _longest(run: Int[Tensor, "B T"], value: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The largest value of each token's run."""
    # Runs are numbered from 0 for padding before the first document, so there may be one more than tokens.
    most = value.new_zeros(run.shape[0], run.shape[1] + 1)
    return most.scatter_reduce(1, run, value, "amax").gather(1, run)


def _runs(document: Int[Tensor, "B T"]) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Number of each token's document in its row, from 1, and whether it is the document's first token here. Padding
    counts with the document before it, in whose middle it may stand; before the first document its number is 0."""
    starts = document_starts(document, document.new_full((document.shape[0],), -1))
    return starts.cumsum(dim=1), starts
