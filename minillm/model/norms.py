"""Norms of the residual stream and of queries and keys. Statistics are float32 whatever the input's dtype."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from minillm.config.layers import QKNorm
from minillm.config.schema import BlockConfig


class RMSNorm(nn.Module):
    """x / rms(x) * weight over the last axis (arXiv 1910.07467).

    With `unit_offset` the weight is stored as w and applied as 1 + w (Gemma), which matters to weight decay and to
    checkpoints, not to the function. `weight=False` gives the weightless form that Llama 4 calls L2 norm.
    """

    def __init__(self, width: int, eps: float, unit_offset: bool = False, weight: bool = True) -> None:
        super().__init__()
        self.eps, self.unit_offset = eps, unit_offset
        self.weight = nn.Parameter(torch.empty(width)) if weight else None

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        weight: Tensor | None = None
        if self.weight is not None:
            weight = self.weight.float() + 1 if self.unit_offset else self.weight.float()
        return F.rms_norm(x.float(), x.shape[-1:], weight, self.eps).to(x.dtype)

    def reset_parameters(self) -> None:
        if self.weight is not None:
            nn.init.constant_(self.weight, 0.0 if self.unit_offset else 1.0)


class LayerNorm(nn.Module):
    """Mean and variance normalised, then a weight and, with `bias`, a shift (arXiv 1607.06450)."""

    def __init__(self, width: int, eps: float, bias: bool) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.empty(width))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x: Float[Tensor, "*batch D"]) -> Float[Tensor, "*batch D"]:
        bias = None if self.bias is None else self.bias.float()
        return F.layer_norm(x.float(), x.shape[-1:], self.weight.float(), bias, self.eps).to(x.dtype)

    def reset_parameters(self) -> None:
        nn.init.ones_(self.weight)
        if self.bias is not None:
            nn.init.zeros_(self.bias)


def block_norm(block: BlockConfig, width: int) -> nn.Module:
    """The norm that the block group names."""
    if block.norm == "rmsnorm":
        return RMSNorm(width, block.norm_eps, block.norm_unit_offset)
    return LayerNorm(width, block.norm_eps, block.norm_bias)


class HeadNorm(nn.Module):
    """QK-norm of queries or keys, per head or over the concatenated width of all heads (`QKNorm.over`).

    The weight of an RMS norm follows the block's parametrisation (w or 1 + w), as Gemma 3 and Qwen 3 each do.
    """

    def __init__(self, config: QKNorm, num_heads: int, head_dim: int, block: BlockConfig) -> None:
        super().__init__()
        self.full = config.over == "full"
        width = num_heads * head_dim if self.full else head_dim
        self.norm: nn.Module
        if config.type == "layernorm":
            self.norm = LayerNorm(width, block.norm_eps, bias=False)
        else:
            weighted = config.type == "rms"
            self.norm = RMSNorm(width, block.norm_eps, block.norm_unit_offset and weighted, weight=weighted)

    def forward(self, x: Float[Tensor, "B N T K"]) -> Float[Tensor, "B N T K"]:
        if not self.full:
            return self.norm(x)
        flat = x.transpose(1, 2).flatten(2)
        return self.norm(flat).unflatten(2, (x.shape[1], x.shape[3])).transpose(1, 2)
