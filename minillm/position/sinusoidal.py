"""Sinusoidal embeddings, added to the token embeddings (Vaswani et al. 2017, section 3.5).

PE(pos, 2i) = sin(pos / 10000**(2i/d)), PE(pos, 2i+1) = cos of the same angle. Computed from the positions at each
call, so every position is defined.
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

    def make_embedding(self, hidden_size: int, max_position_embeddings: int) -> nn.Module:
        if hidden_size % 2:
            raise ConfigError(
                f"model.embedding.position: sinusoidal needs an even hidden_size (pairs of sine and cosine), "
                f"got {hidden_size}."
            )
        return SinusoidalEmbedding(hidden_size)


class SinusoidalEmbedding(nn.Module):
    """Keeps Python floats, no buffer: nothing to lose on the meta device or in a cast."""

    def __init__(self, hidden_size: int) -> None:
        super().__init__()
        self.frequencies = tuple(BASE ** (-2 * i / hidden_size) for i in range(hidden_size // 2))

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Positions to float32 embeddings; sine on even channels, cosine on odd ones."""
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=position.device)
        angle = position.to(torch.float32)[..., None] * frequencies
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)
