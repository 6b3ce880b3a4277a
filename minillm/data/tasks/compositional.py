"""Two compositional languages in the manner of SCAN and PCFG SET. They are compact and are not those data sets."""

from __future__ import annotations

from dataclasses import dataclass

from minillm.data.tasks.base import register
from minillm.data.tasks.sized import LETTERS, Sized, between
from minillm.data.tasks.stream import Stream

VERBS = ("walk", "run", "jump", "look")
DIRECTIONS = ("", "left", "right")
REPEATS = ("", "twice", "thrice")
JOINTS = ("and", "after")


@register("scan_like")
@dataclass(frozen=True)
class ScanLike(Sized):
    """``jump left twice after walk = WALK LEFT JUMP LEFT JUMP ;``; size: clauses.

    A clause is a verb, perhaps with a direction and a number of times. Clauses are read from left to right: "A and B"
    is A B, "A after B" is B A, where A is all that stands before. Of SCAN (Lake and Baroni, arXiv 1711.00350) it lacks
    "around", "opposite" and "turn"; of SCAN's two clauses it makes any number.
    """

    @property
    def symbols(self) -> tuple[str, ...]:
        said = (*VERBS, *DIRECTIONS[1:], *REPEATS[1:], *JOINTS)
        return (*said, *(word.upper() for word in (*VERBS, *DIRECTIONS[1:])))

    def tokens(self, size: int) -> int:
        return 4 * size - 1 + 6 * size

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        drawn = [stream.integers(n, size) for n in (len(VERBS), len(DIRECTIONS), len(REPEATS), len(JOINTS))]
        question: list[str] = []
        actions: list[str] = []
        for i, (verb, direction, repeat, joint) in enumerate(zip(*drawn, strict=True)):
            clause = [word for word in (VERBS[verb], DIRECTIONS[direction], REPEATS[repeat]) if word]
            done = [word.upper() for word in (DIRECTIONS[direction], VERBS[verb]) if word] * (int(repeat) + 1)
            question += [JOINTS[joint], *clause] if i else clause
            actions = done + actions if i and JOINTS[joint] == "after" else actions + done
        return question, actions


FUNCTIONS = ("copy", "reverse", "shift", "swap", "echo")


@register("pcfg_like")
@dataclass(frozen=True)
class PcfgLike(Sized):
    """``reverse echo ( a b c = c c b a ;``; size: functions, the innermost applied first.

    shift moves the first letter to the end, swap exchanges first and last, echo says the last once more. PCFG SET
    (Hupkes et al., arXiv 1908.08351) has functions of two strings too.
    """

    longest: int = 6
    """Letters of the innermost string, at most; at least two."""

    @property
    def symbols(self) -> tuple[str, ...]:
        return (*LETTERS, *FUNCTIONS, "(")

    def check(self, where: str) -> None:
        between(self.longest, 2, 100, f"{where}.longest")

    def tokens(self, size: int) -> int:
        return size + 1 + self.longest + self.longest + size

    def guess(self) -> float:
        return 1 / len(LETTERS)

    def problem(self, stream: Stream, size: int) -> tuple[list[str], list[str]]:
        functions = [FUNCTIONS[i] for i in stream.integers(len(FUNCTIONS), size)]
        letters = [LETTERS[i] for i in stream.integers(len(LETTERS), 2 + stream.integer(self.longest - 1))]
        string = letters
        for function in reversed(functions):
            string = _applied(function, string)
        return [*functions, "(", *letters], string


def _applied(function: str, string: list[str]) -> list[str]:
    if function == "reverse":
        return string[::-1]
    if function == "shift":
        return [*string[1:], string[0]]
    if function == "swap":
        return [string[-1], *string[1:-1], string[0]]
    return [*string, string[-1]] if function == "echo" else string
