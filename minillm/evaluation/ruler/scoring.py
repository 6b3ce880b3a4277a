"""RULER's scores of generated text, and two stricter ones beside them.

`string_match_all` and `string_match_part` are as RULER publishes them: a reference is found where the output, in any
case, holds it as a substring, be it within a longer word or number, hence `word_match`. Nothing punishes an output that
lists everything, hence `exact`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def found(output: str, references: Sequence[str]) -> list[bool]:
    """Which references stand in the output."""
    clean = _CONTROL.sub("\n", output).lower()
    return [reference.lower() in clean for reference in references]


def string_match_all(output: str, references: Sequence[str]) -> float:
    """The share of references found."""
    hits = found(output, references)
    return sum(hits) / len(hits)


def string_match_part(output: str, references: Sequence[str]) -> float:
    """1 if any reference is found, else 0."""
    return float(any(found(output, references)))


def word_match(output: str, references: Sequence[str]) -> list[bool]:
    """Which references stand in the output as whole words: 7421 is in ``It is 7421.`` and not in ``74210``."""
    return [
        re.search(rf"(?<!\w){re.escape(reference)}(?!\w)", output, re.IGNORECASE) is not None
        for reference in references
    ]


def exact(output: str, references: Sequence[str], any_reference: bool) -> bool:
    """Whether the first sentence of the output is the answer and nothing else: all references, in any order, listed
    with commas or `and`; or just one of them where any will do."""
    first = re.split(r"\.(?:\s|$)|\n", output.strip(), maxsplit=1)[0].strip(" .,").lower()
    if any_reference:
        return first in {reference.strip(" .,").lower() for reference in references}
    items = [item for item in re.split(r",\s*(?:and\s+)?|\s+and\s+", first) if item]
    return sorted(items) == sorted(reference.lower() for reference in references)
