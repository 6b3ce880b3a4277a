"""Means over training seeds, with intervals that cover both the seed and the documents.

An interval over documents says how a trained model would do on other documents, and nothing of what another seed would
have made of the same plan, which at small sizes is the larger part. Here both are resampled.

The design is crossed, not nested: every seed of every arm is measured on the same held-out documents (or the same test
samples), so a hard document is hard for all of them, and what it adds does not average out over seeds. A draw therefore
takes the seeds once and the documents once, both with replacement, and gives every drawn seed the same drawn documents:
the pigeonhole bootstrap of Owen, Annals of Applied Statistics 1 (2007), 386-411. Documents drawn anew within each seed
(the bootstrap of nested designs) would treat the same documents as different ones and make the interval too narrow by
up to the square root of the number of seeds. What is resampled is a ratio of sums, as everywhere here, and the value is
the mean over seeds of each seed's own ratio.

How much to trust it, as the share of simulated studies in which the nominal 95 % interval held the truth
(tests/evaluation/test_seeds.py measures some of it again): where the documents decide, 0.95 with 40 of them and 0.88
with 8; where the seeds decide, 0.50 with 2 of them, 0.75 with 3, 0.83 with 5 and 0.91 with 10; where neither does, it
is too wide. So 2 to 4 seeds are shown as points too, with no p-value, and from 5 on Student's interval over the seeds
stands beside: right at any number of normal seeds, but for these very documents alone.

    estimate = over_seeds(BySeed((1, 2, 3), sums, counts))      # sums, counts: (3 seeds, documents)
    change = paired_over_seeds(this_arm, that_arm)              # NotPaired: "not paired: seeds differ (1, 2 and 1, 3)"
"""

from __future__ import annotations

import functools
import math
from collections.abc import Hashable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from minillm.evaluation.intervals import LEVEL, wilson

DRAWS = 10_000
SEEDS_FOR_T = 5
"""From so many seeds on, Student's interval over them is given too."""


class NotPaired(ValueError):
    """Two measurements of which no paired difference can be taken; the message says why."""


@dataclass(frozen=True)
class BySeed:
    """One measurement of an arm's seeds: per seed and document (or sample) a sum, and what it is a sum over."""

    seeds: tuple[int, ...]
    sums: np.ndarray
    """(seeds, documents), float64."""
    counts: np.ndarray
    """(seeds, documents), float64."""
    documents: Hashable = None
    """Which documents these are: equal where they are the same ones in the same order."""

    def __post_init__(self) -> None:
        shape = (len(self.seeds), self.sums.shape[-1])
        if self.sums.shape != shape or self.counts.shape != shape or not self.seeds:
            raise ValueError(f"{len(self.seeds)} seeds, but sums {self.sums.shape} and counts {self.counts.shape}")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds {self.seeds}: each once")

    @staticmethod
    def of_values(values: dict[int, float]) -> BySeed:
        """One number a seed, of which no documents are known."""
        column = np.asarray(list(values.values()), np.float64)[:, None]
        return BySeed(tuple(values), column, np.ones_like(column))

    def taken(self, seeds: tuple[int, ...]) -> BySeed:
        """These of the seeds, in this order."""
        places = [self.seeds.index(seed) for seed in seeds]
        return BySeed(seeds, self.sums[places], self.counts[places], self.documents)


class OverSeeds(NamedTuple):
    """A mean over seeds. No interval of any kind for one seed: there is nothing to know of another."""

    value: float
    low: float | None
    high: float | None
    seeds: tuple[int, ...]
    values: tuple[float, ...]
    """Of each seed."""
    documents: int
    t_low: float | None = None
    """Student's interval over seeds, from `SEEDS_FOR_T` on."""
    t_high: float | None = None


def over_seeds(measured: BySeed) -> OverSeeds:
    """Mean over seeds with the interval over seeds and documents."""
    return _estimate(measured, None)


