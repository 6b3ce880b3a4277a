"""The feed-forward branch: SwiGLU, GeGLU (arXiv 2002.05202) or a plain GELU layer."""

from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from minillm.config.schema import BlockConfig


def gated(block: BlockConfig) -> bool:
    """Is the activation multiplied with a second projection?"""
    return block.mlp in ("swiglu", "geglu")


class MLP(nn.Module):
    """down(act(gate(x)) * up(x)), or down(gelu(up(x))); gate and up are one matrix, gate first."""

    def __init__(self, hidden_size: int, intermediate_size: int, block: BlockConfig) -> None:
        super().__init__()
        self.kind = block.mlp
        up_width = 2 * intermediate_size if gated(block) else intermediate_size
        self.up_proj = nn.Linear(hidden_size, up_width, bias=block.mlp_bias)
        self.down_proj = nn.Linear(intermediate_size, hidden_size, bias=block.mlp_bias)

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        up = self.up_proj(x)
        if self.kind == "gelu":
            return self.down_proj(F.gelu(up, approximate="tanh"))
        if self.kind == "gelu_erf":
            return self.down_proj(F.gelu(up))
        gate, up = up.chunk(2, dim=-1)
        gate = F.silu(gate) if self.kind == "swiglu" else F.gelu(gate, approximate="tanh")
        return self.down_proj(gate * up)
