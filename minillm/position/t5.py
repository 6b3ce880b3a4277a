"""T5's bias: a learned number per head and bucket of distances, added to the scores (Raffel et al. 2020, 1910.10683).

Buckets are causal (`bidirectional=False` there): the nearer half of them holds one distance each, the others grow with
the logarithm of the distance up to `max_distance`, and all that is farther shares the last one. With 32 buckets and
128, buckets 16..31 begin at 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113.

T5 itself does not divide q.k by sqrt(head_dim); here the layer's `scale` does (1.0 is T5's), and the bias is added
after it, like ALiBi's. In T5 one table serves all layers (`shared`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.attention.tokens import Tokens
from minillm.errors import ConfigError
from minillm.position.base import LayerPosition, LayerShape, PairBias, Place, PositionScheme, register
from minillm.position.distances import count_edges, distances, log_edges


def t5_bucket(distance: Int[Tensor, "*shape"], num_buckets: int = 32, max_distance: int = 128) -> Int[Tensor, "*shape"]:
    """The bucket, int64 in 0..num_buckets-1, of how far back a key stands (query position - key position).

    With e = num_buckets // 2: the distance d itself below e, then e + floor(log(d / e) / log(max_distance / e) *
    (num_buckets - e)), at most num_buckets - 1. A key in the future (negative distance) falls into bucket 0. Edges are
    whole numbers found without rounding. transformers' float32 logarithm agrees at every setting in use; of 1766 tried,
    83 buckets up to 1000 put one distance (796) a bucket too high there.
    """
    _check(num_buckets, max_distance, "")
    return count_edges(distance, _edges(num_buckets, max_distance))


def _edges(num_buckets: int, max_distance: int) -> tuple[int, ...]:
    """The first distances of buckets 1, 2, ..., num_buckets - 1."""
    single = num_buckets // 2
    return (*range(1, single), *log_edges(single, max_distance, num_buckets - single))


def _check(num_buckets: int, max_distance: int, where: str) -> None:
    if num_buckets < 2:
        raise ConfigError(f"{where}num_buckets = {num_buckets!r}: must be at least 2.")
    if max_distance <= num_buckets // 2:
        raise ConfigError(
            f"{where}max_distance = {max_distance!r}: must be above num_buckets // 2 = {num_buckets // 2}, up to which "
            "every distance has its own bucket."
        )


@register("t5")
@dataclass(frozen=True)
class T5(PositionScheme):
    """score += weight[bucket(distance), head]."""

    place: ClassVar[Place] = "bias"
    pairwise: ClassVar[bool] = True

    num_buckets: int = 32
    """Rows of the table; half of them hold one distance each."""
    max_distance: int = 128
    """All distances from here on share the last bucket, and so do some before it."""
    shared: bool = True
    """One table for all layers of an equal scheme, as in T5, or one per layer."""

    def validate(self, layer: LayerShape) -> None:
        _check(self.num_buckets, self.max_distance, "position.")

    def make(self, layer: LayerShape) -> LayerPosition:
        return T5Bias(layer.num_attention_heads, self.num_buckets, self.max_distance)

    def summary(self) -> dict[str, Any]:
        return {"detail": f"{self.num_buckets} to {self.max_distance}" + ("" if self.shared else ", per layer")}

    def shared_shape(self, layer: LayerShape) -> tuple[int, ...]:
        return (layer.num_attention_heads,)


class T5Bias(LayerPosition):
    """`buckets.weight` (num_buckets, H) starts like the model's matrices, normal with its initializer_range."""

    def __init__(self, num_heads: int, num_buckets: int, max_distance: int) -> None:
        super().__init__()
        self.num_buckets, self.max_distance = num_buckets, max_distance
        # Drawn with the model's other weights, also where it is sharded; nn.Embedding(...) would draw here too.
        self.buckets = nn.Embedding.from_pretrained(torch.empty(num_buckets, num_heads), freeze=False)

    def bias(self, queries: Tokens, keys: Tokens) -> Float[Tensor, "B H Tq Tk"]:
        """The table looked up, float32 whatever the weights are."""
        weight = self.buckets.weight
        bucket = t5_bucket(distances(queries, keys), self.num_buckets, self.max_distance)
        # Not indexing: index_select's backward takes two thirds of the time, and heads come out before tokens.
        flat = weight.float().t().index_select(1, bucket.flatten())
        return flat.unflatten(1, bucket.shape).transpose(0, 1)

    def pair_bias(self, device: torch.device) -> PairBias:
        """Looked up by distance once, so that a pair costs one more look-up and no search for its bucket."""
        far = _edges(self.num_buckets, self.max_distance)[-1]
        bucket = t5_bucket(torch.arange(far + 1, device=device), self.num_buckets, self.max_distance)
        table = self.buckets.weight.float().index_select(0, bucket)
        return lambda head, distance: table[distance.clamp(max=far), head]
