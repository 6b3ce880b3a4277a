"""AdamW with decay on matrices only, and clipping by the global norm for plain and sharded parameters alike."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from minillm.config.schema import OptimConfig


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: matrices with decay, and all that has one dimension (norms, QK-norms, biases) without.

    A tied weight is listed once. Dimensions are those of the whole parameter, also where FSDP holds a shard.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in trained if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in trained if p.ndim < 2], "weight_decay": 0.0},
    ]


def make_optimizer(model: nn.Module, config: OptimConfig) -> torch.optim.AdamW:
    """Fused AdamW. The learning rate is set before every update from the schedule."""
    groups = [group for group in parameter_groups(model, config.weight_decay) if group["params"]]
    return torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), eps=config.eps, fused=True)


def clip_gradients(parameters: Iterable[nn.Parameter], max_norm: float | None) -> float:
    """Scale all gradients so that their joint norm is at most `max_norm`; the norm before that is returned.

    Under FSDP each rank holds shards: the norm is that of the whole gradient, not of the shards.
    """
    with_grad = [p for p in parameters if p.grad is not None]
    norm: Tensor = torch.nn.utils.get_total_norm([p.grad for p in with_grad if p.grad is not None])
    if isinstance(norm, DTensor):
        norm = norm.full_tensor()
    if max_norm is not None:
        torch.nn.utils.clip_grads_with_norm_(with_grad, max_norm, norm)
    return float(norm)
