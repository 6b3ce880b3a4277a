"""What a query may see, and what is added to its scores: the mask algebra that every backend reads.

Three rules, all of which must agree: causal and window by index, chunk by position, same document. Padding (a negative
document) is seen by no other token, yet sees itself, so that no row is empty and softmax never meets 0/0.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from minillm.attention.tokens import StepContext, Tokens
from minillm.config.layers import LayerSpec, MaskKey
from minillm.position.base import LayerPosition


class Call(NamedTuple):
    """One layer's attention: queries (B, H, Tq, K), keys and values (B, G, Tk, K), and where they stand."""

    q: Tensor
    k: Tensor
    v: Tensor
    spec: LayerSpec
    queries: Tokens
    keys: Tokens
    context: StepContext
    position: LayerPosition | None
    sinks: Tensor | None = None
    """(H,) learned logits that take part in each softmax and carry no value (`LayerSpec.sink_logits`)."""


def visible(mask_key: MaskKey, queries: Tokens, keys: Tokens) -> Bool[Tensor, "B Tq Tk"]:
    """True where a query sees a key; B is 1 where all rows agree.

    Window W: q - W < k <= q by index, or one of the first `sink_tokens` of the document by position. Chunk C: equal
    position // C, and less than C tokens back, which changes nothing unless a caller gives positions that stand still,
    and then keeps every backend and cache within the layer's reach.
    """
    window, chunk, sink_tokens = mask_key
    back = queries.index[:, :, None] - keys.index[:, None, :]
    seen = back >= 0
    if window is not None:
        near = back < window
        if sink_tokens is not None:
            near = near | (keys.position < sink_tokens)[:, None, :]
        seen = seen & near
    if chunk is not None:
        seen = seen & (back < chunk)
        seen = seen & ((queries.position // chunk)[:, :, None] == (keys.position // chunk)[:, None, :])
    if queries.document is not None and keys.document is not None:
        same = queries.document[:, :, None] == keys.document[:, None, :]
        same = same & (keys.document >= 0)[:, None, :]
        seen = (seen & same) | (back == 0)
    return seen


def is_relative(spec: LayerSpec) -> bool:
    """Does position add terms that depend on content?"""
    return spec.position.place == "relative"


def has_bias(spec: LayerSpec) -> bool:
    return spec.position.place == "bias"


def bias_key(call: Call) -> Hashable:
    """Layers of equal keys add the same to their scores; None adds nothing.

    What a scheme computes without parameters is known by its own key, all else by the module that holds them, so that
    layers share a bias exactly where they share a module.
    """
    if not has_bias(call.spec):
        return None
    own = call.spec.position.bias_key
    return call.position if own is None else (own, call.spec.num_attention_heads)


def score_bias(
    spec: LayerSpec, position: LayerPosition | None, queries: Tokens, keys: Tokens
) -> Float[Tensor, "B H Tq Tk"] | None:
    """What position adds to the scaled scores, float32; None adds nothing."""
    if position is None or not has_bias(spec):
        return None
    return position.bias(queries, keys)


def additive(
    seen: Bool[Tensor, "B Tq Tk"], bias: Float[Tensor, "B2 H Tq Tk"] | None, dtype: torch.dtype
) -> Float[Tensor, "B3 H3 Tq Tk"]:
    """Mask and bias as one tensor to add to the scores: -inf where unseen. A bias stays float32 whatever `dtype` is,
    since bf16 holds 769 distinct values among 0..4095."""
    if bias is None:
        zero = torch.zeros((), dtype=dtype, device=seen.device)
        return torch.where(seen[:, None], zero, float("-inf"))
    bias = bias.to(torch.promote_types(bias.dtype, dtype))
    return bias.masked_fill(~seen[:, None], float("-inf"))


def uniform(call: Call) -> bool:
    """Do mask and bias depend on differences of indices alone? Then those of a few rows serve all rows."""
    tokens = call.queries
    if tokens.document is not None or call.spec.chunk is not None or call.spec.sink_tokens is not None:
        return False
    if call.position is None or not has_bias(call.spec):
        return True
    return tokens.position is tokens.index and call.position.shift_invariant
