"""Words to be counted: the ten common ones of a list (`cwe`), the three most frequent of a coded text (`fwe`).

In both the order is drawn anew for each sample; a generator that shuffles every sample alike puts the answers at the
same places in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.evaluation.ruler.task import (
    CANDIDATES,
    Draft,
    Draws,
    Materials,
    Piece,
    Plan,
    RulerTask,
    listed,
    others,
)
from minillm.evaluation.ruler.tracking import different_words
from minillm.evaluation.ruler.words import COUNTED

COMMON = 10
RATIO = 10
"""A common word stands so many times as often as another, as 30 times to 3 in RULER."""
EXAMPLE = 3
"""Common words of the worked example, and as many others."""


class CommonWords:
    """One sample of `cwe`. A unit is one place of an uncommon word.

    Up to as many units as the table has words each of these stands once; then they come again, and the common words are
    always ten times as many as they are on the average.
    """

    least = CANDIDATES
    most: int | None

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        order = draws.stream("words").choose(len(COUNTED), len(COUNTED))
        words = [COUNTED[i] for i in order]
        self.references = tuple(words[:COMMON])
        self._example = words[COMMON : COMMON + 2 * EXAMPLE]
        self._others = words[COMMON + 2 * EXAMPLE :]
        self._gold = draws.stream("gold").integer(COMMON)
        self.most = 1000 * len(self._others)

    def draft(self, units: int, padding: Sequence[str]) -> Draft:
        distinct = min(units, len(self._others))
        once = self._others[:distinct]
        items = [w for w in self.references for _ in range(RATIO * units // distinct)]
        items += [once[i % distinct] for i in range(units)] + list(padding)
        numbered = _numbered(items, self._draws, "order")
        worked = [w for w in self._example[:EXAMPLE] for _ in range(3)] + self._example[EXAMPLE:]
        instruction = (
            f"Find the most common words of a numbered list.\n\n{_numbered(worked, self._draws, 'example')}\n"
            f"{ask_common(EXAMPLE)} {listed(self._example[:EXAMPLE])}.\n\n"
        )
        wrong = others(once, [], self.references, self._draws.stream("wrong"))
        return Draft(instruction, [Piece(numbered)], f"\n{ask_common(COMMON)}", self._gold, wrong)

    def filling(self) -> list[str]:
        """Uncommon words that no unit has taken yet, where there are any."""
        return self._others[::-1][:50]


def ask_common(count: int) -> str:
    """The question and the beginning of its answer."""
    return f"Which are the {count} most common words of the list? They are"


def _numbered(items: list[str], draws: Draws, purpose: str) -> str:
    order = draws.stream(purpose).choose(len(items), len(items))
    return " ".join(f"{n + 1}. {items[i]}" for n, i in enumerate(order))


ZETA_2 = 1.6449340668482264
"""Sum of 1 / k**2: words are distributed by rank with the exponent 2, as in RULER."""
NOISE_WORD = "..."
ASKED = 3
CODED_LETTERS = 6
FEWEST = 30
"""Words of the shortest coded text: rank 4 then stands once, and no later rank at all."""
MOST_RANKS = 1000


class CodedText:
    """One sample of `fwe`. A unit is one word of the text; the most frequent one is noise, ranks 2 to 4 are asked."""

    least = FEWEST
    most: int | None = MOST_RANKS**2

    def __init__(self, draws: Draws) -> None:
        self._draws = draws
        words = [w.lower() for w in different_words(draws.stream("words"), MOST_RANKS + CANDIDATES, CODED_LETTERS)]
        self._ranks, self._absent = words[:MOST_RANKS], words[MOST_RANKS:]
        self.references = tuple(self._ranks[:ASKED])
        self._gold = draws.stream("gold").integer(ASKED)

    def draft(self, units: int, padding: Sequence[str]) -> Draft:
        counts = rank_counts(units)
        items = [self._ranks[rank] for rank, count in enumerate(counts) for _ in range(count)]
        items += [NOISE_WORD] * (units - len(items)) + list(padding)
        order = self._draws.stream("order").choose(len(items), len(items))
        present = self._ranks[ASKED : len(counts)]
        return Draft(
            f"Find the most frequent words of a coded text. Pay no attention to the dots '{NOISE_WORD}'.\n\n",
            [Piece(" ".join(items[i] for i in order))],
            f"\n\nWhich are the {ASKED} most frequent words? They are",
            self._gold,
            others(present, self._absent, self.references, self._draws.stream("wrong")),
        )

    def filling(self) -> list[str]:
        return [NOISE_WORD] * 40


def rank_counts(units: int) -> list[int]:
    """How often ranks 2, 3, ... stand in a text of `units` words; ranks 2 to 5 all differ."""
    counts = []
    for rank in range(2, MOST_RANKS + 2):
        count = int(units / ZETA_2 / rank**2)
        if count == 0:
            break
        counts.append(count)
    counts += [0] * (ASKED + 1 - len(counts))
    for i in reversed(range(ASKED)):
        counts[i] = max(counts[i], counts[i + 1] + 1)
    return [count for count in counts if count]


def _cwe(materials: Materials, draws: Draws, attempt: int) -> Plan:
    return CommonWords(draws)


def _fwe(materials: Materials, draws: Draws, attempt: int) -> Plan:
    return CodedText(draws)


CWE = RulerTask("cwe", 120, _cwe)
FWE = RulerTask("fwe", 50, _fwe)
