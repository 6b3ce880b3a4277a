"""`banded`: windows and chunks in time and memory linear in the length, by block slicing over the fused kernel.

Rows are cut into blocks of `b`; the keys that a block can see lie in it and the `m` blocks before it, with m * b at
least the window. All blocks become one batch of (b, (m + 1) * b) attentions of equal shape, so that one small mask
serves all of them. The first m * b rows, which lack m blocks before them, are an ordinary attention among themselves::

    rows 0..mb-1   keys 0..mb-1          the head: causal, and the window where m * b exceeds it
    rows mb..mb+b  keys 0..mb+b          a block
    rows mb+b..    keys b..              the next block, the same mask

With a cache the keys are a ring of at most `reach` entries plus the new piece: the band is already cut, and the
piece is one masked attention.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from minillm.attention.mask import Call, additive, bias_key, has_bias, score_bias, visible
from minillm.attention.sdpa import fused, sdpa
from minillm.attention.tokens import Tokens
from minillm.config.layers import LayerSpec


def unsupported(spec: LayerSpec) -> str | None:
    if spec.reach is None:
        return "has neither a window nor a chunk; 'sdpa' and 'reference' can"
    return None


def blocks(reach: int) -> tuple[int, int]:
    """(m, b): how many earlier blocks a block looks back on, and rows per block; m * b >= reach - 1.

    Small blocks look at fewer keys in vain (b of every m * b + b), large ones run nearer to the kernel's full speed.
    """
    b = max(16, min(64, reach // 2), reach // 8)
    return max(1, -(-(reach - 1) // b)), b


def banded(call: Call) -> Float[Tensor, "B H T K"]:
    reach = call.spec.reach
    assert reach is not None  # `unsupported` refuses it
    m, b = blocks(reach)
    length = call.q.shape[2]
    if not call.context.contiguous or length <= m * b:
        return sdpa(call)
    if call.spec.chunk is not None and _plain(call):
        return _whole_chunks(call, call.spec.chunk)
    return _head_and_blocks(call, m, b)


def _plain(call: Call) -> bool:
    return call.queries.document is None and call.queries.position is call.queries.index and not has_bias(call.spec)


def _whole_chunks(call: Call, chunk: int) -> Float[Tensor, "B H T K"]:
    """Chunks that begin at multiples of `chunk` in every row: each is a causal attention of its own, without a mask."""
    length = call.q.shape[2]
    whole = length - length % chunk
    scale = call.spec.score_scale

    def causal(start: int, stop: int, size: int) -> Tensor:
        q, k, v = (_fold(x[:, :, start:stop], size) for x in (call.q, call.k, call.v))
        return _unfold(fused(q, k, v, None, scale, causal=True), call.q.shape[0])

    if whole == length:
        return causal(0, length, chunk)
    return _join([causal(0, whole, chunk), causal(whole, length, length - whole)])


def _cut(tokens: Tokens, stop: int) -> Tokens:
    index = tokens.index[:, :stop]
    # Equal stays identical: fast paths look at identity (see `Tokens`).
    position = index if tokens.position is tokens.index else tokens.position[:, :stop]
    return Tokens(index, position, None if tokens.document is None else tokens.document[:, :stop])


def _head_and_blocks(call: Call, m: int, b: int) -> Float[Tensor, "B H T K"]:
    """The first m * b rows among themselves, all others as one batch of blocks."""
    batch, _, length, _ = call.q.shape
    head = m * b
    count = -(-(length - head) // b)
    pad = head + count * b - length  # rows beyond the end come after everything, so causality hides them
    q_head, q = call.q.split([head, length - head], dim=2)
    k_head, k = _Bands.apply(call.k, m, b)
    v_head, v = _Bands.apply(call.v, m, b)

    tokens = _cut(call.queries, head)
    first = sdpa(call._replace(q=q_head, k=k_head, v=v_head, queries=tokens, keys=tokens))

    mask = call.context.once(
        ("banded", call.spec.mask_key, bias_key(call.spec), length, call.q.dtype), lambda: _mask(call, m, b, count)
    )
    if mask.shape[0] not in (1, batch * count):
        mask = mask[None].expand(batch, *mask.shape).flatten(0, 1)
    out = fused(_fold(F.pad(q, (0, 0, 0, pad)) if pad else q, b), k, v, mask, call.spec.score_scale)
    return _join([first, _unfold(out, batch)[:, :, : length - head]])


class _Bands(torch.autograd.Function):
    """Keys or values (B, G, T, K) as the head (B, G, m * b, K) and each block's band (B * count, G, (m + 1) * b, K).

    torch's own backward of overlapping slices fills a tensor of full length for each; this one adds m + 1 times to one.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, m: int, b: int) -> tuple[Tensor, Tensor]:
        ctx.shape = x.shape
        ctx.m, ctx.b = m, b
        pad = -x.shape[2] % b
        padded = F.pad(x, (0, 0, 0, pad)) if pad else x
        # unfold puts the band last: (B, G, count, K, band).
        bands = padded.unfold(2, (m + 1) * b, b).permute(0, 2, 1, 4, 3).flatten(0, 1)
        return x[:, :, : m * b].clone(), bands

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        to_head, to_bands = grads
        m, b = ctx.m, ctx.b
        batch, heads, length, width = ctx.shape
        bands = to_bands.unflatten(0, (batch, -1)).unflatten(3, (m + 1, b)).transpose(1, 2)
        count = bands.shape[2]
        out = to_bands.new_zeros(batch, m + count, b, heads, width).permute(0, 3, 1, 2, 4)
        for part in range(m + 1):
            out[:, :, part : part + count] += bands[:, :, :, part]
        out = out.flatten(2, 3)
        out[:, :, : m * b] += to_head
        return out[:, :, :length], None, None


