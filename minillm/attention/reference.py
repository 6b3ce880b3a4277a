"""`reference`: plain matmul and softmax in float32, for any spec. The oracle, and the only source of probabilities."""

from __future__ import annotations

from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.attention.mask import Call, is_relative, score_bias, visible


@overload
def reference(call: Call, return_probs: Literal[False] = False) -> Tensor: ...
@overload
def reference(call: Call, return_probs: Literal[True]) -> tuple[Tensor, Tensor]: ...
def reference(
    call: Call, return_probs: bool = False
) -> Float[Tensor, "B H Tq K"] | tuple[Float[Tensor, "B H Tq K"], Float[Tensor, "B H Tq Tk"]]:
    """Attention as the formulas say it; with `return_probs` also the probabilities (B, H, Tq, Tk), float32.

    Scores, in this order: q.k and what content and distance add to it, times score_scale, soft-cap, position bias,
    mask, a sink's logit as one more column, dropped after the softmax. Query head h reads kv head h // (H / G).
    """
    exact = torch.promote_types(call.q.dtype, torch.float32)
    scores = masked_scores(call)
    if call.sinks is None:
        probs = scores.softmax(dim=-1)
    else:
        column = call.sinks.to(exact)[None, :, None, None].expand(*scores.shape[:3], 1)
        probs = torch.cat([scores, column], dim=-1).softmax(dim=-1)[..., :-1]
    groups = call.q.shape[1] // call.k.shape[1]
    out = probs @ call.v.to(exact).repeat_interleave(groups, dim=1)
    relative = call.position if is_relative(call.spec) else None
    distant = None if relative is None else relative.values(probs, call.queries, call.keys)
    out = (out if distant is None else out + distant).to(call.q.dtype)
    return (out, probs) if return_probs else out


def masked_scores(call: Call) -> Float[Tensor, "B H Tq Tk"]:
    """What the softmax is taken of, float32 at least, -inf where a key is unseen; sinks apart. `call.v` is not read."""
    spec = call.spec
    exact = torch.promote_types(call.q.dtype, torch.float32)
    q = call.q.to(exact)
    k = call.k.to(exact).repeat_interleave(call.q.shape[1] // call.k.shape[1], dim=1)
    scores = q @ k.transpose(-1, -2)
    relative = call.position if is_relative(spec) else None
    if relative is not None:
        scores = scores + relative.scores(q, k, call.queries, call.keys)
    scores = scores * spec.score_scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    bias = score_bias(spec, call.position, call.queries, call.keys)
    if bias is not None:
        scores = scores + bias
    seen = visible(spec.mask_key, call.queries, call.keys)
    return scores.masked_fill(~seen[:, None], float("-inf"))
