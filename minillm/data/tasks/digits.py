"""Sorting numbers, and questions with one digit for an answer: sums, parity, polynomials."""

from __future__ import annotations

from dataclasses import dataclass

from minillm.data.tasks.base import register
from minillm.data.tasks.sized import DIGITS, Sized, between
from minillm.data.tasks.stream import Stream


@register("sorting")
@dataclass(frozen=True)
class Sorting(Sized):
    """``3 7 , 0 4 , 1 2 = 0 4 , 1 2 , 3 7 ;``; size: numbers, which may be equal."""

    digits: int = 2
    """Of each number; leading zeros are written."""

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*DIGITS, ",")

    def check(self, where: str) -> None:
        between(self.digits, 1, 6, f"{where}.digits")

    def tokens(self, size: int) -> int:
        return 2 * (size * (self.digits + 1) - 1)

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        numbers = [int(i) for i in stream.integers(10**self.digits, size)]
        return self._written(numbers), self._written(sorted(numbers))

    def _written(self, numbers: list[int]) -> list[str]:
        text = ",".join(f"{number:0{self.digits}}" for number in numbers)
        return list(text)


@dataclass(frozen=True)
class OneDigit(Sized):
    """The answer is a single digit."""

    @property
    def symbols(self) -> tuple[str, ...]:
        return DIGITS

    @property
    def ends(self) -> bool:
        return False

    def guess(self) -> float:
        return 1 / 10


@register("summation")
@dataclass(frozen=True)
class Summation(OneDigit):
    """``4 9 2 = 5``: the sum of digits modulo 10; size: digits."""

    def tokens(self, size: int) -> int:
        return size + 1

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        digits = stream.integers(10, size)
        return [str(d) for d in digits], [str(int(digits.sum()) % 10)]


@register("parity")
@dataclass(frozen=True)
class Parity(OneDigit):
    """``1 0 1 1 = 1``: whether the number of ones is odd; size: bits."""

    @property
    def symbols(self) -> tuple[str, ...]:
        return ("0", "1")

    def guess(self) -> float:
        return 1 / 2

    def tokens(self, size: int) -> int:
        return size + 1

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        bits = stream.integers(2, size)
        return [str(b) for b in bits], [str(int(bits.sum()) % 2)]


@register("polynomial")
@dataclass(frozen=True)
class Polynomial(OneDigit):
    """``x 3 : 2 ^ 2 + 5 ^ 1 + 4 ^ 0 = 7``: the value of 2x^2 + 5x + 4 at x = 3 modulo 10; size: terms.

    Powers are drawn from 0 to 3 and come in any order, and again. The source asks for the whole value.
    """

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*DIGITS, "x", ":", "^", "+")

    def tokens(self, size: int) -> int:
        return 3 + 4 * size - 1 + 1

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        x = stream.integer(10)
        factors, powers = stream.integers(10, size), stream.integers(4, size)
        terms = [[str(f), "^", str(p), "+"] for f, p in zip(factors, powers, strict=True)]
        written = [word for term in terms for word in term][:-1]
        value = sum(int(f) * x ** int(p) for f, p in zip(factors, powers, strict=True)) % 10
        return ["x", str(x), ":", *written], [str(value)]
