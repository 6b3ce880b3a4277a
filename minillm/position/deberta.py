"""DeBERTa's disentangled terms in a decoder (He et al. 2020, arXiv 2006.03654, section 3.1).

score = q_i . k_j + q_i . Kr[d] + k_j . Qr[d],   Kr = P Wk,   Qr = P Wq

"c2p" is content to position, "p2c" position to content. P holds a learned vector per relative distance, as wide as all
heads together (in the paper as the model). Scores are divided by sqrt(head_dim * (1 + number of terms)).

DeBERTa is an encoder: its table spans distances -k..k-1. A causal query meets d = i - j >= 0 alone, so only that half,
`max_distance` rows, is kept: row d here is row k + d there. For p2c the paper writes delta(j, i), the row k - d;
`transformers` (modeling_deberta_v2.py) reads row k + d for both terms, and so does this. Projections have no bias, as
in the paper.

In DeBERTa all layers share P and each has its own Wk and Wq. Here a layer has all three, or (`shared`) all layers of an
equal scheme have all three together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from minillm.attention.tokens import Tokens
from minillm.errors import ConfigError
from minillm.position.base import LayerPosition, LayerShape, Place, PositionScheme, register
from minillm.position.distances import by_distance, count_edges, distances, log_edges, mean_distances

Term = Literal["c2p", "p2c"]


@register("deberta")
@dataclass(frozen=True)
class DeBERTa(PositionScheme):
    place: ClassVar[Place] = "relative"

    max_distance: int = 128
    """Distances from max_distance - 1 on share the last row (the paper's k)."""
    position_buckets: int | None = None
    """DeBERTa v2: so many rows, of which the nearer half hold one distance each and the others grow with the logarithm
    of the distance, up to max_distance."""
    terms: tuple[Term, ...] = ("c2p", "p2c")
    """Content to position, position to content, or both."""
    shared: bool = False
    """One table and one pair of projections for all layers of an equal scheme, or each its own."""

    @property
    def score_parts(self) -> int:  # type: ignore[override]  # a plain attribute of the base
        return 1 + len(self.terms)

    @property
    def rows(self) -> int:
        return self.max_distance if self.position_buckets is None else self.position_buckets

    def validate(self, layer: LayerShape) -> None:
        if self.max_distance < 2:
            raise ConfigError(f"position.max_distance = {self.max_distance!r}: must be at least 2.")
        buckets = self.position_buckets
        if buckets is not None and (buckets % 2 or not 4 <= buckets < self.max_distance):
            raise ConfigError(
                f"position.position_buckets = {buckets!r}: must be even, at least 4 and below max_distance = "
                f"{self.max_distance}, or null for a row per distance."
            )
        if not self.terms or len(set(self.terms)) < len(self.terms):
            raise ConfigError(f"position.terms = {list(self.terms)!r}: must be c2p, p2c, or both, each once.")

    def make(self, layer: LayerShape) -> LayerPosition:
        return DeBERTaTerms(self, layer)

    def summary(self) -> dict[str, Any]:
        rows = f"{self.rows} rows" + ("" if self.position_buckets is None else f" to {self.max_distance}")
        return {"detail": f"{'+'.join(self.terms)}, {rows}" + (", shared" if self.shared else "")}

    def tells_keys_apart(self, layer: LayerShape) -> bool:
        return "p2c" in self.terms

    def flops_per_token(self, layer: LayerShape, length: int) -> float:
        """A product of head_dim per head, term and row met, and the projections of all rows, once."""
        width = layer.num_attention_heads * layer.head_dim
        projected = {"c2p": layer.num_key_value_heads * layer.head_dim, "p2c": width}
        once = sum(projected[term] for term in self.terms) * width * self.rows / length
        return 2.0 * (len(self.terms) * width * mean_distances(length, self.rows) + once)


class DeBERTaTerms(LayerPosition):
    """`table.weight` (rows, H * K), `key_proj.weight` (G * K, H * K), `query_proj.weight` (H * K, H * K); all start as
    the model's matrices do. Kr has as many heads as the layer's keys, each serving its group of queries."""

    def __init__(self, scheme: DeBERTa, layer: LayerShape) -> None:
        super().__init__()
        heads, width = layer.num_attention_heads, layer.num_attention_heads * layer.head_dim
        self.rows, self.head_dim = scheme.rows, layer.head_dim
        self.groups = heads // layer.num_key_value_heads
        self.edges = None
        if scheme.position_buckets is not None:
            self.edges = bucket_edges(scheme.position_buckets, scheme.max_distance)
        self.table = nn.Embedding.from_pretrained(torch.empty(scheme.rows, width), freeze=False)
        self.key_proj = nn.Linear(width, width // self.groups, bias=False) if "c2p" in scheme.terms else None
        self.query_proj = nn.Linear(width, width, bias=False) if "p2c" in scheme.terms else None

    def scores(
        self, q: Float[Tensor, "B H Tq K"], k: Float[Tensor, "B H Tk K"], queries: Tokens, keys: Tokens
    ) -> Float[Tensor, "B H Tq Tk"]:
        distance = distances(queries, keys)
        row = distance.clamp_(max=self.rows - 1) if self.edges is None else count_edges(distance, self.edges)
        terms = []
        if self.key_proj is not None:
            relative = self._heads(self.key_proj, q.dtype).repeat_interleave(self.groups, dim=0)
            terms.append(by_distance(q @ relative.transpose(-1, -2), row))
        if self.query_proj is not None:
            relative = self._heads(self.query_proj, q.dtype)
            looked_up = by_distance(k @ relative.transpose(-1, -2), row.transpose(-1, -2))
            terms.append(looked_up.transpose(-1, -2))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]

    def _heads(self, projection: nn.Linear, dtype: torch.dtype) -> Float[Tensor, "N rows K"]:
        relative = F.linear(self.table.weight.to(dtype), projection.weight.to(dtype))
        return relative.unflatten(-1, (-1, self.head_dim)).transpose(0, 1)


def bucket_edges(buckets: int, max_distance: int) -> tuple[int, ...]:
    """The first distances of rows 1, 2, ..., buckets - 1 of v2 (modeling_deberta_v2.py, make_log_bucket_position).

    With m = buckets // 2: the distance d itself up to m, then m + ceil(log(d / m) / log((max_distance - 1) / m) *
    (m - 1)), at most the last row. In whole numbers, as T5's.
    """
    middle = buckets // 2
    return (*range(1, middle + 1), *log_edges(middle, max_distance - 1, middle - 1, strictly=True))
