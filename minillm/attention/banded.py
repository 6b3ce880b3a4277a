"""`banded`: windows and chunks in time and memory linear in the length, by block slicing over the fused kernel.

Rows are cut into blocks of `b`; the keys that a block can see lie in it and the `m` blocks before it, with m * b at
least the window. All blocks become one batch of (b, (m + 1) * b) attentions of equal shape, so that one small mask
serves all of them. The first m * b rows, which lack m blocks before them, are an ordinary attention among themselves::

    rows 0..mb-1   keys 0..mb-1          the head: causal, and the window where m * b exceeds it
    rows mb..mb+b  keys 0..mb+b          a block
    rows mb+b..    keys b..              the next block, the same mask

Kept first tokens (`sink_tokens`) stand in front of every block's keys; m is then so large that they lie outside of its
window, so that the mask stays one for all. In packed documents, where each block would have other first tokens, and
under a bias, which grows with the distance to them, such a layer is a masked attention over all keys.

With a cache the keys are a ring of at most `reach` entries plus the new piece: the band is already cut, and the
piece is one masked attention.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from minillm.attention.mask import Call, additive, bias_key, has_bias, score_bias, uniform, visible
from minillm.attention.sdpa import fused, sdpa
from minillm.attention.slices import bands, fold, join, unfold
from minillm.attention.tokens import Tokens, cut
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
    reach, kept = call.spec.reach, call.spec.sink_tokens
    assert reach is not None  # `unsupported` refuses it
    m, b = blocks(reach + (kept or 0))
    length = call.q.shape[2]
    if not call.context.contiguous or length <= m * b or (kept is not None and not _plain(call)):
        return sdpa(call)
    if call.spec.chunk is not None and _plain(call):
        return _whole_chunks(call, call.spec.chunk)
    return _head_and_blocks(call, m, b)


def _plain(call: Call) -> bool:
    return call.queries.document is None and call.queries.position is call.queries.index and not has_bias(call.spec)


def _whole_chunks(call: Call, chunk: int) -> Float[Tensor, "B H T K"]:
    """Chunks that begin at multiples of `chunk` in every row: each is a causal attention of its own."""
    length = call.q.shape[2]
    whole = length - length % chunk

    def among_themselves(start: int, stop: int, size: int) -> Tensor:
        q, k, v = (fold(x[:, :, start:stop], size) for x in (call.q, call.k, call.v))
        tokens = cut(call.queries, 0, size)
        return unfold(sdpa(call._replace(q=q, k=k, v=v, queries=tokens, keys=tokens)), call.q.shape[0])

    if whole == length:
        return among_themselves(0, length, chunk)
    return join([among_themselves(0, whole, chunk), among_themselves(whole, length, length - whole)])


def _head_and_blocks(call: Call, m: int, b: int) -> Float[Tensor, "B H T K"]:
    """The first m * b rows among themselves, all others as one batch of blocks."""
    batch, _, length, _ = call.q.shape
    head = m * b
    count = -(-(length - head) // b)
    pad = head + count * b - length  # rows beyond the end come after everything, so causality hides them
    q_head, q = call.q.split([head, length - head], dim=2)
    k_head, k = bands(call.k, m, b)
    v_head, v = bands(call.v, m, b)

    tokens = cut(call.queries, 0, head)
    first = sdpa(call._replace(q=q_head, k=k_head, v=v_head, queries=tokens, keys=tokens))

    mask = call.context.once(
        ("banded", call.spec.mask_key, bias_key(call), length, call.q.dtype), lambda: _mask(call, m, b, count)
    )
    if call.spec.sink_tokens is not None:
        k, v = (_with_kept(x, x_head, call.spec.sink_tokens) for x, x_head in ((k, k_head), (v, v_head)))
    out = fused(fold(F.pad(q, (0, 0, 0, pad)) if pad else q, b), k, v, mask, call.spec.score_scale, sinks=call.sinks)
    return join([first, unfold(out, batch)[:, :, : length - head]])


def _with_kept(x: Float[Tensor, "BN G span K"], head: Float[Tensor, "B G head K"], kept: int) -> Tensor:
    """(B * count, G, kept + span, K): each block's keys or values behind those of the row's first `kept` tokens."""
    first = head[:, None, :, :kept].expand(-1, len(x) // len(head), -1, -1, -1)
    return torch.cat([first.flatten(0, 1), x], dim=2)


def _mask(call: Call, m: int, b: int, count: int) -> Float[Tensor, "BN H1 b span"]:
    """(1 or B * count, 1 or H, b, kept + (m + 1) * b): what each block's queries see, and the bias."""
    spec, head, span = call.spec, m * b, (m + 1) * b
    if spec.sink_tokens is not None:
        # All of the kept are seen, and outside of the window: its own rule says nothing of them here.
        index = torch.arange(span, device=call.q.device)[None]
        queries, keys = Tokens(index[:, head:], index[:, head:], None), Tokens(index, index, None)
        seen = visible(spec.mask_key._replace(sink_tokens=None), queries, keys)
        return additive(F.pad(seen, (spec.sink_tokens, 0), value=True), None, call.q.dtype)
    if uniform(call):
        index = torch.arange(span, device=call.q.device)[None]
        queries, keys = Tokens(index[:, head:], index[:, head:], None), Tokens(index, index, None)
    else:
        batch = call.q.shape[0]
        queries = _block_tokens(call.queries, batch, head, b, b, count)
        keys = _block_tokens(call.queries, batch, 0, span, b, count)
    seen = visible(spec.mask_key, queries, keys)
    return additive(seen, score_bias(spec, call.position, queries, keys), call.q.dtype)


def _block_tokens(tokens: Tokens, batch: int, start: int, size: int, step: int, count: int) -> Tokens:
    """`count` runs of `size` tokens, `step` apart, from `start` on: (B * count, size); past the end is padding."""
    need = start + (count - 1) * step + size
    pad = need - tokens.index.shape[1]

    def runs(x: Tensor) -> Tensor:
        return x.expand(batch, need)[:, start:].unfold(1, size, step).flatten(0, 1)

    index = torch.arange(need, device=tokens.index.device)[None]
    position = F.pad(tokens.position, (0, pad))
    document = None if tokens.document is None else F.pad(tokens.document, (0, pad), value=-1)
    return Tokens(runs(index), runs(position), None if document is None else runs(document))
