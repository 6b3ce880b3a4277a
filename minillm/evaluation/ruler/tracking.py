"""Variable tracking (`vt`): a chain of assignments among noise, of which all variables are asked for.

    VAR QWERT = 12345. ... VAR ASDFG = VAR QWERT. ...        Which variables are 12345?

As in RULER one chain of four hops, and one worked example in front, which is drawn anew for each sample.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

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
    listed,
    others,
    spread,
)

VARIABLES = 5
LETTERS = 5
VALUES = 90_000
"""Of five digits."""


class ChainPlan:
    """One sample."""

    least = 0
    most: int | None = None

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        count = 2 * VARIABLES + CANDIDATES
        names = different_words(draws.stream("names"), count, LETTERS)
        self.references = tuple(names[:VARIABLES])
        self._example, self._absent = names[VARIABLES : 2 * VARIABLES], names[2 * VARIABLES :]
        values = draws.stream("values")
        first = values.integer(VALUES)
        second = (first + 1 + values.integer(VALUES - 1)) % VALUES
        self._value, self._other = first + 10_000, second + 10_000
        self._gold = draws.stream("gold").integer(VARIABLES)
        # Assignments stand in their order, at random places.
        depths = draws.stream("depths").integers(1 << 30, VARIABLES) / float(1 << 30)
        self._depths = sorted(float(depth) for depth in depths)

    def draft(self, units: int, padding: Sequence[str]) -> Draft:
        lines = chain(self.references, self._value)
        inserted = [(depth, Piece(line, i)) for i, (depth, line) in enumerate(zip(self._depths, lines, strict=True))]
        in_order = spread([Piece(s) for s in noise(units)], inserted)
        example = " ".join(chain(self._example, self._other))
        instruction = (
            "Find all variables that have the value asked for, directly or through another variable.\n\n"
            f"{example}\n{ask(self._other)} {listed(self._example)}.\n\n"
        )
        pieces: list[Piece] = []
        for i, piece in enumerate(in_order):
            pieces += [piece] if i == 0 else [Piece(" "), piece]
        if padding:
            pieces.append(Piece(" " + " ".join(padding)))
        wrong = others(self._example, self._absent, self.references, self._draws.stream("wrong"))
        return Draft(instruction, pieces, f"\n{ask(self._value)}", self._gold, wrong)

    def filling(self) -> list[str]:
        return [*noise_words(), *SMALL]


def chain(names: Sequence[str], value: int) -> list[str]:
    """The assignments."""
    return [f"VAR {names[0]} = {value}.", *(f"VAR {b} = VAR {a}." for a, b in pairwise(names))]


def ask(value: int) -> str:
    """The question and the beginning of its answer."""
    return f"Which {VARIABLES} variables have the value {value}? They are"


def different_words(stream: Stream, count: int, letters: int) -> list[str]:
    """`count` different words of capital letters."""
    made: dict[str, None] = {}
    while len(made) < count:  # ends: there are millions
        drawn = stream.integers(26, letters * (count - len(made))).reshape(-1, letters) + ord("A")
        made.update(dict.fromkeys("".join(map(chr, row)) for row in drawn))
    return list(made)


def _plan(materials: Materials, draws: Draws, attempt: int) -> Plan:
    return ChainPlan(draws)


VT = RulerTask("vt", 30, _plan)
