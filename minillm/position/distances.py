"""How far a key stands from a query, and looking up there what was computed once per distance.

Relative schemes compare each query with every *distance*, (T, D), and then pick for each key the number of its
distance. A vector for each pair of tokens, (Tq, Tk, K), is never made.
"""

from __future__ import annotations

from functools import cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.attention.tokens import Tokens


def distances(queries: Tokens, keys: Tokens) -> Int[Tensor, "B Tq Tk"]:
    """|query position - key position| in tokens; B is 1 where all rows agree. The mask decides what is seen."""
    return (queries.position[:, :, None] - keys.position[:, None, :]).abs_()


def by_distance(table: Float[Tensor, "B H Tq D"], distance: Int[Tensor, "#B Tq Tk"]) -> Float[Tensor, "B H Tq Tk"]:
    """out[b, h, i, j] = table[b, h, i, distance[b, i, j]]."""
    return table.gather(-1, distance[:, None].expand(*table.shape[:3], -1))


def mean_distances(length: int, rows: int) -> float:
    """Different distances at which a token sees keys, averaged over a document of `length` tokens, when distances from
    rows - 1 on are taken for one. A window is not counted."""
    short = min(length, rows)
    return (short * (short + 1) / 2 + (length - short) * rows) / length


@cache
def log_edges(start: int, stop: int, count: int, strictly: bool = False) -> tuple[int, ...]:
    """The first whole distance at or (`strictly`) above start * (stop / start) ** (k / count), for k = 0..count-1.

    Decided in whole numbers, d ** count >= stop ** k * start ** (count - k): a logarithm in floating point may put a
    distance that is exactly an edge on either side of it, depending on the library.
    """
    edges = []
    low = start
    for k in range(count):
        bound = stop**k * start ** (count - k) + strictly
        high = stop
        while low < high:
            middle = (low + high) // 2
            if middle**count >= bound:
                high = middle
            else:
                low = middle + 1
        edges.append(low)
    return tuple(edges)


def count_edges(distance: Int[Tensor, "*shape"], edges: tuple[int, ...]) -> Int[Tensor, "*shape"]:
    """How many of the rising `edges` are at most the distance: the bucket it falls into, int64."""
    return torch.bucketize(distance, torch.tensor(edges, device=distance.device), right=True)
