"""Shaw's relative positions: a learned vector per distance, added to the keys and to the values (arXiv 1803.02155).

score = q_i . (k_j + aK[d]) / sqrt(head_dim)     (equation 4)
out_i = sum_j p_ij (v_j + aV[d])                 (equation 3)

with d = min(i - j, max_distance). The paper clips to -k..k; a decoder sees no future, so here are the max_distance + 1
vectors of 0..max_distance alone. They are one layer's own and serve all of its heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minillm.attention.tokens import Tokens
from minillm.errors import ConfigError
from minillm.position.base import LayerPosition, LayerShape, Place, PositionScheme, register
from minillm.position.distances import by_distance, distances, mean_distances


@register("shaw")
@dataclass(frozen=True)
class Shaw(PositionScheme):
    place: ClassVar[Place] = "relative"

    max_distance: int = 16
    """All distances from here on share the last vector (the paper's k)."""
    values: bool = True
    """Also add vectors to the values; the paper found those to the keys enough for translation (its table 3)."""

    def validate(self, layer: LayerShape) -> None:
        if self.max_distance < 1:
            raise ConfigError(f"position.max_distance = {self.max_distance!r}: must be at least 1.")

    def make(self, layer: LayerShape) -> LayerPosition:
        return ShawVectors(layer.head_dim, self.max_distance, self.values)

    def summary(self) -> dict[str, Any]:
        return {"detail": f"up to {self.max_distance}" + ("" if self.values else ", keys only")}

    def flops_per_token(self, layer: LayerShape, length: int) -> float:
        """A product of head_dim per head and distance seen, for the scores and again for the values."""
        seen = mean_distances(length, self.max_distance + 1)
        return (2 if self.values else 1) * 2.0 * layer.num_attention_heads * layer.head_dim * seen


class ShawVectors(LayerPosition):
    """`key_vectors.weight` and `value_vectors.weight` (max_distance + 1, K) start like the model's matrices."""

    def __init__(self, head_dim: int, max_distance: int, values: bool) -> None:
        super().__init__()

        def table() -> nn.Embedding:
            return nn.Embedding.from_pretrained(torch.empty(max_distance + 1, head_dim), freeze=False)

        self.max_distance = max_distance
        self.key_vectors = table()
        self.value_vectors = table() if values else None

    def scores(
        self, q: Float[Tensor, "B H Tq K"], k: Float[Tensor, "B H Tk K"], queries: Tokens, keys: Tokens
    ) -> Float[Tensor, "B H Tq Tk"]:
        distance = distances(queries, keys).clamp_(max=self.max_distance)
        return by_distance(q @ self.key_vectors.weight.to(q.dtype).t(), distance)

    def values(
        self, probs: Float[Tensor, "B H Tq Tk"], queries: Tokens, keys: Tokens
    ) -> Float[Tensor, "B H Tq K"] | None:
        """The probability at each distance, times the distance's vector."""
        if self.value_vectors is None:
            return None
        vectors = self.value_vectors.weight.to(probs.dtype)
        distance = distances(queries, keys).clamp_(max=self.max_distance)
        at = probs.new_zeros(*probs.shape[:3], len(vectors))
        at = at.scatter_add(-1, distance[:, None].expand_as(probs), probs)
        return at @ vectors
