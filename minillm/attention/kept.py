"""First tokens of a document that a windowed layer keeps in its cache for good (`LayerSpec.sink_tokens`).

    where = KeptPlaces(4)                                # one for all layers of one window and number of kept tokens
    keys = where.append(tokens, ring_keys)               # each forward: kept places first, then the ring's
    k = layer.append(k_new, k_ring, where)               # each layer: kept entries first, then the ring's

Slot s holds the token at position s of the row's newest document that has one. A kept token that the ring still holds,
and an empty slot, stand at index NEVER, behind every query: so no token is counted twice.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.attention.tokens import Tokens

NEVER = 2**62
"""An index that causality hides from every query."""


class KeptPlaces:
    """Where the kept tokens stand, and which of this call's tokens take their places after it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.index: Tensor | None = None
        self.document: Tensor | None = None
        self.taken: Tensor | None = None
        """(B or 1, n): which of this call's tokens goes into each slot, -1 for none."""

    def append(self, tokens: Tokens, ring: Tokens) -> Tokens:
        """The places of all keys, kept ones first; `ring` are those of the ring and of this call's `tokens`."""
        index, document = self.index, self.document
        self._take(tokens)
        if index is None:
            return ring
        held = index < ring.index.amin(dim=1, keepdim=True)
        rows = max(x.shape[0] for x in (index, ring.index, ring.position))
        slots = torch.arange(self.count, device=index.device)

        def join(kept: Tensor, more: Tensor) -> Tensor:
            return torch.cat([kept.expand(rows, -1), more.expand(rows, -1)], dim=1)

        together = None
        if ring.document is not None:
            rows = ring.document.shape[0]
            # Tokens cached without ids count as document 0 once ids are given, as in the ring.
            together = join(torch.zeros_like(index) if document is None else document, ring.document)
        return Tokens(join(torch.where(held, index, NEVER), ring.index), join(slots[None], ring.position), together)

    def _take(self, tokens: Tokens) -> None:
        position = tokens.position
        real = position >= 0 if tokens.document is None else tokens.document >= 0
        slots = torch.arange(self.count, device=position.device)
        fits = (position[:, None, :] == slots[:, None]) & real[:, None, :]
        place = torch.arange(position.shape[1], device=position.device)
        self.taken = torch.where(fits, place, -1).amax(dim=-1)
        self.index = _replace(self.index, tokens.index, self.taken, empty=NEVER)
        if tokens.document is not None:
            self.document = _replace(self.document, tokens.document, self.taken, empty=-1)


class Kept:
    """Kept keys or values of one layer."""

    def __init__(self) -> None:
        self.held: Tensor | None = None

    def stores(self) -> list[Kept]:
        return [self]

    def used_bytes(self, total: int) -> int:
        return 0 if self.held is None else self.held.nbytes

    def append(
        self, new: Float[Tensor, "B G T K"], ring: Float[Tensor, "B G Tr K"], where: KeptPlaces
    ) -> Float[Tensor, "B G Tk K"]:
        """Keep what `where` takes of this call's `new`; returns what was kept before it, then the ring."""
        assert where.taken is not None
        taken = where.taken.expand(new.shape[0], -1)[:, None, :, None]
        picked = new.detach().gather(2, taken.clamp(min=0).expand(-1, new.shape[1], -1, new.shape[3]))
        before = self.held
        # Outside of inference mode, as the ring: what is made there could not be written later.
        with torch.inference_mode(False):
            old = torch.zeros_like(picked) if before is None else before
            self.held = torch.where(taken >= 0, picked, old)
        return ring if before is None else torch.cat([before, ring], dim=2)


def _replace(
    old: Int[Tensor, "B1 n"] | None, new: Int[Tensor, "B2 T"], taken: Int[Tensor, "B3 n"], empty: int
) -> Int[Tensor, "B n"]:
    rows = max(new.shape[0], taken.shape[0])
    picked = new.expand(rows, -1).gather(1, taken.clamp(min=0).expand(rows, -1))
    return torch.where(taken >= 0, picked, empty if old is None else old)
