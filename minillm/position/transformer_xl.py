"""Transformer-XL: four terms of content and distance, all / sqrt(head_dim) (Dai et al. 2019, arXiv 1901.02860, 3.3).

score = q_i . k_j + q_i . r_d + u . k_j + v . r_d,   r_d = r_proj(R_d),   d = i - j

(a) content, (b) content and distance, (c) a head's global preference for a content, (d) and for a distance. R_d is the
sinusoid of the distance, sin(d w) then cos(d w) with w = 10000 ** (-2n / width), as wide as all heads together; in the
paper it is as wide as the model. Every distance is defined.

There is no relative shift: positions are inputs here, and what was computed per distance is looked up. Nor is there a
segment memory in training. In evaluation it is what the KV cache of a layer with a `window` is: keys and values of the
last tokens, whatever pieces the text comes in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from minillm.attention.tokens import Tokens
from minillm.errors import ConfigError
from minillm.position.base import LayerPosition, LayerShape, Place, PositionScheme, register
from minillm.position.distances import by_distance, distances, mean_distances

BASE = 10000.0


@register("transformer_xl")
@dataclass(frozen=True)
class TransformerXL(PositionScheme):
    """Has no fields. Each layer learns its own u, v and r_proj."""

    place: ClassVar[Place] = "relative"

    def validate(self, layer: LayerShape) -> None:
        width = layer.num_attention_heads * layer.head_dim
        if width % 2:
            raise ConfigError(
                f"num_attention_heads * head_dim = {width}: transformer_xl needs an even width, for pairs of waves."
            )

    def make(self, layer: LayerShape) -> LayerPosition:
        return TransformerXLTerms(layer.num_attention_heads, layer.head_dim)

    def flops_per_token(self, layer: LayerShape, length: int) -> float:
        """(q + v) . r at each distance seen, u . k of each key, and r_proj once per distance."""
        width = layer.num_attention_heads * layer.head_dim
        return 2.0 * width * (mean_distances(length, length) + 1 + width)


class TransformerXLTerms(LayerPosition):
    """`u`, `v` (H * K,) start at zero, `r_proj.weight` (H * K, H * K) like the model's matrices."""

    def __init__(self, num_heads: int, head_dim: int) -> None:
        super().__init__()
        width = num_heads * head_dim
        self.frequencies = tuple(BASE ** (-2 * i / width) for i in range(width // 2))
        self.r_proj = nn.Linear(width, width, bias=False)
        self.heads = (num_heads, head_dim)
        # Of one dimension, as biases are: what has two gets weight decay.
        self.u = nn.Parameter(torch.empty(width))
        self.v = nn.Parameter(torch.empty(width))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.u)
        nn.init.zeros_(self.v)

    def scores(
        self, q: Float[Tensor, "B H Tq K"], k: Float[Tensor, "B H Tk K"], queries: Tokens, keys: Tokens
    ) -> Float[Tensor, "B H Tq Tk"]:
        distance = distances(queries, keys)
        if keys is queries and queries.position is queries.index:
            count = q.shape[2]
        else:
            count = int(distance.max()) + 1  # the only way to know: rows may hold documents, or positions with gaps
        r = F.linear(self.waves(count, q), self.r_proj.weight.to(q.dtype)).unflatten(-1, self.heads)
        u, v = (bias.unflatten(0, self.heads).to(q.dtype) for bias in (self.u, self.v))
        positional = (q + v[:, None]) @ r.permute(1, 2, 0)
        preference = k @ u[:, :, None]
        return by_distance(positional, distance) + preference.transpose(-1, -2)

    def waves(self, count: int, like: Tensor) -> Float[Tensor, "D width"]:
        """R_0 .. R_(count-1), in the precision of the scores."""
        frequencies = torch.tensor(self.frequencies, dtype=like.dtype, device=like.device)
        angle = torch.arange(count, dtype=like.dtype, device=like.device)[:, None] * frequencies
        return torch.cat((angle.sin(), angle.cos()), dim=-1)
