"""Tensors that a cache appends to: all entries of a full layer, a ring of the last ones on others.

store = Store(reach=4, dim=2)
keys = store.append(new, seen)          # all that the new tokens may look at, in slot order: entry i in slot i % reach
"""

from __future__ import annotations

import torch
from torch import Tensor

GROWTH = 32
"""Entries by which a store grows at least; at most this many, or 1/64 of the length, are held unused. So each entry
is copied 64 times at most while a text grows, however long it gets."""


class Store:
    """The last `reach` entries (None: all) of a tensor that grows along `dim`; entry i lies in slot i modulo reach."""

    def __init__(self, reach: int | None, dim: int, growth: int = GROWTH) -> None:
        self.reach = reach
        self.dim = dim
        self.growth = growth
        self.held: Tensor | None = None

    def stores(self) -> list[Store]:
        return [self]

    @property
    def empty(self) -> bool:
        return self.held is None

    def append(self, new: Tensor, seen: int) -> Tensor:
        """Store `new`, which follows `seen` entries, and return all that its tokens may look at: past and new.

        A piece is returned whole, however much longer than the ring: its early rows need what they can see.
        """
        length = new.shape[self.dim]
        total = seen + length
        if seen == 0:
            self.write(new, 0)
            return new
        if self.reach is None or length == 1 or total <= self.reach:
            # One token may take the slot of the oldest: that one is just out of its reach.
            self.write(new, seen)
            return self.newest(total)
        past = self.newest(seen)
        both = torch.cat([past, new.detach()], dim=self.dim)
        self.write(new, seen)
        return both

    def newest(self, total: int) -> Tensor:
        """What is held of the first `total` entries, in slot order; a view."""
        assert self.held is not None
        return self.held.narrow(self.dim, 0, total if self.reach is None else min(total, self.reach))

    def write(self, new: Tensor, seen: int) -> None:
        """Store `new` behind `seen` entries."""
        new = new.detach()
        length = new.shape[self.dim]
        held = self._room(new, seen + length)
        if self.reach is None:
            held.narrow(self.dim, seen, length).copy_(new)
            return
        kept = min(length, self.reach)
        slot = (seen + length - kept) % self.reach
        first = min(kept, self.reach - slot)
        held.narrow(self.dim, slot, first).copy_(new.narrow(self.dim, length - kept, first))
        if first < kept:
            held.narrow(self.dim, 0, kept - first).copy_(new.narrow(self.dim, length - kept + first, kept - first))

    def used_bytes(self, total: int) -> int:
        """Bytes of what is held of `total` entries, without the room to grow."""
        return 0 if self.held is None or total == 0 else self.newest(total).nbytes

    def _room(self, new: Tensor, total: int) -> Tensor:
        """`held` with slots for `total` entries, or all that the ring may have."""
        wanted = total if self.reach is None else min(total, self.reach)
        old = self.held
        if old is not None and old.shape[self.dim] >= wanted:
            return old
        if old is not None:
            wanted = max(wanted, old.shape[self.dim] + max(self.growth, old.shape[self.dim] // 64))
        wanted = -(-wanted // self.growth) * self.growth
        shape = list(new.shape)
        shape[self.dim] = wanted if self.reach is None else min(wanted, self.reach)
        # A tensor made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            held = new.new_empty(shape)
        if old is not None:
            held.narrow(self.dim, 0, old.shape[self.dim]).copy_(old)
        self.held = held
        return held
