"""Tokens standing at given positions, as the position schemes see them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from minillm.attention.tokens import Tokens

At = Callable[..., Tokens]


@pytest.fixture
def at() -> At:
    """`at(5)` stands at 0..4; `at([3, 9])` at those; `at([[0, 1], [0, 0]])` is a batch."""

    def make(positions: int | list[int] | list[list[int]]) -> Tokens:
        position = torch.arange(positions) if isinstance(positions, int) else torch.tensor(positions)
        position = position if position.ndim == 2 else position[None]
        return Tokens(torch.arange(position.shape[1])[None], position, None)

    return make
