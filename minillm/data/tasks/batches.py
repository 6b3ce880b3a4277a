"""Samples stacked into batches: rows of one length, filled up on the right.

Update u of a run is a pure function of (seed, u, row), as for text: ranks, workers and restarts change nothing. Its
length is drawn once for all rows from `task.lengths`. What follows a sample in its row is token 0 without a target:
the causal mask hides it from the sample, so no document mask is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from minillm.data.loader import Batch, UpdateLoader, rank_rows
from minillm.data.tasks.base import Sample, Task
from minillm.data.tasks.stream import Stream
from minillm.data.windows import IGNORED

LENGTH_KEY = 2**40
"""Sets the stream that draws a batch's length apart from those of samples."""


def stack(samples: Sequence[Sample], length: int) -> Batch:
    """Samples as rows of `length` tokens, all of document 0."""
    tokens = np.zeros((len(samples), length), dtype=np.int64)
    targets = np.full((len(samples), length), IGNORED, dtype=np.int64)
    for row, sample in enumerate(samples):
        tokens[row, : len(sample.tokens)] = sample.tokens
        targets[row, : len(sample.targets)] = sample.targets
    return {
        "tokens": torch.from_numpy(tokens),
        "targets": torch.from_numpy(targets),
        "document_ids": torch.zeros(len(samples), length, dtype=torch.int64),
    }


def batch_lengths(task: Task, seq_len: int) -> list[int]:
    """The lengths that batches have, in tokens."""
    return [round(share * seq_len) for share in task.lengths]


class TaskUpdates(Dataset[Batch]):
    """The share of `rows` in update u, for any u."""

    def __init__(self, task: Task, seq_len: int, batch_size: int, seed: int, rows: range) -> None:
        self.task, self.batch_size, self.seed, self.rows = task, batch_size, seed, rows
        self.lengths = batch_lengths(task, seq_len)

    def __getitem__(self, update: int) -> Batch:
        length = self.lengths[Stream(self.seed, LENGTH_KEY, update).integer(len(self.lengths))]
        first = update * self.batch_size
        return stack([self.task.sample(self.seed, "train", length, first + row) for row in self.rows], length)


class TaskLoader(UpdateLoader):
    """The training batches of one rank; as `BatchLoader` for text."""

    def __init__(
        self,
        task: Task,
        seq_len: int,
        batch_size: int,
        seed: int,
        num_batches: int,
        rank: int = 0,
        world_size: int = 1,
        num_workers: int = 0,
    ) -> None:
        rows = rank_rows(batch_size, rank, world_size)
        super().__init__(TaskUpdates(task, seq_len, batch_size, seed, rows), num_batches, num_workers)


class TaskValLoader:
    """The first `count` validation samples at the training length, split over ranks; the same in every run.

    Rows beyond the last sample have no target, so that ranks hold equally many batches of equal shape.
    """

    def __init__(
        self, task: Task, seq_len: int, count: int, batch_size: int, rank: int, world_size: int, limit: int | None
    ) -> None:
        self.task, self.seq_len, self.count, self.batch_size = task, seq_len, count, batch_size
        self.rows = rank_rows(batch_size, rank, world_size)
        whole = -(-count // batch_size)
        self.num_batches = whole if limit is None else min(limit, whole)
        self._made: dict[int, Batch] = {}

    def __len__(self) -> int:
        return self.num_batches

    def __iter__(self) -> Iterator[Batch]:
        return (self._batch(i) for i in range(self.num_batches))

    def _batch(self, batch: int) -> Batch:
        if batch not in self._made:
            indices = [batch * self.batch_size + row for row in self.rows]
            samples = [self.task.sample(0, "val", self.seq_len, i) if i < self.count else EMPTY for i in indices]
            self._made[batch] = stack(samples, self.seq_len)
        return self._made[batch]


EMPTY = Sample(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), ())
