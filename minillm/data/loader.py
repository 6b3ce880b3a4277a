"""Batches: which windows make up which update, on which rank.

An item of `BatchLoader` is this rank's share of one optimiser update. Update u of the global batch size B takes the
places u*B .. u*B+B-1 of an endless stream of windows; place s is window order(seed, s // N, N)[s % N]. So batches run
across the ends of epochs, and what an update trains on depends on (seed, u) alone: not on ranks, workers or restarts.

    loader = BatchLoader(windows, batch_size=16, seed=1, num_batches=1000, rank=0, world_size=2)
    for batch in loader:                                       # 8 rows each: {"tokens", "targets", "document_ids"}
        state = loader.state_dict()                            # {"next_update": ...}: right with workers prefetching
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from minillm.data.windows import Window, Windows, order
from minillm.errors import ConfigError

Batch = dict[str, Tensor]
"""tokens, targets and document_ids, each (rows, T) int64."""


def rank_rows(batch_size: int, rank: int, world_size: int) -> range:
    """The rows of the global batch that belong to `rank`: equal, neighbouring shares."""
    if not 0 <= rank < world_size:
        raise ValueError(f"rank {rank} of {world_size}.")
    if batch_size < 1 or batch_size % world_size:
        raise ConfigError(
            f"data.batch_size: {batch_size} is not allowed with {world_size} devices. "
            f"Allowed: a multiple of the number of devices."
        )
    share = batch_size // world_size
    return range(rank * share, (rank + 1) * share)


def stack(windows: Sequence[Window]) -> Batch:
    """Windows on top of each other."""
    return {name: torch.stack([getattr(w, name) for w in windows]) for name in Window._fields}


class _Updates(Dataset[Batch]):
    """The share of `rank` in update u, for any u: a pure function, so that any worker may compute any update."""

    def __init__(self, windows: Windows, batch_size: int, seed: int, rows: range) -> None:
        self.windows, self.batch_size, self.seed, self.rows = windows, batch_size, seed, rows

    def indices(self, update: int) -> list[int]:
        count = len(self.windows)
        places = [divmod(update * self.batch_size + row, count) for row in self.rows]
        return [int(order(self.seed, epoch, count)[place]) for epoch, place in places]

    def __getitem__(self, update: int) -> Batch:
        return stack([self.windows.window(i) for i in self.indices(update)])


class UpdateLoader:
    """The training batches of one rank: `num_batches` updates in all, counted from the start of the run."""

    def __init__(self, updates: Dataset[Batch], num_batches: int, num_workers: int) -> None:
        """`updates[u]` is the batch of update u. Workers only prefetch: they change no batch."""
        self.num_batches = num_batches
        self.num_workers = num_workers
        self.next_update = 0
        self._batches = updates

    def __len__(self) -> int:
        """Updates of the whole run, also after a resume: Lightning counts from the start."""
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        """Batches from `next_update` on. An exhausted loader yields nothing more."""
        remaining = range(self.next_update, self.num_batches)
        loader: DataLoader[Batch] = DataLoader(
            self._batches,
            batch_size=None,
            sampler=remaining,
            num_workers=self.num_workers,
            generator=torch.Generator(),  # else it draws from the global one, and a resumed run's dropout would differ
        )
        for update, batch in zip(remaining, loader, strict=True):
            # Counted as it is handed over, not as a worker prefetches it: a state taken while this batch is being
            # trained on says that the next one follows.
            self.next_update = update + 1
            yield batch

    def state_dict(self) -> dict[str, int]:
        """`next_update`: the first update whose batch has not been handed over."""
        return {"next_update": self.next_update}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take effect at the next `iter`; workers start only then, so none has prefetched from the old place."""
        self.next_update = int(state["next_update"])


class BatchLoader(UpdateLoader):
    """The training batches of text: windows in the order of `minillm.data.windows.order`."""

    def __init__(
        self,
        windows: Windows,
        batch_size: int,
        seed: int,
        num_batches: int,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
    ) -> None:
        """`batch_size` is the global one, over all ranks."""
        if len(windows) == 0:
            raise ValueError("No window to train on.")
        self._updates = _Updates(windows, batch_size, seed, rank_rows(batch_size, rank, world_size))
        super().__init__(self._updates, num_batches, num_workers)

    def window_indices(self, update: int) -> list[int]:
        """The windows behind this rank's rows of `update`."""
        return self._updates.indices(update)


class HeldOutLoader:
    """`count` held-out items of one rank, in order, in equally many and equally shaped batches on each rank; can be
    iterated again and again. Subclasses say what a batch is made of."""

    def __init__(self, count: int, batch_size: int, rank: int, world_size: int, limit: int | None) -> None:
        self.count, self.batch_size = count, batch_size
        self.rows = rank_rows(batch_size, rank, world_size)
        whole = -(-count // batch_size)
        self.num_batches = whole if limit is None else min(limit, whole)

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        return (self.batch(number) for number in range(self.num_batches))

    def items(self, number: int) -> list[int | None]:
        """The items of this rank's rows of a batch; None where there are no more."""
        places = [number * self.batch_size + row for row in self.rows]
        return [place if place < self.count else None for place in places]

    def batch(self, number: int) -> Batch:
        raise NotImplementedError


class ValLoader(HeldOutLoader):
    """Held-out windows of text."""

    def __init__(self, windows: Windows, batch_size: int, rank: int, world_size: int, limit: int | None) -> None:
        super().__init__(len(windows), batch_size, rank, world_size, limit)
        self.windows = windows

    def batch(self, number: int) -> Batch:
        windows = self.windows
        return stack([windows.padding() if i is None else windows.window(i) for i in self.items(number)])


def val_batches(
    windows: Windows, batch_size: int, rank: int = 0, world_size: int = 1, limit: int | None = None
) -> ValLoader:
    """Every held-out window once over all ranks, in order; the same number of equally shaped batches on each rank.

    `batch_size` is the global one. Rows beyond the last window are padding (all targets -100), so that ranks meet in
    every collective. `limit` keeps the first so many batches.
    """
    return ValLoader(windows, batch_size, rank, world_size, limit)
