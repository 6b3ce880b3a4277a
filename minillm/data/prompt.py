"""What a text sample begins with, during training."""

from __future__ import annotations

from typing import NamedTuple


class Prompt(NamedTuple):
    """Ids to continue, and how to show them."""

    ids: list[int]
    shown: str
    """The prompt as text; what the model adds is written right behind it."""
    new_tokens: int
    greedy: bool = False
    right: str | None = None
    """What should come, where that is known."""