def share_over_seeds(measured: BySeed) -> OverSeeds:
    """As `over_seeds`, of a share of hits. Where all trials of all seeds agree there is nothing to resample: then
    Wilson's interval, each document counting once."""
    estimate = _estimate(measured, None)
    if estimate.low is None or 0 < estimate.value < 1:
        return estimate
    low, high = wilson(estimate.value, estimate.documents)
    return estimate._replace(low=low, high=high)


def paired_over_seeds(measured: BySeed, base: BySeed) -> OverSeeds:
    """Mean over seeds of `measured` minus `base`, seed by seed on the same documents, both resampled together.

    A seed decides initial weights and order of the data, so arms of one seed share luck that a difference takes out.

    Raises:
        NotPaired: the seeds or the documents are not the same.
    """
    if set(measured.seeds) != set(base.seeds):
        raise NotPaired(f"not paired: seeds differ ({_listed(measured.seeds)} and {_listed(base.seeds)})")
    if measured.documents != base.documents or measured.sums.shape != base.sums.shape:
        raise NotPaired("not paired: documents differ")
    return _estimate(measured, base.taken(measured.seeds))


def student(values: tuple[float, ...]) -> tuple[float, float]:
    """Student's 95 % interval of the mean of at least two values."""
    n = len(values)
    mean, deviation = float(np.mean(values)), float(np.std(values, ddof=1))
    half = t_quantile(n - 1) * deviation / math.sqrt(n)
    return mean - half, mean + half


@functools.cache
def t_quantile(freedom: int) -> float:
    """Two-sided quantile of Student's distribution at LEVEL."""
    low, high = 0.0, 1000.0
    while high - low > 1e-10:
        middle = (low + high) / 2
        low, high = (middle, high) if _t_inside(middle, freedom) < LEVEL else (low, middle)
    return (low + high) / 2


def _t_inside(t: float, freedom: int) -> float:
    """P(|T| < t) for whole degrees of freedom: Abramowitz and Stegun, 26.7.3 and 26.7.4."""
    angle = math.atan(t / math.sqrt(freedom))
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _estimate(measured: BySeed, base: BySeed | None) -> OverSeeds:
    own = _ratio(measured, np.ones((1, measured.sums.shape[1])))[0]
    if base is not None:
        own = own - _ratio(base, np.ones((1, base.sums.shape[1])))[0]
    seeds, documents = measured.sums.shape
    values = tuple(float(v) for v in own)
    if not np.isfinite(own).all():
        raise ValueError(f"seeds {measured.seeds}: values {values} are not all finite")
    if seeds == 1:
        return OverSeeds(values[0], None, None, measured.seeds, values, documents)
    document_draws = _draws(documents, 0)
    ratios = _ratio(measured, document_draws)
    if base is not None:
        ratios = ratios - _ratio(base, document_draws)
    # A document without anything to count can be all that is drawn.
    resampled = (ratios * _draws(seeds, 1)).sum(axis=1) / seeds
    resampled = resampled[np.isfinite(resampled)]
    tail = 100 * (1 - LEVEL) / 2
    low, high = (float(v) for v in np.percentile(resampled, [tail, 100 - tail]))
    t_interval = student(values) if seeds >= SEEDS_FOR_T else (None, None)
    return OverSeeds(float(own.mean()), low, high, measured.seeds, values, documents, *t_interval)


def _ratio(measured: BySeed, draws: np.ndarray) -> np.ndarray:
    """(draws, seeds): of each seed, over the documents as often as each was drawn."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio: np.ndarray = (draws @ measured.sums.T) / (draws @ measured.counts.T)
    return ratio


@functools.lru_cache(maxsize=8)
def _draws(size: int, stream: int) -> np.ndarray:
    """(DRAWS, size): how often each of `size` things is drawn. The same ones every time: the resampling then does not
    blur differences between rows, and streams of seeds and documents are independent."""
    return np.random.default_rng([stream, size]).multinomial(size, np.full(size, 1 / size), DRAWS).astype(np.float64)


def _listed(seeds: tuple[int, ...]) -> str:
    return ", ".join(str(seed) for seed in sorted(seeds))
