"""Multi-query associative recall: more pairs the longer the text, each asked for once further on.

    <s> n3 k7 v2 n1 n1 k5 v9 n0 ... k5 v9 n4 k7 v2

Source: Arora et al., arXiv 2312.04927 (HazyResearch/zoology). There the pairs stand packed at the beginning; here they
lie scattered over the first half and are asked for, scattered, in the second. Values are single tokens, so nothing but
the key says where one is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillm.data.tasks.base import Answer, Sample, Task, register, solved
from minillm.data.tasks.stream import Stream
from minillm.errors import ConfigError


@register("mqar")
@dataclass(frozen=True)
class Mqar(Task):
    """Recall under a load that grows with the length."""

    keys: int = 128
    values: int = 128
    noise: int = 62
    tokens_per_pair: int = 16
    """A sample of length n has n / tokens_per_pair pairs; in training any number from 1 to that."""

    @property
    def words(self) -> tuple[str, ...]:
        kinds = (("k", self.keys), ("v", self.values), ("n", self.noise))
        return tuple(f"{kind}{i}" for kind, count in kinds for i in range(count))

    def check(self, where: str) -> None:
        for field in ("keys", "values", "noise"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{where}.{field} = {getattr(self, field)}: must be 1 or more.")
        if self.tokens_per_pair < 5:
            raise ConfigError(
                f"{where}.tokens_per_pair = {self.tokens_per_pair}: must be 5 or more, as a pair is written twice and "
                "asked for among other tokens."
            )

    def shortest(self) -> int:
        return max(6, self.tokens_per_pair)

    def pairs(self, length: int) -> int:
        """Pairs of a validation or test sample; keys may be too few for more."""
        return min(self.keys, max(1, length // self.tokens_per_pair))

    def chance(self, length: int) -> float | None:
        """Without reading a key: guessing among the values shown that were not asked for yet."""
        pairs = self.pairs(length)
        return sum(1 / left for left in range(1, pairs + 1)) / pairs

    def make(self, stream: Stream, length: int, training: bool) -> Sample:
        pairs = self.pairs(length)
        if training:
            pairs = 1 + stream.integer(pairs)
        keys = 1 + stream.choose(self.keys, pairs)
        values = 1 + self.keys + stream.integers(self.values, pairs)
        tokens = 1 + self.keys + self.values + stream.integers(self.noise, length + 1)
        tokens[0] = 0
        half = length // 2
        shown, asked = np.arange(pairs), stream.choose(pairs, pairs)
        placed = []
        for first, room, order in ((1, half - 1, shown), (half, length + 1 - half, asked)):
            starts = first + stream.slots(room - 2 * pairs, pairs) + np.arange(pairs)
            tokens[starts], tokens[starts + 1] = keys[order], values[order]
            placed.append(starts)
        return solved(
            tokens, [Answer(int(at), 1, int(placed[0][pair]) + 1) for at, pair in zip(placed[1], asked, strict=True)]
        )
