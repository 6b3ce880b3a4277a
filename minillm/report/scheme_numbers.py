"""What the figures of the position schemes show, as numbers, computed by the schemes themselves.

Nothing here knows a scheme's formula: biases, rotations and masks are those that attention gets.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.attention.tokens import StepContext, Tokens
from minillm.position.alibi import alibi_slopes
from minillm.position.base import LayerShape, PositionScheme
from minillm.position.rope import RoPE


def decay_bound(scheme: RoPE, head_dim: int, distance: Int[Tensor, "D"]) -> Float[Tensor, "D"]:
    """Mean of |S_1|, ..., |S_n| at each distance m, n the number of pairs, S_j = sum of exp(i m frequency) over the
    first j pairs: the factor of the upper bound on |q.k| (Su et al., arXiv 2104.09864, equations 35 to 37, figure 2).
    """
    frequencies = torch.tensor(scheme.frequencies(head_dim, 0), dtype=torch.float64)
    angle = distance.to(torch.float64)[:, None] * frequencies
    return torch.polar(torch.ones_like(angle), angle).cumsum(dim=-1).abs().mean(dim=-1)


def rotated_score(scheme: RoPE, head_dim: int, distance: Int[Tensor, "D"]) -> Float[Tensor, "D"]:
    """q.k after the rotation, of a query and keys that are 1 in every channel, as a share of that without rotation."""
    position = scheme.make(LayerShape(0, 1, 1, head_dim))
    assert position is not None
    queries, keys = stand(distance)

    def turned(tokens: Tokens) -> Tensor:
        rotary = position.rotary(StepContext(queries, contiguous=False), tokens)
        assert rotary is not None
        return position.rotate(torch.ones(1, 1, tokens.index.shape[1], head_dim), rotary)

    return (turned(queries) @ turned(keys).transpose(-1, -2))[0, 0, 0] / head_dim


def bias_weight(scheme: PositionScheme, heads: int, distance: Int[Tensor, "D"]) -> Float[Tensor, "H D"]:
    """exp(bias) per head and distance: what the bias alone multiplies a key's weight by."""
    position = scheme.make(LayerShape(0, heads, heads, 2))
    assert position is not None
    bias = position.bias(*stand(distance))
    assert bias is not None
    return bias[0, :, 0].exp()


def alibi_fade(num_heads: int, share: float = 0.01) -> tuple[int, ...]:
    """Tokens, rounded, after which each head's weight exp(-slope * distance) has fallen to `share`."""
    return tuple(round(-math.log(share) / slope) for slope in alibi_slopes(num_heads).tolist())


def table_row(scheme: PositionScheme, distance: Int[Tensor, "D"], rows: int) -> Int[Tensor, "D"]:
    """Which row of its learned table a scheme reads at each distance.

    The table is filled with its row numbers, in the first channel, and the query (or the key) is one there.
    """
    position = scheme.make(LayerShape(0, 1, 1, rows))
    assert position is not None
    numbers = torch.zeros(rows, rows)
    numbers[:, 0] = torch.arange(rows)
    for name, parameter in position.named_parameters():
        shown = torch.eye(rows) if name.endswith("_proj.weight") else numbers[:, : parameter.shape[1]]
        parameter.data = shown.clone()
    queries, keys = stand(distance)
    with torch.no_grad():
        read = position.bias(queries, keys)
        if read is None:
            one = nn.functional.one_hot(torch.tensor([[[0]]]), rows).float()
            read = position.scores(one, one.expand(1, 1, len(distance), rows), queries, keys)
    return read[0, 0, 0].round().to(torch.int64)


def stand(distance: Int[Tensor, "D"]) -> tuple[Tokens, Tokens]:
    """One query, and a key at each distance before it."""
    last = distance.max()
    query, keys = last[None, None], (last - distance)[None]
    return Tokens(query, query, None), Tokens(keys, keys, None)
