"""The tokens of one call as attention sees them: where they stand, not what they say."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

from torch import Tensor

T = TypeVar("T")


class Tokens(NamedTuple):
    """Index, position and document of a run of tokens; each (B, T) int64, or (1, T) where all rows agree.

    index: place in the row, counting padding and everything already in the cache: causality and windows compare it.
    position: place in the document: rotations, biases, temperatures and chunks read it.
    document: id of the packed document, -1 for padding; None where the row is one document without padding.
    """

    index: Tensor
    position: Tensor
    document: Tensor | None


class StepContext:
    """One forward call: the query tokens, and what layers of equal specs share (tables, masks, biases).

    `contiguous` is True when this call's keys are exactly its queries and index == 0..T-1 (no cache): banded and the
    causal fast path rely on it.
    """

    def __init__(self, tokens: Tokens, contiguous: bool) -> None:
        self.tokens = tokens
        self.contiguous = contiguous
        self._made: dict[Hashable, Any] = {}

    def once(self, key: Hashable, make: Callable[[], T]) -> T:
        """`make()` at the first call with `key`, the same object afterwards."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]
