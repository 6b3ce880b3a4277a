"""Samples stacked into batches: rows of one length, filled up on the right.

Update u of a run is a pure function of (seed, u, row), as for text: ranks, workers and restarts change nothing. Its
length is drawn once for all rows from `task.lengths`. What follows a sample in its row is token 0 without a target:
the causal mask hides it from the sample, so no document mask is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch.utils.data import Dataset

from minillm.data.loader import Batch, HeldOutLoader, UpdateLoader, rank_rows
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


class TaskValLoader(HeldOutLoader):
    """The first `count` validation samples at the training length, the same in every run. Rows beyond the last sample
    have no target. Batches are kept: they are few, and making them anew takes longer than reading them."""

    def __init__(
        self, task: Task, seq_len: int, count: int, batch_size: int, rank: int, world_size: int, limit: int | None
    ) -> None:
        super().__init__(count, batch_size, rank, world_size, limit)
        self.task, self.seq_len = task, seq_len
        self._made: dict[int, Batch] = {}

    def batch(self, number: int) -> Batch:
        if number not in self._made:
            items = self.items(number)
            samples = [EMPTY if i is None else self.task.sample(0, "val", self.seq_len, i) for i in items]
            self._made[number] = stack(samples, self.seq_len)
        return self._made[number]


EMPTY = Sample(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), ())
