"""Means over seeds: what is resampled, what cancels in a difference, and how often the interval holds the truth."""

from __future__ import annotations

import numpy as np
import pytest

from minillm.evaluation.intervals import token_mean
from minillm.evaluation.seeds import BySeed, NotPaired, over_seeds, paired_over_seeds, student, t_quantile

Z = 1.959963984540054


def measured(losses: np.ndarray, seeds: tuple[int, ...] | None = None, documents: str = "held out") -> BySeed:
    """Losses (seeds, documents) of documents of 50 tokens each."""
    counts = np.full(losses.shape, 50.0)
    return BySeed(seeds or tuple(range(1, len(losses) + 1)), losses * counts, counts, documents)


def test_the_value_is_the_mean_over_seeds_of_each_seeds_mean_over_tokens() -> None:
    sums, counts = np.array([[10.0, 1.0], [20.0, 2.0]]), np.array([[10.0, 100.0], [10.0, 100.0]])
    estimate = over_seeds(BySeed((1, 2), sums, counts))
    assert estimate.values == pytest.approx((11 / 110, 22 / 110))
    assert estimate.value == pytest.approx(16.5 / 110)
    assert (estimate.seeds, estimate.documents) == ((1, 2), 2)


def test_one_seed_has_a_value_and_no_interval() -> None:
    estimate = over_seeds(measured(np.array([[1.0, 2.0, 3.0]])))
    assert (estimate.value, estimate.low, estimate.high, estimate.t_low) == (2.0, None, None, None)


def test_two_seeds_without_documents_can_only_say_from_one_to_the_other() -> None:
    """A draw is both of one, or one of each: shares 1/4, 1/2, 1/4, so that 2.5 % lies at the ends."""
    estimate = over_seeds(BySeed.of_values({1: 3.0, 2: 5.0}))
    assert (estimate.value, estimate.low, estimate.high) == (4.0, 3.0, 5.0)


def test_documents_that_all_seeds_share_do_not_average_out_over_seeds() -> None:
    """Seeds that are alike add nothing and take nothing away: the interval is that over documents of any one."""
    losses = np.random.default_rng(3).normal(2.0, 0.5, 40)
    alone = token_mean(list(losses * 50), [50] * 40)
    together = over_seeds(measured(np.stack([losses] * 4)))
    assert alone.low is not None
    assert alone.high is not None
    assert (together.low, together.high) == pytest.approx((alone.low, alone.high), abs=0.01)


def test_variances_of_seeds_and_documents_add_up() -> None:
    """Closed form for losses that are a seed's part plus a document's: variance a / seeds + variance b / documents."""
    draw = np.random.default_rng(4)
    of_seed, of_document = draw.normal(0, 0.3, 30), draw.normal(2, 1, 60)
    estimate = over_seeds(measured(of_seed[:, None] + of_document))
    half = Z * np.sqrt(of_seed.var() / 30 + of_document.var() / 60)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.high - estimate.value == pytest.approx(half, rel=0.05)
    assert estimate.value - estimate.low == pytest.approx(half, rel=0.05)


def test_seeds_alone_are_what_scipy_resamples() -> None:
    stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(5).gamma(2.0, size=12)
    expected = stats.bootstrap(
        (values,), np.mean, method="percentile", n_resamples=20_000, random_state=0
    ).confidence_interval
    estimate = over_seeds(BySeed.of_values(dict(enumerate(values))))
    assert (estimate.low, estimate.high) == pytest.approx((expected.low, expected.high), rel=0.02)


@pytest.mark.parametrize(
    ("seeds", "documents", "deviations", "least", "most"),
    [
        (3, 8, (1.0, 0.05), 0.70, 0.80),
        (10, 8, (1.0, 0.05), 0.85, 0.97),
        (3, 40, (0.05, 1.0), 0.90, 0.98),
        (3, 40, (0.2, 1.0), 0.88, 0.98),
    ],
    ids=["three seeds decide", "ten seeds decide", "documents decide", "both"],
)
def test_the_interval_holds_the_truth_as_often_as_its_description_says(
    seeds: int, documents: int, deviations: tuple[float, float], least: float, most: float
) -> None:
    draw = np.random.default_rng(6)
    held = 0
    for _ in range(600):
        losses = draw.normal(0, deviations[0], (seeds, 1)) + draw.normal(0, deviations[1], (1, documents))
        estimate = over_seeds(measured(losses + draw.normal(0, 0.05, losses.shape)))
        assert estimate.low is not None
        assert estimate.high is not None
        held += estimate.low <= 0 <= estimate.high
    assert least <= held / 600 <= most


def test_students_interval_stands_beside_from_five_seeds_on() -> None:
    losses = np.random.default_rng(7).normal(2.0, 0.5, (5, 4))
    assert over_seeds(measured(losses[:4])).t_low is None
    estimate = over_seeds(measured(losses))
    assert (estimate.t_low, estimate.t_high) == student(estimate.values)
    means = losses.mean(axis=1)
    assert estimate.t_high == pytest.approx(means.mean() + 2.776445 * means.std(ddof=1) / np.sqrt(5))


@pytest.mark.parametrize(("freedom", "quantile"), [(1, 12.7062), (2, 4.3027), (5, 2.5706), (9, 2.2622), (30, 2.0423)])
def test_students_quantiles_are_those_of_the_printed_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(freedom) == pytest.approx(quantile, abs=5e-5)


def test_what_seeds_and_documents_have_in_common_cancels_in_a_difference() -> None:
    draw = np.random.default_rng(8)
    base = draw.normal(0, 1, (3, 1)) + draw.normal(3, 1, (1, 8))
    difference = paired_over_seeds(measured(base + 0.1), measured(base))
    assert difference.values == pytest.approx((0.1,) * 3)
    assert (difference.low, difference.high) == pytest.approx((0.1, 0.1))
    same = paired_over_seeds(measured(base), measured(base))
    assert (same.value, same.low, same.high) == (0.0, 0.0, 0.0)


def test_pairs_are_made_by_seed_whatever_the_order() -> None:
    losses = np.array([[1.0, 2.0], [5.0, 6.0]])
    turned = measured(losses[::-1] + 1, seeds=(2, 1))
    assert paired_over_seeds(turned, measured(losses)).values == pytest.approx((1.0, 1.0))


def test_other_seeds_or_documents_are_not_paired() -> None:
    losses = np.ones((2, 3))
    with pytest.raises(NotPaired, match=r"not paired: seeds differ \(1, 2 and 1, 3\)"):
        paired_over_seeds(measured(losses), measured(losses, seeds=(1, 3)))
    with pytest.raises(NotPaired, match="not paired: documents differ"):
        paired_over_seeds(measured(losses), measured(losses, documents="others"))


def test_a_seed_stands_once() -> None:
    with pytest.raises(ValueError, match="each once"):
        measured(np.ones((2, 3)), seeds=(1, 1))


def test_the_same_numbers_give_the_same_interval_every_time() -> None:
    losses = np.random.default_rng(9).normal(2.0, 0.5, (3, 8))
    assert over_seeds(measured(losses)) == over_seeds(measured(losses))
