"""`sdpa`: torch's fused kernel. The causal flag where nothing but causality hides a key, a mask everywhere else.

Queries go through the kernel some rows at a time, each run with the keys up to its last row: a masked attention then
costs half the square and not all of it. Masks are made once per distinct kind and step, and already as numbers: every
layer would turn a boolean one into numbers again. Where only differences of indices matter, one strip of mask and bias
for the last rows holds that of all others. Windows on long sequences still belong to `banded`.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from minillm.attention.mask import Call, additive, bias_key, has_bias, score_bias, uniform, visible
from minillm.attention.slices import join, prefixes
from minillm.attention.tokens import Tokens, cut


def sdpa(call: Call) -> Float[Tensor, "B H Tq K"]:
    spec = call.spec
    if _all_visible(call):
        return fused(call.q, call.k, call.v, None, spec.score_scale, sinks=call.sinks)
    causal = _only_causal(call)
    rows = _rows_at_once(call, causal)
    if call.context.contiguous and rows < call.q.shape[2]:
        return _by_rows(call, rows)
    if causal:
        return fused(call.q, call.k, call.v, None, spec.score_scale, causal=True, sinks=call.sinks)
    mask = call.context.once(
        ("sdpa", spec.mask_key, bias_key(call), call.k.shape[2], call.q.dtype),
        lambda: _mask(call, call.queries, call.keys),
    )
    return fused(call.q, call.k, call.v, mask, spec.score_scale, sinks=call.sinks)


def _only_causal(call: Call) -> bool:
    """The keys are the queries, and no window, chunk, document or bias takes effect."""
    if not call.context.contiguous or call.queries.document is not None or has_bias(call.spec):
        return False
    reach = call.spec.reach
    if reach is not None and call.q.shape[2] > reach:
        return False
    return call.spec.chunk is None or call.queries.position is call.queries.index


def _all_visible(call: Call) -> bool:
    """One new token after a cache that holds nothing it may not see (a ring never holds more than the window)."""
    spec = call.spec
    if call.q.shape[2] != 1 or call.keys.document is not None or has_bias(spec):
        return False
    if spec.chunk is not None or spec.sink_tokens is not None:
        return False
    return spec.window is None or call.k.shape[2] <= spec.window


def _rows_at_once(call: Call, causal: bool) -> int:
    """Query rows per kernel call. The CPU kernel takes 512 keys at a time, so its causal flag saves nothing on short
    sequences (measured at 512 tokens: 128 rows at once take 0.7 of the time); on long ones the flag is best."""
    length = call.q.shape[2]
    if causal and (call.q.is_cuda or length >= 2048):
        return length
    return 1024 if call.q.is_cuda else max(128, length // 32)


def _by_rows(call: Call, rows: int) -> Float[Tensor, "B H T K"]:
    spec, length = call.spec, call.q.shape[2]
    stops = [*range(rows, length, rows), length]
    masks = call.context.once(
        ("sdpa rows", spec.mask_key, bias_key(call), length, rows, call.q.dtype), lambda: _row_masks(call, rows, stops)
    )
    parts = zip(call.q.split(rows, dim=2), prefixes(call.k, stops), prefixes(call.v, stops), masks, strict=True)
    return join([fused(q, k, v, mask, spec.score_scale, sinks=call.sinks) for q, k, v, mask in parts])


def _row_masks(call: Call, rows: int, stops: list[int]) -> list[Tensor]:
    """For each run of rows, what is added to its scores against keys[:stop]."""
    tokens, length = call.queries, call.q.shape[2]
    if uniform(call):
        # The last rows see the farthest: what a row further up needs is the right end of this strip.
        strip = _mask(call, cut(tokens, length - rows, length), tokens)
        starts = [0, *stops[:-1]]
        return [strip[:, :, start - stop :, length - stop :] for start, stop in zip(starts, stops, strict=True)]
    return [
        _mask(call, cut(tokens, start, stop), cut(tokens, 0, stop))
        for start, stop in zip([0, *stops[:-1]], stops, strict=True)
    ]


def _mask(call: Call, queries: Tokens, keys: Tokens) -> Tensor:
    seen = visible(call.spec.mask_key, queries, keys)
    return additive(seen, score_bias(call.spec, call.position, queries, keys), call.q.dtype)


def fused(
    q: Float[Tensor, "B H Tq K"],
    k: Float[Tensor, "B G Tk K"],
    v: Float[Tensor, "B G Tk K"],
    mask: Float[Tensor, "B1 H1 Tq Tk"] | None,
    scale: float,
    causal: bool = False,
    sinks: Float[Tensor, "H"] | None = None,
) -> Float[Tensor, "B H Tq K"]:
    """torch's attention with grouped heads. `mask` is added to the scores; float32 masks keep their precision."""
    if sinks is not None:
        return _with_sinks(q, k, v, mask, scale, causal, sinks)
    dtype = q.dtype
    groups = q.shape[1] // k.shape[1]
    if q.is_cuda and mask is not None:
        # The CUDA kernel that takes masks knows neither grouped heads nor a mask more precise than the queries.
        if mask.dtype != q.dtype:
            q, k, v = q.to(mask.dtype), k.to(mask.dtype), v.to(mask.dtype)
        if groups > 1:
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
            groups = 1
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scale, enable_gqa=groups > 1)
    return out.to(dtype)


SINK_CHANNELS = 8
"""Channels by which heads grow to carry sinks: the kernels like multiples of 8."""


def _with_sinks(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scale: float, causal: bool, sinks: Float[Tensor, "H"]
) -> Float[Tensor, "B H Tq K"]:
    """The kernel knows no sinks: one more key carries them, whose score is the sink's logit and whose value is 0.

    Queries carry the logit in channels of their own, where other keys have 0 and the sink's key has 1: as a column of
    the mask it would cost the fused backward pass. In half precision it is the sum of two channels, so of 16 bits.
    """
    width = q.shape[-1]
    logit = sinks.float() / scale
    high = logit.to(q.dtype)
    channels = torch.stack([high, (logit - high).to(q.dtype)], dim=-1)
    channels = F.pad(channels, (0, SINK_CHANNELS - 2))[None, :, None]
    q = torch.cat([q, channels.expand(q.shape[0], -1, q.shape[2], -1)], dim=-1)
    k, v = F.pad(k, (0, SINK_CHANNELS)), F.pad(v, (0, SINK_CHANNELS))
    key = torch.zeros_like(k[:, :, :1])
    key[..., width : width + 2] = 1
    # In front, so that the causal flag still fits once the queries have a row for it.
    k, v = torch.cat([key, k], dim=2), torch.cat([torch.zeros_like(key), v], dim=2)
    if causal:
        return fused(F.pad(q, (0, 0, 1, 0)), k, v, None, scale, causal=True)[:, :, 1:, :width]
    return fused(q, k, v, None if mask is None else F.pad(mask, (1, 0)), scale)[..., :width]
