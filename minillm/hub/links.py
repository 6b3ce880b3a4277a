"""How a family's tensors become ours and ours become its: a small algebra of mappings that can be undone bit for bit.

A `Link` makes one tensor of ours: theirs are joined by rows, then its steps run in order; for export they run backwards
and the rows are split again. Nothing is computed, only moved, so out and in again gives identical bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class Step(Protocol):
    """A rearrangement and its inverse."""

    def forth(self, x: Tensor) -> Tensor:
        """Theirs into ours."""
        ...

    def back(self, x: Tensor) -> Tensor:
        """Ours into theirs."""
        ...


@dataclass(frozen=True)
class Transpose:
    """Matrices that are stored input first (GPT-2's Conv1D); vectors stay as they are."""

    def forth(self, x: Tensor) -> Tensor:
        return x.t() if x.ndim == 2 else x

    def back(self, x: Tensor) -> Tensor:
        return self.forth(x)


@dataclass(frozen=True)
class HeadsFirst:
    """Fused q, k and v stored head by head, (heads, parts, K) rows; ours is part by part (GPT-NeoX, BLOOM)."""

    heads: int
    parts: int = 3

    def forth(self, x: Tensor) -> Tensor:
        return self._swap(x, self.heads, self.parts)

    def back(self, x: Tensor) -> Tensor:
        return self._swap(x, self.parts, self.heads)

    @staticmethod
    def _swap(x: Tensor, first: int, second: int) -> Tensor:
        return x.unflatten(0, (first, second, -1)).transpose(0, 1).flatten(0, 2)


@dataclass(frozen=True)
class Link:
    """One tensor of ours from one or more of theirs; `rows` are the row counts of theirs where they are several."""

    ours: str
    theirs: tuple[str, ...]
    rows: tuple[int, ...] | None = None
    steps: tuple[Step, ...] = ()

    def to_ours(self, parts: Sequence[Tensor]) -> Tensor:
        """May share memory with `parts` where nothing had to be moved."""
        x = parts[0] if len(parts) == 1 else torch.cat(list(parts))
        for step in self.steps:
            x = step.forth(x)
        return x.contiguous()

    def to_theirs(self, x: Tensor) -> list[Tensor]:
        """One tensor per name in `theirs`; may be views of `x`."""
        for step in reversed(self.steps):
            x = step.back(x)
        parts = [x] if self.rows is None else list(x.split(self.rows))
        return [part.contiguous() for part in parts]


def same(ours: str, theirs: str, *steps: Step) -> Link:
    """One tensor from one tensor."""
    return Link(ours, (theirs,), steps=steps)


def joined(ours: str, theirs: Sequence[str], rows: Sequence[int], *steps: Step) -> Link:
    """One tensor from several, row below row."""
    return Link(ours, tuple(theirs), tuple(rows), steps)
