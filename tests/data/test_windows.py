"""Packing loses no token, and the order of windows is a pure function."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from minillm.data import TokenShards, Windows, order
from minillm.errors import ConfigError

MakeShards = Callable[..., TokenShards]


def test_targets_are_the_tokens_shifted_once(make_shards: MakeShards) -> None:
    windows = Windows(make_shards([9]), seq_len=4)
    assert [w.tokens.tolist() for w in map(windows.window, range(2))] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert [w.targets.tolist() for w in map(windows.window, range(2))] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert len(windows) == 2


def test_the_last_window_is_padded_without_loss_or_document(make_shards: MakeShards) -> None:
    last = Windows(make_shards([7]), seq_len=4).window(1)
    assert last.tokens.tolist()[:2] == [4, 5]
    assert last.targets.tolist() == [5, 6, -100, -100]
    assert last.document_ids.tolist() == [0, 0, -1, -1]


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8), seq_len=st.integers(1, 12), mask=st.booleans())
def test_every_token_but_the_first_is_a_target_exactly_once(
    make_shards: MakeShards, lengths: list[int], seq_len: int, mask: bool
) -> None:
    shards = make_shards(lengths)
    windows = Windows(shards, seq_len, mask)
    all_windows = [windows.window(i) for i in range(len(windows))]
    targets = [t for w in all_windows for t in w.targets.tolist() if t != -100]
    assert targets == list(range(1, sum(lengths)))
    owner = np.repeat(np.arange(len(lengths)), lengths)
    for window in all_windows:
        assert window.tokens.shape == window.targets.shape == window.document_ids.shape == (seq_len,)
        for token, target, document in zip(*(x.tolist() for x in window), strict=True):
            assert (target == -100) == (document == -1)
            if target != -100:
                assert target == token + 1
                assert document == (owner[token] if mask else 0)


def test_without_document_mask_all_tokens_share_a_document(make_shards: MakeShards) -> None:
    assert Windows(make_shards([2, 2, 2]), 5, document_mask=False).window(0).document_ids.tolist() == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("index", [-1, 2])
def test_a_window_that_is_not_there_is_an_error(make_shards: MakeShards, index: int) -> None:
    with pytest.raises(IndexError):
        Windows(make_shards([9]), 4).window(index)


def test_a_block_length_below_one_is_refused(make_shards: MakeShards) -> None:
    with pytest.raises(ConfigError, match=r"data\.seq_len: 0"):
        Windows(make_shards([9]), 0)


@given(seed=st.integers(0, 2**63), epoch=st.integers(0, 1000), count=st.integers(0, 300))
def test_an_order_is_a_permutation(seed: int, epoch: int, count: int) -> None:
    assert sorted(order(seed, epoch, count).tolist()) == list(range(count))


def test_seeds_and_epochs_have_orders_of_their_own() -> None:
    orders = {tuple(order(seed, epoch, 100).tolist()) for seed in range(20) for epoch in range(20)}
    assert len(orders) == 400


def test_an_order_looks_random() -> None:
    # Where each window falls, over many epochs: near-uniform, and neighbours no nearer than chance (mean gap n/3).
    orders = np.stack([order(7, epoch, 60) for epoch in range(2000)])
    share = np.bincount(orders[:, 0], minlength=60) / 2000
    assert share.max() < 2.5 / 60
    assert abs(np.abs(np.diff(orders, axis=1)).mean() - 61 / 3) < 0.5


def test_the_order_never_changes_between_versions() -> None:
    assert order(1, 0, 8).tolist() == [7, 1, 0, 3, 5, 6, 4, 2]
    assert order(1, 1, 8).tolist() != order(1, 0, 8).tolist()


def test_the_order_is_the_same_in_another_process() -> None:
    program = "from minillm.data import order; print(order(3, 5, 50).tolist())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == str(order(3, 5, 50).tolist())
