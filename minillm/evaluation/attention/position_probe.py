"""What hidden states know of absolute position: a linear map from each layer's stream to the token's index.

A NoPE model gets position from the causal mask alone (Haviv et al. 2022, arXiv 2203.16634). The map is ridge regression
in closed form, fitted on one half of the documents and tested on the other, both ways, so that each document is tested
once. R2 = 1 means the position can be read off exactly, 0 that the mean position is as good a guess.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from minillm.config.layers import LayerSpec
from minillm.evaluation.attention.collect import Collected
from minillm.evaluation.attention.summary import Clusters, Row, row
from minillm.evaluation.intervals import token_mean


def ridge(x: np.ndarray, y: np.ndarray, penalty: float) -> np.ndarray:
    """(D + 1,) weights, the last a constant: of standardised columns, penalty times n on all but the constant."""
    mean, scale = x.mean(axis=0), x.std(axis=0)
    scale = np.where(scale > 1e-12 * max(scale.max(initial=0), 1e-300), scale, np.inf)
    z = (x - mean) / scale
    weight = np.linalg.solve(z.T @ z + penalty * len(z) * np.eye(z.shape[1]), z.T @ (y - y.mean())) / scale
    return np.append(weight, y.mean() - mean @ weight)


def position_rows(found: Collected, specs: Sequence[LayerSpec], length: int, penalty: float) -> list[Row]:
    """`position_r2` and `position_error` (mean error in tokens) of the stream before the first layer (layer null, kind
    embeddings) and after each; none where there are fewer than two documents."""
    documents = np.asarray(found.clusters)
    names = np.unique(documents)
    if len(names) < 2 or not found.hidden:
        return []
    place = np.concatenate(found.places).astype(np.float64)
    owner = np.repeat(documents, [len(p) for p in found.places])
    half = np.isin(owner, names[::2])
    rows = []
    for depth in range(found.hidden[0].shape[0]):
        x = np.concatenate([hidden[depth] for hidden in found.hidden]).astype(np.float64)
        guess = np.empty_like(place)
        spread = np.empty_like(place)
        for fit, test in ((half, ~half), (~half, half)):
            weight = ridge(x[fit], place[fit], penalty)
            guess[test] = x[test] @ weight[:-1] + weight[-1]
            spread[test] = (place[test] - place[fit].mean()) ** 2
        spec = None if depth == 0 else specs[depth - 1]
        where = {"kind": "embeddings"} if spec is None else {"layer": spec.index, "kind": spec.kind}
        rows += _rows(place - guess, spread, owner, length, where)
    return rows


def _rows(error: np.ndarray, spread: np.ndarray, owner: np.ndarray, length: int, where: Row) -> list[Row]:
    clusters = Clusters(owner.tolist())
    n = len(error)
    unexplained = token_mean(list(clusters.sums(error**2)), list(clusters.sums(spread)))
    flipped = {
        "value": None if unexplained.value is None else 1 - unexplained.value,
        "low": None if unexplained.high is None else 1 - unexplained.high,
        "high": None if unexplained.low is None else 1 - unexplained.low,
    }
    size = clusters.mean(np.abs(error), np.ones(n))
    return [
        row("position_r2", length, unexplained._replace(n=n, **flipped), **where),
        row("position_error", length, size, **where),
    ]
