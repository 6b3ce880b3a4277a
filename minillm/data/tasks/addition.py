"""Adding two numbers digit by digit, with or without the carries written out."""

from __future__ import annotations

from dataclasses import dataclass

from minillm.data.tasks.base import register
from minillm.data.tasks.sized import DIGITS, Sized
from minillm.data.tasks.stream import Stream


@register("addition")
@dataclass(frozen=True)
class Addition(Sized):
    """``4 7 + 8 5 = 1 3 2 ;``; size: digits of each number.

    With a scratchpad the answer begins with each column from the right, its digits, the carry into it and the digit
    written: ``7 5 0 2 , 4 8 1 3 , 1 3 2 ;``.
    """

    scratchpad: bool = False

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*DIGITS, "+", ",")

    def tokens(self, size: int) -> int:
        return 2 * size + 1 + size + 1 + (5 * size if self.scratchpad else 0)

    def guess(self) -> float:
        return 1 / 10

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        first, second = (_number(stream, size) for _ in range(2))
        question = [*map(str, first), "+", *map(str, second)]
        total = list(str(int("".join(map(str, first))) + int("".join(map(str, second)))))
        if not self.scratchpad:
            return question, total
        columns: list[str] = []
        carry = 0
        for a, b in zip(reversed(first), reversed(second), strict=True):
            columns += [str(a), str(b), str(carry), str((a + b + carry) % 10), ","]
            carry = (a + b + carry) // 10
        return question, columns + total


def _number(stream: Stream, size: int) -> list[int]:
    """Digits of a number of that many digits: the first is 0 in numbers of one digit only."""
    digits = [int(d) for d in stream.integers(10, size)]
    if size > 1:
        digits[0] = 1 + stream.integer(9)
    return digits
