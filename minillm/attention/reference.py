"""`reference`: plain matmul and softmax in float32, for any spec. The oracle, and the only source of probabilities."""

from __future__ import annotations

from typing import Literal, overload

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.attention.mask import Call, score_bias, visible


@overload
def reference(call: Call, return_probs: Literal[False] = False) -> Tensor: ...
@overload
def reference(call: Call, return_probs: Literal[True]) -> tuple[Tensor, Tensor]: ...
def reference(
    call: Call, return_probs: bool = False
) -> Float[Tensor, "B H Tq K"] | tuple[Float[Tensor, "B H Tq K"], Float[Tensor, "B H Tq Tk"]]:
    """Attention as the formulas say it; with `return_probs` also the probabilities (B, H, Tq, Tk), float32.

    Scores, in this order: q.k * score_scale, soft-cap, position bias, mask. Query head h reads kv head h // (H / G).
    """
    spec = call.spec
    exact = torch.promote_types(call.q.dtype, torch.float32)
    groups = call.q.shape[1] // call.k.shape[1]
    q = call.q.to(exact)
    k = call.k.to(exact).repeat_interleave(groups, dim=1)
    v = call.v.to(exact).repeat_interleave(groups, dim=1)

    scores = q @ k.transpose(-1, -2) * spec.score_scale
    if spec.softcap is not None:
        scores = spec.softcap * torch.tanh(scores / spec.softcap)
    bias = score_bias(spec, call.position, call.queries, call.keys)
    if bias is not None:
        scores = scores + bias
    seen = visible(spec.mask_key, call.queries, call.keys)
    probs = scores.masked_fill(~seen[:, None], float("-inf")).softmax(dim=-1)
    out = (probs @ v).to(call.q.dtype)
    return (out, probs) if return_probs else out
