"""Tasks whose problems have a size: so many letters, digits, terms or clauses. What a length means for them.

    <s> question = answer ;          or, where the answer is a single token, without the ;

A problem of size n takes at most `tokens(n)` inputs. In training, sizes are uniform from 1 to the largest that fits
the batch's length; validation and test use that largest size, so that 2x the training length is about twice its size.
Sizes within a batch differ, so one batch length is enough, where recall tasks mix several.

Source of the tasks: Kazemnejad et al., arXiv 2305.19466 (McGill-NLP/length-generalization). Ours are made of words
between spaces, one token each, and say where they are simpler.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from minillm.data.tasks.base import Answer, Sample, Task, solved
from minillm.data.tasks.stream import Stream
from minillm.errors import ConfigError

LETTERS = tuple("abcdefghijklmnopqrstuvwxyz")
DIGITS = tuple("0123456789")
EQUALS, END = "=", ";"


@dataclass(frozen=True)
class Sized(Task):
    """A task with `symbols`, `tokens`, `problem`; the rest follows."""

    lengths: tuple[float, ...] = (1.0,)
    """Each batch has one of these lengths, in shares of data.seq_len; sizes vary within it."""

    @property
    def symbols(self) -> tuple[str, ...]:
        """The words of questions and answers, but for `=` and `;`."""
        raise NotImplementedError

    @property
    def ends(self) -> bool:
        """Answers of several tokens, of which the last is `;`."""
        return True

    def tokens(self, size: int) -> int:
        """The most words in question and answer of a problem of that size."""
        raise NotImplementedError

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        """Question and answer in words."""
        raise NotImplementedError

    def guess(self) -> float | None:
        """Share of answer words that a blind guess gets right, the closing `;` aside."""
        return None

    @property
    def words(self) -> tuple[str, ...]:
        return (EQUALS, END, *self.symbols)

    def shortest(self) -> int:
        return self._inputs(1)

    def _inputs(self, size: int) -> int:
        # The marker and `=` come on top, and `;` where there is one; the last token is a target only.
        return self.tokens(size) + 1 + self.ends

    def largest(self, length: int) -> int:
        """The largest size of which every problem fits into `length` inputs."""
        low, high = 1, length
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self._inputs(middle) <= length else (low, middle - 1)
        return low

    def chance(self, length: int) -> float | None:
        return self.guess()

    def make(self, stream: Stream, length: int, training: bool) -> Sample:
        size = self.largest(length)
        if training:
            size = 1 + stream.integer(size)
        question, answer = self.problem(stream, size)
        ending = [END] if self.ends else []
        ids = index(self.vocabulary)
        said = [ids[word] for word in (*question, EQUALS, *answer, *ending)]
        return solved([0, *said], [Answer(1 + len(question), len(answer) + len(ending), None)])


@lru_cache(maxsize=32)
def index(vocabulary: tuple[str, ...]) -> dict[str, int]:
    """Ids by word."""
    return {word: i for i, word in enumerate(vocabulary)}


def between(value: int, low: int, high: int, where: str) -> None:
    """Raise ConfigError unless low <= value <= high."""
    if not low <= value <= high:
        raise ConfigError(f"{where} = {value}: must be from {low} to {high}.")
