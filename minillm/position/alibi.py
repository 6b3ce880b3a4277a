"""ALiBi: a bias on the scores that falls linearly with distance (Press et al. 2022, arXiv 2108.12409).

The bias is added to the scaled scores and is not itself divided by sqrt(head_dim) (paper, footnote 10). Slopes belong
to query heads, whatever the number of key-value heads, and their order is the reference's: it matters when heads are
loaded from a checkpoint.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minillm.attention.tokens import Tokens
from minillm.errors import ConfigError
from minillm.position.base import LayerPosition, LayerShape, PairBias, Place, PositionScheme, register


def alibi_slopes(num_heads: int) -> Float[Tensor, "H"]:
    """Slopes per query head, (num_heads,) float32, as fairseq/models/transformer.py of the reference gives them.

    For n = 2**k heads they are 2**(-8/n * 1), ..., 2**-8. Otherwise: the list of the next lower power of two, then
    every second slope (the 1st, 3rd, ...) of the list of twice that power.
    """
    return torch.tensor(_slopes(num_heads), dtype=torch.float32)


def _slopes(num_heads: int) -> list[float]:
    if num_heads < 1:
        raise ConfigError(f"num_attention_heads = {num_heads!r}: ALiBi needs at least 1 head.")
    power = 1 << (num_heads.bit_length() - 1)
    slopes = [2.0 ** (-8.0 * (i + 1) / power) for i in range(power)]
    between = [2.0 ** (-4.0 * (i + 1) / power) for i in range(2 * power)]
    return slopes + between[0::2][: num_heads - power]


@register("alibi")
@dataclass(frozen=True)
class ALiBi(PositionScheme):
    """score += -slope[head] * distance."""

    place: ClassVar[Place] = "bias"
    pairwise: ClassVar[bool] = True

    learned: bool = False
    """Train the slopes, layer by layer, from the fixed ones on. In the paper trained slopes extrapolated badly."""

    def make(self, layer: LayerShape) -> LayerPosition:
        return LearnedALiBiBias(layer.num_attention_heads) if self.learned else ALiBiBias(layer.num_attention_heads)

    def summary(self) -> dict[str, Any]:
        return {"detail": "learned"} if self.learned else {}

    @property
    def bias_key(self) -> Hashable:
        return None if self.learned else self.scheme


class ALiBiBias(LayerPosition):
    """Slopes are kept as Python floats: no buffer that a cast to half or a meta-device build could spoil."""

    def __init__(self, num_heads: int) -> None:
        super().__init__()
        self.fixed = tuple(_slopes(num_heads))

    def slopes(self, device: torch.device) -> Float[Tensor, "H"]:
        return torch.tensor(self.fixed, dtype=torch.float32, device=device)

    def bias(self, queries: Tokens, keys: Tokens) -> Float[Tensor, "B H Tq Tk"]:
        """-slope * |query position - key position|, float32, never positive; the mask decides what is seen."""
        # Positions become fp32 before the subtraction: exact up to 2**24, where bf16 stops at 256.
        query = queries.position.to(torch.float32)
        key = keys.position.to(torch.float32)
        distance = (query[:, :, None] - key[:, None, :]).abs_()
        return distance[:, None] * -self.slopes(distance.device)[:, None, None]

    def pair_bias(self, device: torch.device) -> PairBias:
        slopes = self.slopes(device)
        return lambda head, distance: -slopes[head] * distance.to(torch.float32)


class LearnedALiBiBias(ALiBiBias):
    """Trains `log2_change` (H,): a slope is its fixed one times 2 ** change. It starts at zero, exactly the fixed ones.

    Powers, because slopes differ by factors of a hundred between heads: an optimiser's step is then the same share of
    each, and none can become negative, which would favour the farthest key.
    """

    def __init__(self, num_heads: int) -> None:
        super().__init__(num_heads)
        self.log2_change = nn.Parameter(torch.empty(num_heads))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.log2_change)

    def slopes(self, device: torch.device) -> Float[Tensor, "H"]:
        return super().slopes(device) * self.log2_change.float().exp2()
