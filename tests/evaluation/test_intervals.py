"""Means over tokens, intervals over documents."""

from __future__ import annotations

import numpy as np
import pytest

from minillm.evaluation.intervals import paired_difference, token_mean


def test_a_mean_is_over_tokens_and_not_over_documents() -> None:
    assert token_mean([10.0, 1.0], [10, 100]).value == pytest.approx(0.1)
    assert token_mean([10.0, 1.0], [10, 100]).n == 110


def test_the_interval_covers_what_resampled_documents_give() -> None:
    draw = np.random.default_rng(3)
    means = draw.normal(2.0, 0.5, size=40)
    estimate = token_mean(list(means * 100), [100] * 40)
    # The bootstrap of a mean is the normal interval, +- 1.96 standard errors, but for the draws.
    expected = 1.96 * means.std() / np.sqrt(40)
    assert estimate.value == pytest.approx(means.mean())
    assert estimate.high - estimate.value == pytest.approx(expected, rel=0.1)
    assert estimate.value - estimate.low == pytest.approx(expected, rel=0.1)


def test_one_document_gives_no_interval() -> None:
    assert token_mean([3.0], [2]) == (1.5, 2, None, None)


def test_nothing_scored_gives_no_value() -> None:
    assert token_mean([], []) == (None, 0, None, None)


def test_equal_measurements_differ_by_exactly_nothing() -> None:
    sums, counts = [3.0, 5.0, 9.0], [2, 3, 4]
    assert paired_difference(sums, counts, sums, counts) == (0.0, 9, 0.0, 0.0)


def test_pairing_takes_out_what_documents_have_in_common() -> None:
    """Documents of very different loss, each worse by 0.1: the difference is certain, the losses are not."""
    base = [100.0, 300.0, 700.0, 200.0]
    worse = [s + 10.0 for s in base]
    counts = [100] * 4
    difference = paired_difference(worse, counts, base, counts)
    assert difference.low == pytest.approx(0.1)
    assert difference.high == pytest.approx(0.1)
    assert token_mean(base, counts).high - token_mean(base, counts).low > 1


def test_measurements_of_other_documents_are_not_paired() -> None:
    with pytest.raises(ValueError, match="same documents"):
        paired_difference([1.0], [1], [1.0, 2.0], [1, 1])


def test_the_same_numbers_give_the_same_interval_every_time() -> None:
    assert token_mean([1.0, 2.0, 4.0], [1, 1, 1]) == token_mean([1.0, 2.0, 4.0], [1, 1, 1])
