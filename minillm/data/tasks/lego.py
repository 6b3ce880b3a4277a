"""LEGO: a chain of signed assignments, of which one variable's value is asked."""

from __future__ import annotations

from dataclasses import dataclass

from minillm.data.tasks.base import register
from minillm.data.tasks.sized import LETTERS, Sized
from minillm.data.tasks.stream import Stream

NAMES = len(LETTERS) ** 2


@register("lego")
@dataclass(frozen=True)
class Lego(Sized):
    """``a q := + 1 , x b := - a q , ? x b = -``; size: clauses.

    Each clause takes the variable before it in the chain, as it is or negated; any of them may be asked. Names are two
    letters, so that long chains have enough of them: at most 676 clauses.
    """

    shuffled: bool = False
    """Clauses in random order rather than in the order of the chain."""

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*LETTERS, ":=", "+", "-", "1", ",", "?")

    @property
    def ends(self) -> bool:
        return False

    def guess(self) -> float:
        return 1 / 2

    def tokens(self, size: int) -> int:
        return 7 * size - 1 + 3 + 1

    def largest(self, length: int) -> int:
        return min(NAMES, super().largest(length))

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        chosen = stream.choose(NAMES, size)
        names = [[LETTERS[i // len(LETTERS)], LETTERS[i % len(LETTERS)]] for i in chosen]
        negated = stream.integers(2, size)
        clauses, before, sign, signs = [], ["1"], 0, []
        for name, flip in zip(names, negated, strict=True):
            clauses.append([*name, ":=", "+-"[flip], *before, ","])
            sign ^= int(flip)
            signs.append(sign)
            before = name
        asked = stream.integer(size)
        order = stream.choose(size, size) if self.shuffled else range(size)
        said = [word for i in order for word in clauses[i]]
        return [*said, "?", *names[asked]], ["+-"[signs[asked]]]
