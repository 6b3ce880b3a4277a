"""Means over tokens with intervals over documents, in float64.

Tokens of one document are not independent, so what is resampled is the document: a percentile bootstrap of the ratio
(sum of NLLs) / (number of tokens). With the handful of documents of a held-out set such an interval is rough, and it
says nothing of the training seed; both are stated wherever the numbers are shown.

    Estimate(value=3.21, n=1024, low=3.02, high=3.40) = token_mean(sums, counts)
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DRAWS = 4000
LEVEL = 0.95
Z = 1.959963984540054
"""Two-sided quantile of the normal distribution at LEVEL."""


class Estimate(NamedTuple):
    """A mean over `n` tokens with a 95 % interval over documents; None where there is nothing to say."""

    value: float | None
    n: int
    low: float | None
    high: float | None


def token_mean(sums: Sequence[float], counts: Sequence[int]) -> Estimate:
    """Mean over all tokens of all documents: sum of sums / sum of counts, never a mean of means."""
    return _estimate(np.asarray(sums, np.float64), np.asarray(counts, np.float64))


def paired_difference(
    sums: Sequence[float], counts: Sequence[int], base_sums: Sequence[float], base_counts: Sequence[int]
) -> Estimate:
    """Mean of one measurement minus that of another over the same documents, resampled together; n is the former's."""
    if len(sums) != len(base_sums):
        raise ValueError(f"paired over the same documents, but got {len(sums)} and {len(base_sums)}")
    return _estimate(
        np.asarray(sums, np.float64),
        np.asarray(counts, np.float64),
        np.asarray(base_sums, np.float64),
        np.asarray(base_counts, np.float64),
    )


def wilson(value: float, n: float) -> tuple[float, float]:
    """Wilson's 95 % interval of a share `value` among `n` independent trials; never empty, never outside 0..1."""
    centre = (value + Z**2 / (2 * n)) / (1 + Z**2 / n)
    half = Z / (1 + Z**2 / n) * math.sqrt(value * (1 - value) / n + Z**2 / (4 * n**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def clustered_share(hits: Sequence[float], counts: Sequence[int]) -> Estimate:
    """A share of hits, by cluster: `hits[c]` of the `counts[c]` trials of cluster c. n is the number of trials.

    The interval is Wilson's, for as many independent trials as the clusters are worth: the number of trials over the
    design effect, the variance of the share between clusters against that of independent trials (never below 1). Where
    all trials agree the data say nothing of it, and each cluster counts once.
    """
    sums, sizes = np.asarray(hits, np.float64), np.asarray(counts, np.float64)
    n = int(sizes.sum())
    if n == 0:
        return Estimate(None, 0, None, None)
    value = float(sums.sum() / n)
    clusters = len(sizes)
    effective = float(clusters)
    if 0 < value < 1 and clusters > 1:
        between = clusters / (clusters - 1) * float(((sums - value * sizes) ** 2).sum()) / n**2
        effective = n / max(1.0, between / (value * (1 - value) / n))
    return Estimate(value, n, *wilson(value, effective))


def _estimate(
    sums: np.ndarray, counts: np.ndarray, base_sums: np.ndarray | None = None, base_counts: np.ndarray | None = None
) -> Estimate:
    n = int(counts.sum())
    if n == 0:
        return Estimate(None, 0, None, None)
    value = sums.sum() / counts.sum()
    if base_sums is not None and base_counts is not None:
        value -= base_sums.sum() / base_counts.sum()
    if len(sums) < 2:
        return Estimate(float(value), n, None, None)
    # The same draws for every call over as many documents: differences between rows are not blurred by the resampling.
    draws = np.random.default_rng(0).integers(0, len(sums), (DRAWS, len(sums)))
    resampled = _ratio(sums, counts, draws)
    if base_sums is not None and base_counts is not None:
        resampled = resampled - _ratio(base_sums, base_counts, draws)
    resampled = resampled[np.isfinite(resampled)]
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(resampled, [tail, 100 - tail])
    return Estimate(float(value), n, float(low), float(high))


def _ratio(sums: np.ndarray, counts: np.ndarray, draws: np.ndarray) -> np.ndarray:
    with np.errstate(invalid="ignore", divide="ignore"):
        return sums[draws].sum(axis=1) / counts[draws].sum(axis=1)
