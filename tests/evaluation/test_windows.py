"""Which windows the protocols read, and what they score in them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minillm.evaluation.windows import (
    Scored,
    Window,
    from_the_start,
    non_overlapping,
    position_bins,
    same_target,
    strided,
)


def targets(scored: list[Scored]) -> list[int]:
    """Places in the document of the tokens that are scored, in the order of the windows."""
    return [w.start + j + 1 for w, first in scored for j in range(first, w.length)]


@given(limit=st.integers(1, 300), length=st.integers(1, 80))
def test_non_overlapping_windows_score_every_token_once(limit: int, length: int) -> None:
    assert targets(non_overlapping(0, limit, length)) == list(range(1, limit + 1))


@given(limit=st.integers(1, 300), length=st.integers(1, 80), data=st.data())
def test_strided_windows_score_every_token_once(limit: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, length))
    assert targets(strided(0, limit, length, stride)) == list(range(1, limit + 1))


@given(limit=st.integers(1, 300), length=st.integers(1, 80), data=st.data())
def test_strided_tokens_beyond_the_first_window_have_nearly_a_whole_window_of_context(
    limit: int, length: int, data: st.DataObject
) -> None:
    stride = data.draw(st.integers(1, length))
    for window, first in strided(0, limit, length, stride)[1:]:
        assert window.length == length
        assert first + 1 > length - stride


def test_a_stride_of_one_window_is_non_overlapping() -> None:
    assert strided(0, 96, 32, 32) == non_overlapping(0, 96, 32)


def test_a_stride_of_one_gives_every_later_token_the_whole_window() -> None:
    later = strided(0, 20, 8, 1)[1:]
    assert [s.first for s in later] == [7] * 12


@pytest.mark.parametrize("stride", [0, 9], ids=["a stride of nothing", "a stride beyond the window"])
def test_a_stride_that_loses_tokens_is_refused(stride: int) -> None:
    with pytest.raises(ValueError, match="stride"):
        strided(0, 20, 8, stride)


def test_same_targets_are_the_same_tokens_at_every_context() -> None:
    cut = [same_target(0, end=100, context=c, targets=8) for c in (8, 16, 64, 99)]
    assert {tuple(targets([s])) for s in cut} == {tuple(range(93, 101))}


def test_a_same_target_window_never_holds_the_start_marker() -> None:
    assert same_target(0, end=100, context=99, targets=8).window.start == 1
    with pytest.raises(ValueError, match="start marker"):
        same_target(0, end=100, context=100, targets=8)


def test_targets_that_do_not_fit_the_context_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        same_target(0, end=100, context=4, targets=5)


def test_a_window_from_the_start_holds_the_start_marker() -> None:
    assert from_the_start(3, 16) == Scored(Window(3, 0, 16), 0)


@pytest.mark.parametrize(
    ("train_length", "longest", "bins"),
    [
        (64, 256, [(1, 16), (17, 32), (33, 64), (65, 128), (129, 256)]),
        (16, 64, [(1, 16), (17, 32), (33, 64)]),
        (24, 96, [(1, 24), (25, 48), (49, 96)]),
        (20, 60, [(1, 20), (21, 40), (41, 60)]),
        (8, 8, [(1, 8)]),
    ],
    ids=["down to 16", "short training length", "not a power of two", "odd multiple", "one length"],
)
def test_position_bins_have_an_edge_at_the_training_length(
    train_length: int, longest: int, bins: list[tuple[int, int]]
) -> None:
    assert position_bins(train_length, longest) == bins
