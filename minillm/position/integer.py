"""Integer embeddings: the position itself, as a number, added to every channel of the token embeddings.

PE(pos, channel) = scale * pos, or scale * pos / L with `normalized`. The simplest scheme there is, and the first step
of the usual derivation of sinusoidal embeddings; it has no paper of its own.

`normalized` divides by the trained length L (max_position_embeddings), never by the length of the text at hand. That
would give the third of ten tokens another vector than the third of a hundred: what a token is would depend on how many
come after it, so the model would not be causal, and whatever a cache holds would be stale with the next token.

A number that is the same in all channels is what a layernorm subtracts: see `same_in_all_channels`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.errors import ConfigError
from minillm.position.base import EmbeddingScheme, Place, register


@register("integer")
@dataclass(frozen=True)
class Integer(EmbeddingScheme):
    """Nothing is learned. Raw positions soon outweigh the token embeddings: give a small `scale`."""

    place: ClassVar[Place] = "embedding"
    same_in_all_channels = True

    scale: float = 1.0
    """What one position adds, or with `normalized` what the whole trained length adds."""
    normalized: bool = False
    """Divide by max_position_embeddings: the trained length spans 0 to `scale`, later positions lie above it."""

    def validate_embedding(self, hidden_size: int) -> None:
        if not self.scale > 0:
            raise ConfigError(f"scale = {self.scale!r}: must be above 0.")

    def make_embedding(self, hidden_size: int, max_position_embeddings: int) -> nn.Module:
        step = self.scale / max_position_embeddings if self.normalized else self.scale
        return IntegerEmbedding(hidden_size, step)


class IntegerEmbedding(nn.Module):
    """Keeps Python numbers, no buffer: nothing to lose on the meta device or in a cast."""

    def __init__(self, hidden_size: int, step: float) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.step = step

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Positions to float32 embeddings, the same number in all channels."""
        return (self.step * position.to(torch.float32))[..., None].expand(*position.shape, self.hidden_size)
