"""Keys and values in 8 or 4 bits: keys by channel in groups of tokens, values by token (KIVI, arXiv 2402.02750).

The text is cut into blocks of `CacheSettings.residual` tokens, counted from the first token of the cache. The newest
block is held as it is; once it is complete all of it is encoded. So a query sees the tokens of its own block exactly
and all earlier ones as x = low + code * scale, code being a whole number of `bits` bits:

- keys: low and scale for each channel of each head, over `group` tokens. A few channels of keys are far larger than
  the others, the same ones in all tokens, and so spoil no scale but their own. Keys are encoded as they are cached:
  normed and rotated.
- values: low and scale for each token of each head.

What a query sees depends on its own place alone, so logits do not depend on how a prompt is cut into calls (the
Decoder ends a piece where a block ends), only on what is in the cache: with padding on the left, blocks begin at other
tokens of a row than without. First tokens kept for good (attention/kept.py) stay as they are.

Scales have the dtype of the cache, and codes are counted from the rounded ones, so an error is at most half a scale
beyond what that dtype cannot hold anyway. The decoded past of one layer exists while that layer computes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from minillm.attention.stores import Store
from minillm.errors import MinillmError


@runtime_checkable
class Codec(Protocol):
    """How a block of entries is held: as some tensors, each of which grows with the number of blocks."""

    def encode(self, block: Tensor) -> tuple[Tensor, ...]: ...

    def decode(self, parts: Sequence[Tensor], out: Tensor) -> None:
        """Write the blocks that `parts` hold into `out`."""


class AsItIs:
    """Nothing is changed: for where the entries of quantised layers stand."""

    def encode(self, block: Tensor) -> tuple[Tensor, ...]:
        return (block,)

    def decode(self, parts: Sequence[Tensor], out: Tensor) -> None:
        out.copy_(parts[0])


class Blocks:
    """A store of blocks: complete ones encoded, all of them or the last `most`, then the newest as it is.

    Entries come in the order of the slots: a ring of blocks, then the newest block. More of a ring is returned than is
    in reach, up to a block: masks hide it.
    """

    def __init__(self, reach: int | None, most: int | None, dim: int, block: int, codec: Codec) -> None:
        self.reach = reach
        self.most = most
        self.dim = dim
        self.block = block
        self.codec = codec
        self.newest = Store(None, dim)
        self.parts: list[Store] = []

    def stores(self) -> list[Store]:
        return [self.newest, *self.parts]

    @property
    def empty(self) -> bool:
        return self.newest.empty

    def append(self, new: Tensor, seen: int) -> Tensor:
        """As Store.append, for a piece within one block."""
        start, length = seen % self.block, new.shape[self.dim]
        if start + length > self.block:
            raise MinillmError(f"cache: a piece must end where a block of {self.block} tokens ends (KVCache.pieces).")
        own = self.newest.append(new, start)
        done = seen // self.block
        out = own if done == 0 else self._behind_the_past(own, done)
        if start + length == self.block:
            self._finish(done)
        return out

    def used_bytes(self, total: int) -> int:
        """As Store.used_bytes."""
        done, rest = divmod(total, self.block)
        parts = sum(p.used_bytes(done * p.growth) for p in self.parts)
        return parts + self.newest.used_bytes(rest if total else 0)

    def _behind_the_past(self, own: Tensor, done: int) -> Tensor:
        held = done if self.most is None else min(done, self.most)
        past = held * self.block
        shape = list(own.shape)
        shape[self.dim] += past
        out = own.new_empty(shape)
        self.codec.decode([p.newest(held * p.growth) for p in self.parts], out.narrow(self.dim, 0, past))
        out.narrow(self.dim, past, own.shape[self.dim]).copy_(own)
        return out

    def _finish(self, done: int) -> None:
        """Encode the newest block, behind `done` others."""
        encoded = self.codec.encode(self.newest.newest(self.block))
        if not self.parts:
            sizes = [part.shape[self.dim] for part in encoded]
            self.parts = [Store(None if self.most is None else self.most * n, self.dim, growth=n) for n in sizes]
        for part, new in zip(self.parts, encoded, strict=True):
            part.write(new, done * new.shape[self.dim])


class KeyCodec:
    """By channel, over `group` tokens: codes (B, G, T or T/2, K), low and scale (B, G, T/group, 2, K)."""

    def __init__(self, bits: int, group: int, block: int) -> None:
        self.bits = bits
        self.group = group
        self.block = block

    def encode(self, block: Float[Tensor, "B G T K"]) -> tuple[Tensor, ...]:
        groups = block.unflatten(2, (-1, self.group))
        codes, low, scale = _encode(groups, self.bits, dim=3)
        return _pack(codes.flatten(2, 3), self.bits, self.block), torch.cat([low, scale], dim=3)

    def decode(self, parts: Sequence[Tensor], out: Float[Tensor, "B G T K"]) -> None:
        codes, scales = parts
        low, scale = scales.split(1, dim=3)
        groups = out.unflatten(2, (-1, self.group))
        groups.copy_(_unpack(codes, self.bits, self.block).unflatten(2, (-1, self.group)))
        torch.addcmul(low, groups, scale, out=groups)


class ValueCodec:
    """By token: codes (B, G, T or T/2, K), low and scale (B, G, T, 2)."""

    def __init__(self, bits: int, block: int) -> None:
        self.bits = bits
        self.block = block

    def encode(self, block: Float[Tensor, "B G T K"]) -> tuple[Tensor, ...]:
        codes, low, scale = _encode(block, self.bits, dim=3)
        return _pack(codes, self.bits, self.block), torch.cat([low, scale], dim=3)

    def decode(self, parts: Sequence[Tensor], out: Float[Tensor, "B G T K"]) -> None:
        codes, scales = parts
        low, scale = scales.split(1, dim=3)
        # In three steps: addcmul takes 3.6 times as long where its inner dimension is broadcast (torch 2.13, CPU).
        out.copy_(_unpack(codes, self.bits, self.block)).mul_(scale).add_(low)


def _encode(x: Tensor, bits: int, dim: int) -> tuple[UInt8[Tensor, "..."], Tensor, Tensor]:
    """Codes of x, and low and scale over `dim`, which is kept at size 1."""
    exact = x.float()
    low, high = exact.aminmax(dim=dim, keepdim=True)
    most = 2**bits - 1
    low = low.to(x.dtype)
    scale = ((high - low.float()) / most).to(x.dtype)
    # Where all are equal, scale is 0 and so is every code.
    steps = (exact - low.float()) / torch.where(scale == 0, 1, scale).float()
    return steps.round().clamp(0, most).to(torch.uint8), low, scale


def _pack(codes: UInt8[Tensor, "B G T K"], bits: int, block: int) -> UInt8[Tensor, "B G Tp K"]:
    """Of 4 bits, the second half of each block's tokens goes above the first."""
    if bits == 8:
        return codes
    first, second = codes.unflatten(2, (-1, 2, block // 2)).unbind(3)
    return (first | (second << 4)).flatten(2, 3)


def _unpack(packed: UInt8[Tensor, "B G Tp K"], bits: int, block: int) -> UInt8[Tensor, "B G T K"]:
    if bits == 8:
        return packed
    blocks = packed.unflatten(2, (-1, block // 2))
    return torch.stack([blocks & 15, blocks >> 4], dim=3).flatten(2, 4)
