"""Sinusoidal embeddings, added to the token embeddings (Vaswani et al. 2017, section 3.5).

PE(pos, 2i) = scale * sin(pos / 10000**(2i/d)), PE(pos, 2i+1) = scale * cos of the same angle. Computed from the
positions at each call, so every position is defined.

The paper's scale is 1, beside token embeddings multiplied by sqrt(d). Where they are not (`block.embedding_scale`),
waves of size 1 drown the tokens and a small model learns far more slowly: the arm `sinusoidal` gives a smaller scale.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.errors import ConfigError
from minillm.position.base import EmbeddingScheme, Place, register

BASE = 10000.0


@register("sinusoidal")
@dataclass(frozen=True)
class Sinusoidal(EmbeddingScheme):
    """Nothing is learned."""

    place: ClassVar[Place] = "embedding"

    scale: float = 1.0
    """Size of the waves; give what token embeddings have: initializer_range times block.embedding_scale."""

    def validate_embedding(self, hidden_size: int) -> None:
        if hidden_size % 2:
            raise ConfigError(
                f"hidden_size = {hidden_size}: sinusoidal positions need an even one, for pairs of waves."
            )
        if not self.scale > 0:
            raise ConfigError(f"scale = {self.scale!r}: must be above 0.")

    def make_embedding(self, hidden_size: int, max_position_embeddings: int) -> nn.Module:
        return SinusoidalEmbedding(hidden_size, self.scale)


class SinusoidalEmbedding(nn.Module):
    """Keeps Python floats, no buffer: nothing to lose on the meta device or in a cast."""

    def __init__(self, hidden_size: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.frequencies = tuple(BASE ** (-2 * i / hidden_size) for i in range(hidden_size // 2))

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Positions to float32 embeddings; sine on even channels, cosine on odd ones."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=position.device)
        angle = position.to(torch.float32)[..., None] * frequencies
        return self.scale * torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
