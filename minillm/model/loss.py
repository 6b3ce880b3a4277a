"""Next-token cross-entropy without holding the logits: a slice of tokens at a time, gradients formed on the way.

Full logits of B x T x V float32 are the largest tensor of a small model's step. Here each slice's logits live only
until its loss and its part of the gradients are taken, so the backward pass does no second matrix product of its own.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100
SLICE_ELEMENTS = 2**22
"""Logits held at once: 16 MiB in float32."""


def scale_logits(logits: Tensor, logit_scale: float | None, softcap: float | None) -> Tensor:
    """The head's last step: a factor (Cohere), then cap * tanh(logits / cap) (Gemma 2)."""
    if logit_scale is not None:
        logits = logits * logit_scale
    if softcap is not None:
        logits = softcap * torch.tanh(logits / softcap)
    return logits


def linear_cross_entropy(
    hidden: Float[Tensor, "N D"],
    weight: Float[Tensor, "V D"],
    targets: Int[Tensor, "N"],
    logit_scale: float | None = None,
    softcap: float | None = None,
    reduction: Literal["mean", "sum"] = "mean",
) -> Float[Tensor, ""]:
    """Cross-entropy in nats of `hidden @ weight.T`, in float32, over targets that are not -100.

    The matrix products run in the autocast dtype where autocast is on, softmax and sums in float32. Without a single
    target the loss is 0 (not NaN), so that an empty micro-batch adds nothing.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
    else:
        dtype = hidden.dtype
    total: Tensor = _LinearCrossEntropy.apply(hidden, weight, targets, logit_scale, softcap, dtype)
    if reduction == "sum":
        return total
    return total / (targets != IGNORED).sum().clamp(min=1)


class _LinearCrossEntropy(torch.autograd.Function):
    """Sum of token losses. Forward stores the gradients of a unit output gradient; backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        logit_scale: float | None,
        softcap: float | None,
        dtype: torch.dtype,
    ) -> Tensor:
        need_hidden, need_weight = ctx.needs_input_grad[:2]
        matrix = weight.to(dtype)
        grad_hidden = torch.empty_like(hidden) if need_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=torch.float32) if need_weight else None
        total = torch.zeros((), dtype=torch.float32, device=hidden.device)
        step = max(1, SLICE_ELEMENTS // weight.shape[0])
        with torch.autocast(hidden.device.type, enabled=False):
            for start in range(0, hidden.shape[0], step):
                part, want = hidden[start : start + step].to(dtype), targets[start : start + step]
                raw = (part @ matrix.t()).float()
                if logit_scale is not None:
                    raw *= logit_scale
                logits = raw if softcap is None else softcap * torch.tanh(raw / softcap)
                total += F.cross_entropy(logits, want, ignore_index=IGNORED, reduction="sum")
                if grad_hidden is None and grad_weight is None:
                    continue
                keep = want != IGNORED
                grad = torch.softmax(logits, dim=-1)
                grad[torch.arange(len(want), device=want.device), want.clamp(min=0)] -= 1
                grad *= keep[:, None]
                if softcap is not None:
                    grad *= 1 - (logits / softcap) ** 2
                if logit_scale is not None:
                    grad *= logit_scale
                grad = grad.to(dtype)
                if grad_hidden is not None:
                    grad_hidden[start : start + step] = grad @ matrix
                if grad_weight is not None:
                    grad_weight += grad.t() @ part
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.weight_dtype = weight.dtype
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (grad_output,) = grads
        grad_hidden, grad_weight = ctx.saved_tensors
        if grad_hidden is not None:
            grad_hidden = (grad_hidden * grad_output).to(grad_hidden.dtype)
        if grad_weight is not None:
            grad_weight = (grad_weight * grad_output).to(ctx.weight_dtype)
        return grad_hidden, grad_weight, None, None, None, None
