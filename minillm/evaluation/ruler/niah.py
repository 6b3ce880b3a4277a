"""Needles in a haystack: eight tasks, which differ in haystack, number of needles, and kind of keys and values.

    The secret number of brave-otter is 4821937.        a needle, somewhere
    What is the secret number of brave-otter? The secret number of brave-otter is        the question

Keys are different from each other, and so are values: no distractor is the needle asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from minillm.data.tasks.stream import Stream
from minillm.evaluation.ruler.haystacks import noise, noise_words
from minillm.evaluation.ruler.task import (
    CANDIDATES,
    SMALL,
    Draft,
    Draws,
    Materials,
    Piece,
    Plan,
    RulerTask,
    Unfit,
    listed,
    others,
    spread,
)
from minillm.evaluation.ruler.words import PAIRS, key

Kind = Literal["words", "number", "uuid"]
CAP = 128
NUMBERS = 9_000_000
"""Of seven digits."""
MOST_NEEDLES = 50_000
"""Distractors in a haystack of needles, some two million tokens."""


class Names:
    """Different keys or values of one kind, in a random order, drawn as they are needed."""

    def __init__(self, kind: Kind, stream: Stream) -> None:
        self.kind, self._stream = kind, stream
        self._made: dict[str, None] = {}

    def first(self, count: int) -> list[str]:
        while len(self._made) < count:  # ends: far fewer are asked for than there are
            self._made.update(dict.fromkeys(self._draw(count - len(self._made))))
        return list(self._made)[:count]

    def _draw(self, count: int) -> list[str]:
        if self.kind == "words":
            return [key(int(n)) for n in self._stream.integers(PAIRS, count)]
        if self.kind == "number":
            return [str(1_000_000 + int(n)) for n in self._stream.integers(NUMBERS, count)]
        halves = [f"{int(n):016x}" for n in self._stream.bits(2 * count)]
        return [_uuid(a + b) for a, b in zip(halves[::2], halves[1::2], strict=True)]


def _uuid(digits: str) -> str:
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def needle(noun: str, name: str, value: str) -> str:
    """The sentence to be found."""
    return f"The secret {noun} of {name} is {value}."


@dataclass(frozen=True)
class Shape:
    """How the eight differ."""

    haystack: Literal["noise", "corpus", "needle"]
    keys: Kind = "words"
    values: Kind = "number"
    needles: int = 1
    """Keys with a needle among noise or corpus."""
    per_key: int = 1
    """Values of a key, each in a needle of its own."""
    asked: int = 1
    """Keys asked for."""

    @property
    def noun(self) -> str:
        return "number" if self.values == "number" else "code"


class NeedlePlan:
    """One sample of any of the eight."""

    least = 0

    def __init__(self, shape: Shape, materials: Materials, draws: Draws) -> None:
        if shape.haystack == "corpus" and (materials.corpus is None or not materials.corpus.sentences):
            raise Unfit("there is no text to hide needles in")
        self.shape, self._corpus, self._draws = shape, materials.corpus, draws
        self._names, self._values = Names(shape.keys, draws.stream("keys")), Names(shape.values, draws.stream("values"))
        self._count = shape.needles * shape.per_key
        names, values = self._names.first(shape.needles), self._values.first(self._count)
        self._needles = [(names[i // shape.per_key], value) for i, value in enumerate(values)]
        self._asked = names[: shape.asked]
        self.references = tuple(values[: shape.asked * shape.per_key])
        self.most = MOST_NEEDLES if shape.haystack == "needle" else None
        # Of several values of one key any may be given first; of several keys the first one is.
        self._gold = draws.stream("gold").integer(shape.per_key)
        depths = draws.stream("depths").integers(1 << 30, self._count) / float(1 << 30)
        depths[self._gold] = draws.even("depth")
        self._depths = [float(depth) for depth in depths]
        self._place = draws.stream("place").integer(1 << 30) / (1 << 30)

    def draft(self, units: int, padding: Sequence[str]) -> Draft:
        shape, noun = self.shape, self.shape.noun
        haystack, more = self._haystack(units)
        inserted = [
            (depth, Piece(needle(noun, name, value), i if i < len(self.references) else None))
            for i, (depth, (name, value)) in enumerate(zip(self._depths, self._needles, strict=True))
        ]
        sentences = spread([Piece(s) for s in haystack], inserted)
        pieces: list[Piece] = []
        for i, piece in enumerate(sentences):
            pieces += [piece] if i == 0 else [Piece(" "), piece]
        if padding:
            pieces.append(Piece(" " + " ".join(padding)))
        many = len(self.references) > 1
        what = f"secret {noun}{'s' if many else ''} of {listed(self._asked)}"
        verb = "are" if many else "is"
        present = [value for i, (_, value) in enumerate(self._needles) if i >= len(self.references)] + more
        asked = self.references
        if shape.asked > 1:  # the values of the other keys are wrong in the first place
            present, asked = [*self.references[shape.per_key :], *present], self.references[: shape.per_key]
        absent = Names(shape.values, self._draws.stream("absent")).first(2 * CANDIDATES)
        absent = [value for value in absent if value not in {v for _, v in self._needles}]
        return Draft(
            f"Remember what this text says of every secret {noun}.\n\n",
            pieces,
            f"\n\nWhat {verb} the {what}? The {what} {verb}",
            self._gold,
            others(present, absent, asked, self._draws.stream("wrong")),
        )

    def _haystack(self, units: int) -> tuple[list[str], list[str]]:
        """Sentences, and the values that stand in them."""
        if self.shape.haystack == "noise":
            return noise(units), []
        if self.shape.haystack == "corpus":
            assert self._corpus is not None
            return self._corpus.from_place(self._place, units), []
        names = self._names.first(self.shape.needles + units)[self.shape.needles :]
        values = self._values.first(self._count + units)[self._count :]
        return [needle(self.shape.noun, n, v) for n, v in zip(names, values, strict=True)], values

    def filling(self) -> list[str]:
        if self.shape.haystack == "corpus":
            assert self._corpus is not None
            return [*" ".join(self._corpus.from_place((self._place + 0.5) % 1, 20)).split()[:200], *SMALL]
        return [*noise_words(), *SMALL]


SHAPES = {
    "niah_single_1": Shape("noise"),
    "niah_single_2": Shape("corpus"),
    "niah_single_3": Shape("corpus", values="uuid"),
    "niah_multikey_1": Shape("corpus", needles=4),
    "niah_multikey_2": Shape("needle"),
    "niah_multikey_3": Shape("needle", keys="uuid", values="uuid"),
    "niah_multivalue": Shape("corpus", per_key=4),
    "niah_multiquery": Shape("corpus", needles=4, asked=4),
}


def _task(name: str, shape: Shape) -> RulerTask:
    def plan(materials: Materials, draws: Draws, attempt: int) -> Plan:
        return NeedlePlan(shape, materials, draws)

    return RulerTask(name, CAP, plan)


NIAH = [_task(name, shape) for name, shape in SHAPES.items()]
