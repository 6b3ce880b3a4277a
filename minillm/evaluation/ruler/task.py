"""What a task of the suite is: a plan of one sample, which can be written with more or less haystack.

    plan = TASKS["niah_single_1"].plan(materials, seed=0, length=1024, index=3)
    plan.references                          # ("4821937",)
    draft = plan.draft(units=40, padding=["The", "hills"])

What is asked and answered is drawn once; `draft` only spreads it among so much haystack. All numbers come from streams
whose key is (seed, task, length, index) and a purpose: a sample does not depend on which others were made.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from minillm.data.tasks.stream import Stream

if TYPE_CHECKING:
    from minillm.evaluation.ruler.haystacks import Corpus
    from minillm.evaluation.ruler.qa import Questions

CANDIDATES = 10
"""In the likelihood form: the gold answer and nine of its kind."""
SMALL = ("a", "I", ".")
"""What fills the last token or two of a prompt."""


class Unfit(Exception):
    """A sample cannot be made at this length, or at all; the message says why."""


class Piece(NamedTuple):
    """A part of the text. `mark` is the number of the reference that stands in it, None for haystack."""

    text: str
    mark: int | None = None


@dataclass(frozen=True)
class Draft:
    """A sample as text."""

    instruction: str
    """What to do, and a worked example where the task has one."""
    pieces: list[Piece]
    """The haystack, with what is hidden in it, in order."""
    question: str
    """The question and the beginning of its answer; the answer goes on with a space."""
    gold: int
    """Which reference the likelihood form asks for."""
    wrong: tuple[str, ...]
    """CANDIDATES - 1 other answers of the same kind: first those that stand in the text and are not asked for."""


class Plan(Protocol):
    """One sample, of any size."""

    references: tuple[str, ...]
    """All that is asked for, in the order in which the question asks."""
    least: int
    """Fewest units of haystack."""
    most: int | None
    """Most units, None for any number."""

    def draft(self, units: int, padding: Sequence[str]) -> Draft:
        """The sample with `units` units of haystack (sentences, words, paragraphs) and `padding` at its end."""
        ...

    def filling(self) -> list[str]:
        """Words that `padding` is taken from, in order."""
        ...


@dataclass(frozen=True)
class Materials:
    """What tasks are made of besides their own words; None for what is not there."""

    corpus: Corpus | None = None
    questions: dict[str, Questions] = field(default_factory=dict)
    """By task: qa_1, qa_2."""


@dataclass(frozen=True)
class Draws:
    """The streams of one sample."""

    seed: int
    task: str
    length: int
    index: int

    def stream(self, purpose: str) -> Stream:
        """Random numbers of their own for each purpose."""
        words = (zlib.crc32(self.task.encode()), zlib.crc32(purpose.encode()))
        return Stream(self.seed, words[0], self.length, self.index, words[1])

    def even(self, purpose: str) -> float:
        """A number of [0, 1) that is spread evenly over the samples: steps of the golden ratio from a random start."""
        start = Stream(self.seed, zlib.crc32(self.task.encode()), self.length, zlib.crc32(purpose.encode()))
        return (start.integer(1 << 30) / (1 << 30) + self.index * 0.6180339887498949) % 1.0


@dataclass(frozen=True)
class RulerTask:
    """One of the 13."""

    name: str
    cap: int
    """RULER's number of generated tokens."""
    plan: Callable[[Materials, Draws, int], Plan]
    """Of (materials, draws, attempt); raises Unfit for materials that are missing."""
    any_reference: bool = False
    """Scored by `string_match_part`."""
    attempts: int = 1
    """Plans tried for one sample: where the first does not fit the length, another may."""


def listed(words: Sequence[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def spread(units: Sequence[Piece], inserted: Sequence[tuple[float, Piece]]) -> list[Piece]:
    """`units` with pieces inserted between them: (depth of 0 to below 1, piece)."""
    out = list(units)
    for depth, piece in sorted(inserted, key=lambda pair: pair[0], reverse=True):
        out.insert(int(depth * (len(units) + 1)), piece)
    return out


def others(present: Sequence[str], absent: Sequence[str], references: Sequence[str], stream: Stream) -> tuple[str, ...]:
    """Wrong answers, those of the text first: as many as the likelihood form takes, none of them a reference."""
    asked = {reference.casefold() for reference in references}
    inside = [w for w in dict.fromkeys(present) if w.casefold() not in asked]
    inside = [inside[i] for i in stream.choose(len(inside), min(len(inside), CANDIDATES - 1))]
    outside = [w for w in dict.fromkeys(absent) if w.casefold() not in asked and w not in inside]
    chosen = [*inside, *outside][: CANDIDATES - 1]
    if len(chosen) < CANDIDATES - 1:
        raise Unfit(f"there are {len(chosen)} other answers of this kind, and {CANDIDATES - 1} are needed")
    return tuple(chosen)
