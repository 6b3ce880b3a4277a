"""Binary embeddings: the position as a d-bit number, one bit per channel, added to the token embeddings.

PE(pos, i) = scale * (bit i of pos) for i < bits, and 0 in the channels above. Channel 0 flips at every token, channel i
every 2**i tokens: the square waves of which sinusoidal embeddings are the smooth form. It has no paper of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.errors import ConfigError, MinillmError, PositionUndefined
from minillm.position.base import EmbeddingScheme, Place, register

MOST_BITS = 62
"""As many as 2**bits, the first position without a code, may have in a signed 64-bit integer."""


@register("binary")
@dataclass(frozen=True)
class Binary(EmbeddingScheme):
    """Nothing is learned. Every position below 2**bits has a code of its own; later ones have none."""

    place: ClassVar[Place] = "embedding"

    bits: int | None = None
    """Channels used; null: as many as the width has, at most 62."""
    scale: float = 1.0
    """What a 1 bit adds; a 0 bit adds nothing."""

    def validate_embedding(self, hidden_size: int) -> None:
        if self.bits is not None:
            if not 1 <= self.bits <= MOST_BITS:
                raise ConfigError(f"bits = {self.bits}: must be from 1 to {MOST_BITS}, or null.")
            if self.bits > hidden_size:
                raise ConfigError(
                    f"bits = {self.bits}: each needs a channel, and hidden_size = {hidden_size}. "
                    f"Give at most {hidden_size}, or null."
                )
        if not self.scale > 0:
            raise ConfigError(f"scale = {self.scale!r}: must be above 0.")

    def make_embedding(self, hidden_size: int, max_position_embeddings: int) -> nn.Module:
        bits = min(hidden_size, MOST_BITS) if self.bits is None else self.bits
        return BinaryEmbedding(hidden_size, bits, self.scale)

    def max_positions(self, max_position_embeddings: int) -> int | None:
        """2**bits where they are given; without, a width of 20 channels already covers a million positions."""
        return None if self.bits is None else 2**self.bits


class BinaryEmbedding(nn.Module):
    """Keeps Python numbers, no buffer: nothing to lose on the meta device or in a cast."""

    def __init__(self, hidden_size: int, bits: int, scale: float) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.bits = bits
        self.scale = scale

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Positions to float32 embeddings, lowest bit first. Where the bits do not suffice: MinillmError in training
        mode, PositionUndefined in eval mode."""
        # Below 32 bits a text may outgrow the code. Above, asking would cost a wait for the device and never matter.
        if self.bits < 32 and position.numel() and not position.is_meta:
            last = int(position.max())
            if last >= 2**self.bits:
                raise self._beyond(last)
        bit = torch.arange(self.bits, device=position.device)
        ones = (position[..., None] >> bit) & 1
        return nn.functional.pad(self.scale * ones.to(torch.float32), (0, self.hidden_size - self.bits))

    def _beyond(self, last: int) -> MinillmError:
        message = (
            f"Position {last} (a document of {last + 1} tokens) has no code of {self.bits} bits, which end at position "
            f"{2**self.bits - 1}"
        )
        if self.training:
            return MinillmError(
                f"{message}. Give model.embedding.position.bits at least {last.bit_length()}, or train with "
                f"data.seq_len at most {2**self.bits}."
            )
        return PositionUndefined(f"{message}: the model is not defined there.")
