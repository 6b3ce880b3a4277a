"""Queries and keys from one projection, as the gated attention unit makes them (Hua et al. 2022, arXiv 2202.10447).

GAU projects x to one narrow z = silu(x W) and makes q and k of it by a scale and an offset per channel. The offsets are
biases of q and k; beside RoPE they let scores fall with distance whatever the content (kexue.fm 9577), which is where
the layer field `qkv_bias` comes from. One head with `shared_qk` and `gate` is GAU's attention with a softmax.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from minillm.config.layers import LayerSpec


class SharedQK(nn.Module):
    """With z after SiLU: q[h] = z[g(h)] * q_weight[h] + q_bias[h], and k[g] = z[g] * k_weight[g] + k_bias[g]."""

    def __init__(self, spec: LayerSpec) -> None:
        super().__init__()
        queries, keys = spec.num_attention_heads, spec.num_key_value_heads
        self.groups = queries // keys
        # Of one dimension, as norms and biases are: what has two gets weight decay.
        self.q_weight = nn.Parameter(torch.empty(queries * spec.head_dim))
        self.q_bias = nn.Parameter(torch.empty(queries * spec.head_dim))
        self.k_weight = nn.Parameter(torch.empty(keys * spec.head_dim))
        self.k_bias = nn.Parameter(torch.empty(keys * spec.head_dim))

    def forward(self, z: Float[Tensor, "B G T K"]) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G T K"]]:
        z = F.silu(z)
        q_weight, q_bias, k_weight, k_bias = (
            p.unflatten(0, (-1, 1, z.shape[-1])) for p in (self.q_weight, self.q_bias, self.k_weight, self.k_bias)
        )
        q = z.repeat_interleave(self.groups, dim=1) * q_weight + q_bias
        return q.to(z.dtype), (z * k_weight + k_bias).to(z.dtype)

    def reset_parameters(self) -> None:
        for weight, bias in ((self.q_weight, self.q_bias), (self.k_weight, self.k_bias)):
            nn.init.ones_(weight)
            nn.init.zeros_(bias)
