"""One decoder block: attention and MLP, with norms where the block group puts them.

Norms carry the names of their four possible places, as in Gemma 3: before and after attention (`input_layernorm`,
`post_attention_layernorm`), before and after the MLP (`pre_feedforward_layernorm`, `post_feedforward_layernorm`).
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minillm.attention.cache import LayerCache
from minillm.attention.tokens import StepContext
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.model.attention import Attention
from minillm.model.compiled import Pieces
from minillm.model.mlp import MLP
from minillm.model.norms import block_norm
from minillm.position.base import LayerPosition, Rotary


class Block(nn.Module):
    """x + attention, then x + MLP; `norm_placement` says where norms stand (see BlockConfig)."""

    def __init__(self, spec: LayerSpec, config: ModelConfig, position: LayerPosition | None) -> None:
        super().__init__()
        block, width = config.block, config.hidden_size
        self.placement = block.norm_placement
        self.residual_scale = block.residual_scale
        self.compiled: Pieces | None = None
        self.attention = Attention(spec, width, block, position, config.backend)
        self.mlp = MLP(width, config.intermediate_size, block)
        before = self.placement in ("pre", "sandwich", "parallel", "parallel_split")
        after = self.placement in ("post", "branch_post", "sandwich")
        self.input_layernorm = block_norm(block, width) if before else nn.Identity()
        self.post_attention_layernorm = block_norm(block, width) if after else nn.Identity()
        shared = self.placement == "parallel"
        self.pre_feedforward_layernorm = block_norm(block, width) if before and not shared else nn.Identity()
        self.post_feedforward_layernorm = block_norm(block, width) if after else nn.Identity()

    def forward(
        self, x: Float[Tensor, "B T D"], context: StepContext, cache: LayerCache | None = None
    ) -> Float[Tensor, "B T D"]:
        if self.compiled is not None and cache is None and torch.is_grad_enabled():
            q, k, v, normed = self.compiled.enter(self, x, *self.attention.inputs(context))
            return self.compiled.leave(self, x, normed, self.attention.attend(q, k, v, context))
        normed = self.input_layernorm(x)
        return self.join(x, normed, self.attention(normed, context, cache))

    def enter(
        self, x: Float[Tensor, "B T D"], rotary: Rotary | None, factor: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """All that comes before the scores: queries, keys and values, and the normed input."""
        normed = self.input_layernorm(x)
        return *self.attention.qkv(normed, rotary, factor), normed

    def leave(
        self, x: Float[Tensor, "B T D"], normed: Float[Tensor, "B T D"], attended: Float[Tensor, "B H T K"]
    ) -> Float[Tensor, "B T D"]:
        """All that comes after the weighted sum of values."""
        return self.join(x, normed, self.attention.output(normed, attended))

    def join(
        self, x: Float[Tensor, "B T D"], normed: Float[Tensor, "B T D"], attended: Float[Tensor, "B T D"]
    ) -> Float[Tensor, "B T D"]:
        """The residual stream, from what came in, its normed form and the attention branch: adds the MLP branch."""
        if self.placement.startswith("parallel"):
            to_mlp = normed if self.placement == "parallel" else self.pre_feedforward_layernorm(x)
            return x + self._scaled(attended) + self._scaled(self.mlp(to_mlp))
        if self.placement == "post":
            x = self.post_attention_layernorm(x + self._scaled(attended))
            return self.post_feedforward_layernorm(x + self._scaled(self.mlp(x)))
        x = x + self._scaled(self.post_attention_layernorm(attended))
        return x + self._scaled(self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))))

    def _scaled(self, branch: Tensor) -> Tensor:
        return branch if self.residual_scale is None else branch * self.residual_scale
