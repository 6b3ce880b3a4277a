"""Copying and reversing a string of random letters: addressing by position, or by the letters before."""

from __future__ import annotations

from dataclasses import dataclass

from minillm.data.tasks.base import register
from minillm.data.tasks.sized import LETTERS, Sized, between
from minillm.data.tasks.stream import Stream


@register("copy")
@dataclass(frozen=True)
class Copy(Sized):
    """``b a b = b a b ;``; size: letters. Letters repeat, so the letters before do not always say the next."""

    letters: int = 26

    @property
    def symbols(self) -> tuple[str, ...]:
        return LETTERS[: self.letters]

    def check(self, where: str) -> None:
        between(self.letters, 2, len(LETTERS), f"{where}.letters")

    def tokens(self, size: int) -> int:
        return 2 * size

    def guess(self) -> float:
        return 1 / self.letters

    def answer(self, string: list[str]) -> list[str]:
        """What is written for `string`."""
        return string

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        string = [LETTERS[i] for i in stream.integers(self.letters, size)]
        return string, self.answer(string)


@register("reverse")
@dataclass(frozen=True)
class Reverse(Copy):
    """``b a c = c a b ;``; size: letters."""

    def answer(self, string: list[str]) -> list[str]:
        return string[::-1]
