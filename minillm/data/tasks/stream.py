"""Random numbers of one sample: a stream that is a pure function of its key and of nothing else.

It is our own counter-based generator (splitmix64 over a hashed key), so that neither a library's new version nor the
order in which samples are made can change a task's data.

    stream = Stream(seed, TRAIN, update, row)
    stream.integers(32, 4)          # four numbers of 0..31
    stream.choose(32, 4)            # four different ones, in random order
"""

from __future__ import annotations

import numpy as np

from minillm.data.windows import mix

BLOCK = 256
"""Numbers made at once: one sample of a small task takes one or two blocks."""
_COUNTER = np.arange(BLOCK, dtype=np.uint64)
_32 = np.uint64(32)


class Stream:
    """Endless random numbers from whole-number keys, 0 <= key < 2**64."""

    def __init__(self, *key: int) -> None:
        state = np.zeros(1, dtype=np.uint64)
        for part in key:
            state = mix(state ^ np.uint64(part))
        self._state = state
        self._blocks = 0
        self._left = np.empty(0, dtype=np.uint64)

    def bits(self, count: int) -> np.ndarray:
        """The next `count` numbers of 64 random bits."""
        while len(self._left) < count:
            fresh = mix(self._state ^ mix(_COUNTER + np.uint64(self._blocks * BLOCK)))
            self._left = np.concatenate([self._left, fresh])
            self._blocks += 1
        taken, self._left = self._left[:count], self._left[count:]
        return taken

    def integers(self, high: int, count: int) -> np.ndarray:
        """`count` independent numbers of 0..high-1, (count,) int64; `high` is far below 2**32."""
        scaled = ((self.bits(count) >> _32) * np.uint64(high)) >> _32
        return scaled.astype(np.int64)

    def integer(self, high: int) -> int:
        """One number of 0..high-1."""
        return ((int(self.bits(1)[0]) >> 32) * high) >> 32

    def choose(self, high: int, count: int) -> np.ndarray:
        """`count` different numbers of 0..high-1 in random order, (count,) int64."""
        if count > high:
            raise ValueError(f"{count} different numbers below {high}.")
        return np.argsort(self.bits(high), kind="stable")[:count]

    def slots(self, free: int, count: int) -> np.ndarray:
        """Where `count` things stand among `free` others, rising: all arrangements are equally likely."""
        return np.sort(self.choose(free + count, count))
