"""`flex`: torch's flex_attention, one compiled GPU kernel for windows, chunks, documents, kept tokens, biases, soft-cap
and sinks, in which neither a mask nor a bias of the square is ever held.

Mask and bias are functions of one query and key (`flex_mask.mask_function`, `score_function`) that torch compiles into
its kernel. Which blocks are computed at all is one block mask per distinct mask and step, shared by layers. A kernel is
compiled per shape of these functions, not per window, bias or step: what differs is data.

On CPU torch has no backward pass for it: without gradients it runs there uncompiled, which is what tests use, and with
gradients it is refused. With a cache the keys are few or in the order of a ring: there `sdpa` computes, or `reference`
where there is a soft-cap.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, NamedTuple, no_type_check

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.attention.flex_mask import block_mask
from minillm.attention.machine import Machine
from minillm.attention.mask import Call, bias_key, has_bias, is_relative
from minillm.attention.reference import reference
from minillm.attention.sdpa import sdpa
from minillm.config.layers import LayerSpec

ScoreFunction = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]
"""(score, batch, head, query, key) to the score that the softmax sees."""


def unsupported(spec: LayerSpec) -> str | None:
    if is_relative(spec):
        return f"has position '{spec.position.scheme}', whose terms the kernel does not know; 'reference' can"
    if has_bias(spec) and not spec.position.pairwise:
        bias = f"has position '{spec.position.scheme}', whose bias has no form by head and distance"
        return f"{bias}; 'sdpa' and 'reference' can" if spec.softcap is None else f"{bias}; 'reference' can"
    return None


def missing(spec: LayerSpec, machine: Machine) -> str | None:
    if not machine.flex:
        return f"torch {torch.__version__} has no flex_attention for this {machine.device}"
    if machine.device == "cpu" and machine.gradients:
        return "flex_attention has no backward pass on CPU"
    if machine.device == "cuda" and spec.head_dim < 16:
        return f"flex_attention takes heads from 16 channels on, this layer's have {spec.head_dim}"
    return None


def flex(call: Call) -> Float[Tensor, "B H Tq K"]:
    spec = call.spec
    if not call.context.contiguous:
        return sdpa(call) if spec.softcap is None else reference(call)
    shape, scored = score_function(call)
    mask = block_mask(call)
    q, k, v = call.q, call.k, call.v
    if not torch.is_grad_enabled():
        q, k, v = q.detach(), k.detach(), v.detach()  # what needs a gradient is refused on CPU, even where none flows
    document, position = call.queries.document is not None, call.queries.position is not call.queries.index
    limits = tuple(limit is not None for limit in spec.mask_key)
    sinks = call.sinks is not None
    kernel = _kernel(
        Kind(spec.score_scale, q.shape[1] != k.shape[1], sinks, q.device.type != "cpu"),
        (limits, document, position, shape),
    )
    out, total = kernel(q, k, v, scored, mask)
    if call.sinks is None or total is None:
        return out
    # A sink's weight is exp(sink) beside the sum of all others: what it leaves them is a sigmoid of the difference.
    left = torch.sigmoid(total - call.sinks.to(total.dtype)[:, None])
    return (out * left[..., None]).to(out.dtype)


class Kind(NamedTuple):
    """What is written into a kernel besides its mask and score functions."""

    scale: float
    grouped: bool
    """Several query heads share a key."""
    sums: bool
    """Return the logarithm of each row's sum of weights."""
    compiled: bool


@cache
def _kernel(kind: Kind, shape: Hashable) -> Callable[..., tuple[Tensor, Tensor | None]]:
    """One function per kind and per shape of mask and score functions. torch counts the variants of each *code* and
    gives up compiling after a few, so every function gets a code object of its own."""
    from torch.nn.attention.flex_attention import AuxRequest, flex_attention

    # Below 128 queries torch takes its decoding kernel, which knows only 1, 2, 4, ... query heads per key head.
    options: Any = {"FORCE_USE_FLEX_ATTENTION": True}

    @no_type_check  # the tests check all shapes at run time, within a function that torch compiles they cannot
    def attention(q: Tensor, k: Tensor, v: Tensor, scored: Any, mask: Any) -> tuple[Tensor, Tensor | None]:
        aux = AuxRequest(lse=True) if kind.sums else None
        out = flex_attention(
            q, k, v, scored, mask, scale=kind.scale, enable_gqa=kind.grouped, kernel_options=options, return_aux=aux
        )
        return (out[0], out[1].lse) if kind.sums else (out, None)

    attention.__code__ = attention.__code__.replace(co_name=f"flex_{_kernel.cache_info().currsize}")
    return torch.compile(attention) if kind.compiled else attention


def score_function(call: Call) -> tuple[Hashable, ScoreFunction | None]:
    """What happens to a scaled score before the softmax, and the shape of its code: soft-cap, then bias, as in
    `reference`. Made once per step for layers that add the same."""
    if call.spec.softcap is None and not has_bias(call.spec):
        return None, None
    shape = (call.spec.softcap is not None, call.spec.position.scheme if has_bias(call.spec) else None)
    key = ("flex score", bias_key(call), call.spec.softcap)
    return shape, call.context.once(key, lambda: _score_function(call))


def _score_function(call: Call) -> ScoreFunction:
    spec, device = call.spec, call.q.device
    cap = None if spec.softcap is None else torch.full((), spec.softcap, device=device)
    bias = None
    if has_bias(spec):
        assert call.position is not None
        bias = call.position.pair_bias(device)
        assert bias is not None  # `unsupported` refuses a scheme that has none
    tokens = call.queries
    position = None
    if tokens.position is not tokens.index:
        position = tokens.position.expand(call.q.shape[0], -1).contiguous()

    @no_type_check  # the tests check all shapes at run time, within a function that torch compiles they cannot
    def scored(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        if cap is not None:
            score = cap * torch.tanh(score / cap)
        if bias is not None:
            distance = q - k if position is None else position[b, q] - position[b, k]
            score = score + bias(h, torch.abs(distance))
        return score

    return scored
