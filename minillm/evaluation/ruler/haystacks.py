"""What needles lie in: five sentences over and over, or a corpus cut at sentence marks.

(The third haystack, needles among needles, is niah.py's own.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

NOISE = (
    "The hills are quiet.",
    "The water is clear.",
    "The clouds are slow.",
    "We set out early.",
    "We come home late.",
)
"""In the manner of RULER's five sentences."""

LONGEST = 400
"""Characters of a sentence; what is longer (a table, verse without marks) is cut at a space, so that a haystack can end
near anywhere."""
_END = re.compile(r"(?<=[.!?])[\"')\]]*\s+|\n\s*\n\s*")
_LIKE_A_NEEDLE = re.compile(r"\d{7}|[0-9a-f]{8}-[0-9a-f]{4}|the secret (?:number|code)", re.IGNORECASE)


class Corpus:
    """Sentences of documents, in order, without end: the first follows the last."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.sentences = [sentence for text in texts for sentence in sentences(text)]

    def from_place(self, place: float, count: int) -> list[str]:
        """`count` sentences from `place` (0 to below 1 of the corpus) on."""
        first = int(place * len(self.sentences))
        return [self.sentences[(first + i) % len(self.sentences)] for i in range(count)]


def sentences(text: str) -> list[str]:
    """`text` cut behind sentence marks and at empty lines; line breaks within a sentence are spaces.

    What reads as one of our needles, or holds their kind of numbers, is left out.
    """
    found = []
    for part in _END.split(text):
        words = part.split()
        found += pieces_of(words)
    return [s for s in found if not _LIKE_A_NEEDLE.search(s)]


def pieces_of(words: Sequence[str]) -> list[str]:
    """`words` as one sentence, or as several of at most LONGEST characters."""
    out: list[str] = []
    line = ""
    for word in words:
        joined = f"{line} {word}" if line else word
        if len(joined) > LONGEST and line:
            out.append(line)
            joined = word
        line = joined[:LONGEST]
    return [*out, line] if line else out


def noise(count: int) -> list[str]:
    """`count` noise sentences."""
    return [NOISE[i % len(NOISE)] for i in range(count)]


def noise_words() -> list[str]:
    """Words to end a haystack with, in order."""
    return " ".join(NOISE * 2).split()
