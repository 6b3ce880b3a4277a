"""One decoder block: attention and MLP, with norms where the block group puts them.

Norms carry the names of their four possible places, as in Gemma 3: before and after attention (`input_layernorm`,
`post_attention_layernorm`), before and after the MLP (`pre_feedforward_layernorm`, `post_feedforward_layernorm`).
"""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from minillm.attention.cache import LayerCache
from minillm.attention.tokens import StepContext
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.model.attention import Attention
from minillm.model.mlp import MLP
from minillm.model.norms import block_norm
from minillm.position.base import LayerPosition


class Block(nn.Module):
    """x + attention, then x + MLP; `norm_placement` says where norms stand (see BlockConfig)."""

    def __init__(self, spec: LayerSpec, config: ModelConfig, position: LayerPosition | None) -> None:
        super().__init__()
        block, width = config.block, config.hidden_size
        self.placement = block.norm_placement
        self.residual_scale = block.residual_scale
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
        if self.placement.startswith("parallel"):
            normed = self.input_layernorm(x)
            to_mlp = normed if self.placement == "parallel" else self.pre_feedforward_layernorm(x)
            return x + self._scaled(self.attention(normed, context, cache)) + self._scaled(self.mlp(to_mlp))
        if self.placement == "post":
            x = self.post_attention_layernorm(x + self._scaled(self.attention(x, context, cache)))
            return self.post_feedforward_layernorm(x + self._scaled(self.mlp(x)))
        attended = self.attention(self.input_layernorm(x), context, cache)
        x = x + self._scaled(self.post_attention_layernorm(attended))
        return x + self._scaled(self.post_feedforward_layernorm(self.mlp(self.pre_feedforward_layernorm(x))))

    def _scaled(self, branch: Tensor) -> Tensor:
        return branch if self.residual_scale is None else branch * self.residual_scale
