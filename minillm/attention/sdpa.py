"""`sdpa`: torch's fused kernel. The causal flag where nothing but causality hides a key, a mask everywhere else.

A mask costs the whole square, hidden pairs included, so windows on long sequences belong to `banded`. On CPU the
kernel with a mask and grouped heads is the fused one, forward and backward. Masks are made once per distinct kind and
step, and already as numbers: a boolean one would be turned into numbers again by every layer.
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from minillm.attention.mask import Call, additive, bias_key, has_bias, score_bias, visible


def sdpa(call: Call) -> Float[Tensor, "B H Tq K"]:
    spec = call.spec
    if _only_causal(call):
        return fused(call.q, call.k, call.v, None, spec.score_scale, causal=True)
    if _all_visible(call):
        return fused(call.q, call.k, call.v, None, spec.score_scale)
    mask = call.context.once(
        ("sdpa", spec.mask_key, bias_key(spec), call.k.shape[2], call.q.dtype), lambda: _mask(call)
    )
    return fused(call.q, call.k, call.v, mask, spec.score_scale)


def _mask(call: Call) -> Tensor:
    seen = visible(call.spec.mask_key, call.queries, call.keys)
    return additive(seen, score_bias(call.spec, call.position, call.queries, call.keys), call.q.dtype)


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
    if call.q.shape[2] != 1 or call.keys.document is not None or has_bias(call.spec) or call.spec.chunk is not None:
        return False
    return call.spec.window is None or call.k.shape[2] <= call.spec.window


def fused(
    q: Float[Tensor, "B H Tq K"],
    k: Float[Tensor, "B G Tk K"],
    v: Float[Tensor, "B G Tk K"],
    mask: Float[Tensor, "B1 H1 Tq Tk"] | None,
    scale: float,
    causal: bool = False,
) -> Float[Tensor, "B H Tq K"]:
    """torch's attention with grouped heads. `mask` is added to the scores; float32 masks keep their precision."""
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