def _mask(call: Call, m: int, b: int, count: int) -> Float[Tensor, "BN H1 b span"]:
    """(1 or rows * count, 1 or H, b, (m + 1) * b): what each block's queries see, and the bias."""
    spec, head, span = call.spec, m * b, (m + 1) * b
    if _uniform(call):
        index = torch.arange(span, device=call.q.device)[None]
        queries, keys = Tokens(index[:, head:], index[:, head:], None), Tokens(index, index, None)
    else:
        queries = _block_tokens(call.queries, head, b, b, count)
        keys = _block_tokens(call.queries, 0, span, b, count)
    seen = visible(spec.mask_key, queries, keys)
    return additive(seen, score_bias(spec, call.position, queries, keys), call.q.dtype)


def _uniform(call: Call) -> bool:
    """Does one block's mask serve all? It does while only differences of indices matter."""
    tokens = call.queries
    if tokens.document is not None or call.spec.chunk is not None:
        return False
    if call.position is None or not has_bias(call.spec):
        return True
    return tokens.position is tokens.index and call.position.shift_invariant


def _block_tokens(tokens: Tokens, start: int, size: int, step: int, count: int) -> Tokens:
    """`count` runs of `size` tokens, `step` apart, from `start` on: (rows * count, size); past the end is padding."""
    need = start + (count - 1) * step + size
    index = torch.arange(need, device=tokens.index.device)[None]
    pad = need - tokens.index.shape[1]
    position = F.pad(tokens.position, (0, pad))
    document = None if tokens.document is None else F.pad(tokens.document, (0, pad), value=-1)
    rows = max(position.shape[0], 1 if document is None else document.shape[0])

    def cut(x: Tensor) -> Tensor:
        return x.expand(rows, need)[:, start:].unfold(1, size, step).flatten(0, 1)

    return Tokens(cut(index), cut(position), None if document is None else cut(document))


def _fold(x: Float[Tensor, "B N T K"], size: int) -> Float[Tensor, "BC N size K"]:
    """(B, N, count * size, K) as a batch of blocks (B * count, N, size, K); no copy where x is a (B, T, N, K) view."""
    return x.unflatten(2, (-1, size)).transpose(1, 2).flatten(0, 1)


def _unfold(x: Float[Tensor, "BC N size K"], batch: int) -> Float[Tensor, "B N T K"]:
    """Undo `_fold`."""
    return x.unflatten(0, (batch, -1)).transpose(1, 2).flatten(2, 3)


def _join(pieces: list[Tensor]) -> Float[Tensor, "B N T K"]:
    """Along T, in (B, T, N, K) memory order: the kernel's own, and what the output projection reads."""
    return torch.cat([piece.transpose(1, 2) for piece in pieces], dim=1).transpose(1, 2)
