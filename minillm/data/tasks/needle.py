"""Needles in noise: key-value pairs scattered over meaningless tokens, each asked for once at the end.

    <s> n7 n0 k4 v9 v1 n3 ... k8 v2 v2 n5 ... ? k8 v2 v2 ? k4 v9 v1

The model is trained on the value tokens of the questions alone. Keys are never noise, values repeat within and between
needles, places, order of asking and, in training, the number of needles are random, so that neither the place of an
answer nor the length of a sample says what it is.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minillm.data.tasks.base import Answer, Sample, Task, register, solved
from minillm.data.tasks.stream import Stream
from minillm.errors import ConfigError


@register("needle")
@dataclass(frozen=True)
class Needle(Task):
    """Recall of a value of several tokens by its key."""

    keys: int = 32
    values: int = 32
    noise: int = 62
    value_tokens: int = 2
    needles: int = 4
    """In validation and test."""
    train_needles: tuple[int, ...] = (1, 2, 3, 4, 5, 6)
    """In training: one of these, each as likely, as far as they fit."""

    @property
    def words(self) -> tuple[str, ...]:
        kinds = (("k", self.keys), ("v", self.values), ("n", self.noise))
        return ("?", *(f"{kind}{i}" for kind, count in kinds for i in range(count)))

    def check(self, where: str) -> None:
        for field in ("keys", "values", "noise", "value_tokens", "needles"):
            if getattr(self, field) < 1:
                raise ConfigError(f"{where}.{field} = {getattr(self, field)}: must be 1 or more.")
        if not self.train_needles or min(self.train_needles) < 1:
            raise ConfigError(f"{where}.train_needles = {list(self.train_needles)}: must be counts of 1 or more.")
        most = max(*self.train_needles, self.needles)
        if most > self.keys:
            raise ConfigError(f"{where}.keys = {self.keys}: must be at least the most needles, {most}.")

    def shortest(self) -> int:
        return max(self._tokens(self.needles), self._tokens(min(self.train_needles)))

    def _tokens(self, needles: int) -> int:
        return needles * (3 + 2 * self.value_tokens)

    def chance(self, length: int) -> float | None:
        """Without reading a single key: each value is asked for once, so the first token of one is guessed among those
        not asked for yet, and the tokens behind it follow from their neighbour. A model that does this stays here."""
        first = sum(1 / left for left in range(1, self.needles + 1)) / self.needles
        return (first + self.value_tokens - 1) / self.value_tokens

    def make(self, stream: Stream, length: int, training: bool) -> Sample:
        needles, width = self.needles, 1 + self.value_tokens
        if training:
            fitting = [count for count in self.train_needles if self._tokens(count) <= length]
            needles = fitting[stream.integer(len(fitting))]
        body = length - needles * (width + 1)  # what the questions leave beside the marker
        keys = 2 + stream.choose(self.keys, needles)
        values = 2 + self.keys + stream.integers(self.values, needles * self.value_tokens)
        pairs = np.column_stack([keys, values.reshape(needles, self.value_tokens)])
        tokens = np.empty(length + 1, dtype=np.int64)
        tokens[0] = 0
        noise = stream.integers(self.noise, body)  # drawn for all places, then covered by the needles
        tokens[1 : 1 + body] = 2 + self.keys + self.values + noise
        starts = 1 + stream.slots(body - needles * width, needles) + np.arange(needles) * (width - 1)
        tokens[starts[:, None] + np.arange(width)] = pairs
        asked = stream.choose(needles, needles)
        questions = tokens[1 + body :].reshape(needles, width + 1)
        questions[:, 0], questions[:, 1:] = 1, pairs[asked]
        answers = [
            Answer(at=2 + body + i * (width + 1), length=self.value_tokens, evidence=int(starts[needle]) + 1)
            for i, needle in enumerate(asked)
        ]
        return solved(tokens, answers)
