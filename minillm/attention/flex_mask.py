"""What `flex` gives torch as a mask: a function of one query and key, and which blocks of 128 by 128 to compute at all.

torch's own `create_block_mask` evaluates the function over the whole square, which at 32k tokens is a billion entries
per step unless compiled. Windows, chunks and documents are intervals, so here a block is judged by the ends of its
intervals: (T / 128) squared entries, no compilation, no look at values. The judgement may call an empty block partial,
never the other way round, and the function decides within partial blocks.

Numbers that differ between layers (a window, a chunk) are tensors: as Python numbers each would compile a kernel of its
own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from minillm.attention.mask import Call
from minillm.attention.tokens import Tokens
from minillm.config.layers import MaskKey

BLOCK = 128
"""Queries and keys of a block: what torch's kernels are tuned for."""

MaskFunction = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""(batch, head, query, key) to whether the query sees the key."""


class BlockMap(NamedTuple):
    """Which blocks hold pairs that are seen, and which nothing but such pairs: (B, Nq, Nk), B is 1 where rows agree."""

    some: Bool[Tensor, "B N N"]
    every: Bool[Tensor, "B N N"]


def block_mask(call: Call) -> Any:
    """torch's BlockMask of a call whose keys are its queries; one per distinct mask, length and step.

    Where it depends on the length alone it is kept for later steps.
    """
    tokens, key, length = call.queries, call.spec.mask_key, call.q.shape[2]
    needs_position = key.chunk is not None or key.sink_tokens is not None
    if tokens.document is None and (tokens.position is tokens.index or not needs_position):
        return _by_length(key, length, str(tokens.index.device))
    batch = call.q.shape[0]
    return call.context.once(("flex mask", key, batch, length), lambda: _make(key, _rows(tokens, batch), length))


@lru_cache(maxsize=64)
def _by_length(key: MaskKey, length: int, device: str) -> Any:
    # Tensors made in inference mode could not be used in training later.
    with torch.inference_mode(False), torch.no_grad():
        index = torch.arange(length, device=device)[None]
        return _make(key, Tokens(index, index, None), length)


def _rows(tokens: Tokens, batch: int) -> Tokens:
    """Position and document with a row for each of the batch, as a kernel indexes them."""
    if tokens.document is None and tokens.position.shape[0] == 1:
        return tokens
    position = tokens.position if tokens.position is tokens.index else tokens.position.expand(batch, -1).contiguous()
    return Tokens(tokens.index, position, tokens.document)


def _make(key: MaskKey, tokens: Tokens, length: int) -> Any:
    from torch.nn.attention.flex_attention import BlockMask

    some, every = block_map(key, tokens, length, BLOCK)
    parts = [_ordered(some & ~every), _ordered(every)]
    (number, indices), (full_number, full_indices) = parts
    return BlockMask.from_kv_blocks(
        number, indices, full_number, full_indices, BLOCK_SIZE=BLOCK, mask_mod=mask_function(key, tokens),
        seq_lengths=(length, length),
    )  # fmt: skip


def _ordered(chosen: Bool[Tensor, "B N N"]) -> tuple[Int[Tensor, "B 1 N"], Int[Tensor, "B 1 N N"]]:
    """How many blocks of each row of blocks, and their numbers, chosen ones first."""
    order = chosen.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    return chosen.sum(-1, dtype=torch.int32)[:, None], order.to(torch.int32).contiguous()[:, None]


def mask_function(key: MaskKey, tokens: Tokens) -> MaskFunction:
    """`mask.visible`, for one pair of a call whose keys are its queries."""
    device = tokens.index.device

    def number(value: int | None) -> Tensor | None:
        # Filled on the device: a copy from the host would wait for it.
        return None if value is None else torch.full((), value, device=device)

    window, chunk, sinks = number(key.window), number(key.chunk), number(key.sink_tokens)
    document = tokens.document
    position = None if tokens.position is tokens.index else tokens.position
    per_row = position is not None and position.shape[0] > 1
    if position is not None and not per_row:
        position = position[0]

    @no_type_check  # the tests check all shapes at run time, within a function that torch compiles they cannot
    def where(b: Tensor, i: Tensor) -> Tensor:
        if position is None:
            return i
        return position[b, i] if per_row else position[i]

    @no_type_check
    def seen(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        back = q - k
        result = back >= 0
        if window is not None:
            near = back < window
            if sinks is not None:
                near = near | (where(b, k) < sinks)
            result = result & near
        if chunk is not None:
            result = result & (back < chunk) & (where(b, q) // chunk == where(b, k) // chunk)
        if document is not None:
            of_key = document[b, k]
            result = (result & (document[b, q] == of_key) & (of_key >= 0)) | (back == 0)
        return result

    return seen


def block_map(key: MaskKey, tokens: Tokens, length: int, size: int) -> BlockMap:
    """Judge all blocks of `size` by `size`; one that the end of the sequence cuts is never called full."""
    device = tokens.index.device
    count = -(-length // size)
    first = torch.arange(count, device=device) * size
    last = (first + size - 1).clamp(max=length - 1)
    # How far back the nearest and the farthest key of a block stand, over all of its queries.
    nearest, farthest = (first[:, None] - last)[None], (last[:, None] - first)[None]
    some, every = farthest >= 0, nearest >= 0

    def in_blocks(x: Tensor) -> Int[Tensor, "B N size"]:
        at = torch.arange(count * size, device=device).clamp(max=length - 1)
        return x[:, at].unflatten(1, (count, size))

    if key.window is not None:
        near, all_near = nearest < key.window, farthest < key.window
        if key.sink_tokens is not None:
            low, high = in_blocks(tokens.position).aminmax(dim=-1)
            near = near | (low < key.sink_tokens)[:, None]
            all_near = all_near | (high < key.sink_tokens)[:, None]
        some, every = some & near, every & all_near
    if key.chunk is not None:
        meet, same = _intervals(in_blocks(tokens.position // key.chunk))
        some, every = some & meet & (nearest < key.chunk), every & same & (farthest < key.chunk)
    if tokens.document is not None:
        document = in_blocks(tokens.document)
        real = document >= 0
        # A block without a real token has an empty interval, which meets none.
        low = torch.where(real, document, torch.iinfo(document.dtype).max).amin(dim=-1)
        high = torch.where(real, document, -1).amax(dim=-1)
        meet = (low[:, :, None] <= high[:, None]) & (low[:, None] <= high[:, :, None])
        _, same = _intervals(document)
        alone = torch.eye(count, dtype=torch.bool, device=device)  # padding sees itself
        some, every = (some & meet) | alone, every & same & real.all(dim=-1)[:, None]
    whole = first + size <= length
    return BlockMap(some, every & whole & whole[:, None])


def _intervals(x: Int[Tensor, "B N size"]) -> tuple[Bool[Tensor, "B N N"], Bool[Tensor, "B N N"]]:
    """Do the values of two blocks' tokens lie in intervals that meet; are they all one value?"""
    low, high = x.aminmax(dim=-1)
    meet = (low[:, :, None] <= high[:, None]) & (low[:, None] <= high[:, :, None])
    one = low == high
    return meet, one[:, :, None] & one[:, None] & (low[:, :, None] == low[:, None])
