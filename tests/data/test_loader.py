"""Batches: each window once an epoch, whatever the ranks, workers and restarts."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from minillm.data import BatchLoader, TokenShards, Windows, order, val_batches
from minillm.errors import ConfigError

MakeShards = Callable[..., TokenShards]
T = 4
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than cores


@pytest.fixture
def windows(make_shards: MakeShards) -> Windows:
    """100 windows; the first token of window i is 4 i, so that a batch says which windows it holds."""
    return Windows(make_shards([7, 1, 250, 143]), T)


def seen(loader: BatchLoader, count: int | None = None) -> list[list[int]]:
    """Windows of each batch; stops after `count` batches, as a killed run does."""
    found = []
    for batch in loader:
        found.append((batch["tokens"][:, 0] // T).tolist())
        if len(found) == count:
            break
    return found


def test_a_batch_holds_the_windows_of_its_place_in_the_order(windows: Windows) -> None:
    batch = next(iter(BatchLoader(windows, batch_size=8, seed=3, num_batches=5)))
    for row, index in enumerate(order(3, 0, 100)[:8]):
        for name in ("tokens", "targets", "document_ids"):
            assert torch.equal(batch[name][row], getattr(windows.window(int(index)), name))


def test_batches_run_across_the_end_of_an_epoch(windows: Windows) -> None:
    flat = [i for batch in seen(BatchLoader(windows, batch_size=8, seed=3, num_batches=26)) for i in batch]
    assert flat[:100] == order(3, 0, 100).tolist()
    assert flat[100:200] == order(3, 1, 100).tolist()
    assert flat[200:] == order(3, 2, 100)[:8].tolist()


def test_a_batch_may_be_larger_than_the_corpus(make_shards: MakeShards) -> None:
    small = Windows(make_shards([3 * T + 1]), T)
    (batch,) = seen(BatchLoader(small, batch_size=8, seed=0, num_batches=1))
    assert batch == [*order(0, 0, 3), *order(0, 1, 3), *order(0, 2, 3)[:2]]


@pytest.mark.bug("B060")
@pytest.mark.parametrize("num_workers", [0, 3])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_ranks_and_workers_together_read_each_window_once(windows: Windows, world_size: int, num_workers: int) -> None:
    ranks = [
        seen(BatchLoader(windows, 20, 1, num_batches=5, rank=rank, world_size=world_size, num_workers=num_workers))
        for rank in range(world_size)
    ]
    together = [[i for rank in ranks for i in rank[update]] for update in range(5)]
    assert sorted(i for batch in together for i in batch) == list(range(100))
    assert together == seen(BatchLoader(windows, 20, 1, num_batches=5)), "the global batch depends on the ranks"


@pytest.mark.bug("B049")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_three_restarts_read_what_a_straight_run_reads(windows: Windows, num_workers: int) -> None:
    straight = seen(BatchLoader(windows, 16, seed=1, num_batches=15))
    pieces: list[list[int]] = []
    state = {"next_update": 0}
    for _ in range(3):
        loader = BatchLoader(windows, 16, seed=1, num_batches=15, num_workers=num_workers)
        loader.load_state_dict(state)
        pieces += seen(loader, count=5)
        state = loader.state_dict()
    assert pieces == straight
    assert len({tuple(batch) for batch in pieces}) == 15


@pytest.mark.bug("B111")
@pytest.mark.bug("B112")
def test_a_resume_on_other_ranks_loses_and_repeats_nothing(windows: Windows) -> None:
    one = BatchLoader(windows, 20, seed=1, num_batches=5)
    read = [i for batch in seen(one, count=2) for i in batch]
    for rank in range(2):
        loader = BatchLoader(windows, 20, seed=1, num_batches=5, rank=rank, world_size=2)
        loader.load_state_dict(one.state_dict())
        read += [i for batch in seen(loader) for i in batch]
    assert sorted(read) == list(range(100))


def test_the_state_counts_what_was_handed_over_not_what_was_prefetched(windows: Windows) -> None:
    loader = BatchLoader(windows, 10, seed=1, num_batches=8, num_workers=2)
    batches = iter(loader)
    for expected in range(1, 4):
        next(batches)
        assert loader.state_dict() == {"next_update": expected}


def test_the_length_is_that_of_the_whole_run_also_after_a_resume(windows: Windows) -> None:
    loader = BatchLoader(windows, 10, seed=1, num_batches=8)
    loader.load_state_dict({"next_update": 6})
    assert len(loader) == 8
    assert len(seen(loader)) == 2
    assert seen(loader) == []


@pytest.mark.bug("B075")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_batches_neither_use_nor_move_the_global_random_state(windows: Windows, num_workers: int) -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = seen(BatchLoader(windows, 10, seed=1, num_batches=4, num_workers=num_workers))
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(6)
    assert seen(BatchLoader(windows, 10, seed=1, num_batches=4, num_workers=num_workers)) == first


def test_a_batch_that_devices_cannot_share_is_refused(windows: Windows) -> None:
    with pytest.raises(ConfigError, match=r"data\.batch_size: 10 .* 4 devices"):
        BatchLoader(windows, 10, seed=1, num_batches=4, rank=0, world_size=4)


@pytest.mark.parametrize("world_size", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [4, 8, 64, 128])
def test_validation_reads_each_window_once_over_all_ranks(windows: Windows, world_size: int, batch_size: int) -> None:
    loaders = [val_batches(windows, batch_size, rank, world_size) for rank in range(world_size)]
    assert len({len(loader) for loader in loaders}) == 1, "a rank with fewer batches would leave the others waiting"
    targets = []
    for loader in loaders:
        for batch in loader:
            assert batch["tokens"].shape == (batch_size // world_size, T)
            targets += [t for t in batch["targets"].flatten().tolist() if t != -100]
    assert sorted(targets) == list(range(1, windows.shards.num_tokens))


def test_validation_comes_in_order_and_again(windows: Windows) -> None:
    loader = val_batches(windows, batch_size=10)
    first, again = ([(b["tokens"][:, 0] // T).tolist() for b in loader] for _ in range(2))
    assert first == again == [list(range(i, i + 10)) for i in range(0, 100, 10)]


def test_a_limited_validation_takes_the_first_batches(windows: Windows) -> None:
    loader = val_batches(windows, batch_size=10, limit=3)
    assert len(loader) == len(list(loader)) == 3
    assert len(val_batches(windows, batch_size=10, limit=300)) == 10


def test_rows_that_fill_up_a_validation_batch_are_padding(make_shards: MakeShards) -> None:
    (batch,) = val_batches(Windows(make_shards([T + 1]), T), batch_size=3)
    assert batch["targets"].tolist() == [[1, 2, 3, 4], [-100] * T, [-100] * T]
    assert batch["document_ids"].tolist() == [[0] * T, [-1] * T, [-1] * T]
