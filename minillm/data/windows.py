"""Packing: the token stream cut into training windows, and the order in which training reads them.

Window i holds the inputs stream[i*T : (i+1)*T] and, as targets, the same tokens one further. Neighbours share one
token (a target here, an input there), so every token but the first of the stream is a target exactly once.
The last window is filled up with padding: target -100, document -1.

    windows = Windows(prepared.train, seq_len=256, document_mask=True)
    window = windows.window(3)
    order(seed=1, epoch=0, count=len(windows))[0]        # the window that training reads first
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Int64
from torch import Tensor

from minillm.data.shards import TokenShards
from minillm.errors import ConfigError

IGNORED = -100
"""Target of a token that carries no loss."""
PADDING = -1
"""Document id of a token that nothing may see."""


class Window(NamedTuple):
    """One training sequence."""

    tokens: Int64[Tensor, "T"]
    targets: Int64[Tensor, "T"]
    document_ids: Int64[Tensor, "T"]


class Windows:
    """All windows of a split. Cheap: it holds a memory-mapped stream and two numbers."""

    def __init__(self, shards: TokenShards, seq_len: int, document_mask: bool = True) -> None:
        """`document_mask=False` gives all real tokens document 0, so that packed documents see each other."""
        if seq_len < 1:
            raise ConfigError(f"data.seq_len: {seq_len} is not allowed. Allowed: 1 or more.")
        self.shards = shards
        self.seq_len = seq_len
        self.document_mask = document_mask

    def __len__(self) -> int:
        return max(0, -(-(self.shards.num_tokens - 1) // self.seq_len))

    def window(self, index: int) -> Window:
        """Window `index`, from 0 to len - 1."""
        if not 0 <= index < len(self):
            raise IndexError(f"Window {index} of {len(self)}.")
        start = index * self.seq_len
        piece = np.asarray(self.shards.tokens[start : start + self.seq_len + 1], dtype=np.int64)
        real = len(piece) - 1
        tokens = np.zeros(self.seq_len, dtype=np.int64)  # padding is token 0: any valid id will do
        targets = np.full(self.seq_len, IGNORED, dtype=np.int64)
        documents = np.full(self.seq_len, PADDING, dtype=np.int64)
        tokens[:real], targets[:real] = piece[:-1], piece[1:]
        documents[:real] = self.shards.document_ids(start, start + real) if self.document_mask else 0
        return Window(torch.from_numpy(tokens), torch.from_numpy(targets), torch.from_numpy(documents))

    def padding(self) -> Window:
        """A window of nothing but padding: what fills up the last batch of a validation."""
        size = (self.seq_len,)
        return Window(
            torch.zeros(size, dtype=torch.int64),
            torch.full(size, IGNORED, dtype=torch.int64),
            torch.full(size, PADDING, dtype=torch.int64),
        )


def mix(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: a bijection of the 64-bit numbers that scatters neighbours."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=4)
def order(seed: int, epoch: int, count: int) -> np.ndarray:
    """The permutation of 0..count-1 in which epoch `epoch` reads the windows; read-only int64 (count,).

    A pure function of its arguments and nothing else: indices sorted by a hash of (seed, epoch, index). It is our
    own hash, not a random generator's shuffle, so that a new version of a library cannot change a run's data.
    """
    with np.errstate(over="ignore"):
        key = mix(np.array([seed % 2**64], dtype=np.uint64))
        key = mix(key ^ np.array([epoch], dtype=np.uint64))
        # mix is a bijection, so no two indices tie and the sort needs no rule for ties.
        permutation = np.argsort(mix(key ^ mix(np.arange(count, dtype=np.uint64))), kind="stable")
    permutation.flags.writeable = False
    return permutation
