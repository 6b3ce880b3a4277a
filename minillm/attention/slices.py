"""Cutting queries, keys and values into rows and bands for the fused kernel, with backward passes that cost as little.

torch's own backward of a slice fills a tensor of full length with zeros, copies the gradient in, and adds it to the
others: three passes over everything per slice. The functions here add each slice's gradient into one tensor.

Shapes: B batch, N heads of any kind, T tokens, K head width.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F


def prefixes(x: Float[Tensor, "B N T K"], stops: Sequence[int]) -> tuple[Tensor, ...]:
    """x[:, :, :stop] for each of the rising `stops`, the last of which is T."""
    return _Prefixes.apply(x, tuple(stops))


def bands(x: Float[Tensor, "B N T K"], m: int, b: int) -> tuple[Tensor, Tensor]:
    """The head (B, N, m * b, K), and for each block of `b` rows after it those of it and of the `m` blocks before it,
    (B * blocks, N, (m + 1) * b, K). The last block is filled up with zeros."""
    return _Bands.apply(x, m, b)


def fold(x: Float[Tensor, "B N T K"], size: int) -> Float[Tensor, "BC N size K"]:
    """(B, N, count * size, K) as a batch of blocks; no copy where x is a view of (B, T, N, K) memory."""
    return x.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)


def unfold(x: Float[Tensor, "BC N size K"], batch: int) -> Float[Tensor, "B N T K"]:
    """Undo `fold`."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)


def join(pieces: Sequence[Tensor]) -> Float[Tensor, "B N T K"]:
    """Put pieces together along T, in (B, T, N, K) memory order: the kernel's, and what the output projection reads."""
    return torch.cat([piece.transpose(1, 2) for piece in pieces], dim=1).transpose(1, 2)


class _Prefixes(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stops: tuple[int, ...]) -> tuple[Tensor, ...]:
        ctx.stops = stops
        return tuple(x[:, :, :stop] for stop in stops)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        out = grads[-1].clone()
        for stop, grad in zip(ctx.stops[:-1], grads[:-1], strict=True):
            out[:, :, :stop] += grad
        return out, None


class _Bands(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, m: int, b: int) -> tuple[Tensor, Tensor]:
        ctx.shape, ctx.m, ctx.b = x.shape, m, b
        pad = -x.shape[2] % b
        padded = F.pad(x, (0, 0, 0, pad)) if pad else x
        # unfold puts the band last: (B, N, blocks, K, band).
        return x[:, :, : m * b], padded.unfold(2, (m + 1) * b, b).permute(0, 2, 1, 4, 3).flatten(0, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        to_head, to_bands = grads
        m, b = ctx.m, ctx.b
        batch, heads, length, width = ctx.shape
        parts = to_bands.unflatten(0, (batch, -1)).unflatten(3, (m + 1, b)).transpose(1, 2)
        blocks = parts.shape[2]
        out = to_bands.new_zeros(batch, m + blocks, b, heads, width).permute(0, 3, 1, 2, 4)
        for part in range(m + 1):
            out[:, :, part : part + blocks] += parts[:, :, :, part]
        out = out.flatten(2, 3)
        out[:, :, : m * b] += to_head
        return out[:, :, :length], None, None
