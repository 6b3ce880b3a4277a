"""Keys and values of tokens already seen: a ring of `reach` entries on windowed and chunked layers, all on full ones.
First tokens that a windowed layer keeps for good have places of their own beside the ring (attention/kept.py).

    cache = KVCache(model.layer_specs, batch_size=2, dtype=torch.float32, device="cpu")
    tokens = arrange(2, 16, device, past=cache.past)
    k_all, v_all, keys = cache.layers[i].append(k, v, tokens)      # each layer, once per forward
    cache.advance(tokens)                                          # after the last layer, once per forward

A ring is in slot order (index modulo reach), not in the order of the text: masks and biases read `keys`, which is in
the same order. No gradient flows into what is cached. Unequal prompts are padded on the left: padding between a prompt
and its answer would take places of a window.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.attention.kept import Kept, KeptPlaces
from minillm.attention.tokens import Past, Tokens, follow
from minillm.config.layers import LayerSpec
from minillm.errors import MinillmError

GROWTH = 32
"""Entries by which a store grows at least; at most this many, or 1/64 of the length, are held unused."""


class _Store:
    """The last `reach` entries (None: all) of a tensor that grows along `dim`; entry i lies in slot i modulo reach."""

    def __init__(self, reach: int | None, dim: int) -> None:
        self.reach = reach
        self.dim = dim
        self.held: Tensor | None = None

    def append(self, new: Tensor, seen: int) -> Tensor:
        """Store `new`, which follows `seen` entries, and return all that its tokens may look at: past and new.

        A piece is returned whole, however much longer than the ring: its early rows need what they can see.
        """
        length = new.shape[self.dim]
        total = seen + length
        if seen == 0:
            self._write(new, 0)
            return new
        if self.reach is None or length == 1 or total <= self.reach:
            # One token may take the slot of the oldest: that one is just out of its reach.
            held = self._write(new, seen)
            return held.narrow(self.dim, 0, total if self.reach is None else min(total, self.reach))
        assert self.held is not None
        past = self.held.narrow(self.dim, 0, min(seen, self.reach))
        both = torch.cat([past, new.detach()], dim=self.dim)
        self._write(new, seen)
        return both

    def _write(self, new: Tensor, seen: int) -> Tensor:
        new = new.detach()
        length = new.shape[self.dim]
        held = self._room(new, seen + length)
        if self.reach is None:
            held.narrow(self.dim, seen, length).copy_(new)
            return held
        kept = min(length, self.reach)
        slot = (seen + length - kept) % self.reach
        first = min(kept, self.reach - slot)
        held.narrow(self.dim, slot, first).copy_(new.narrow(self.dim, length - kept, first))
        if first < kept:
            held.narrow(self.dim, 0, kept - first).copy_(new.narrow(self.dim, length - kept + first, kept - first))
        return held

    def _room(self, new: Tensor, total: int) -> Tensor:
        """`held` with slots for `total` entries, or all that the ring may have."""
        wanted = total if self.reach is None else min(total, self.reach)
        old = self.held
        if old is not None and old.shape[self.dim] >= wanted:
            return old
        if old is not None:
            wanted = max(wanted, old.shape[self.dim] + max(GROWTH, old.shape[self.dim] // 64))
        wanted = -(-wanted // GROWTH) * GROWTH
        shape = list(new.shape)
        shape[self.dim] = wanted if self.reach is None else min(wanted, self.reach)
        # A tensor made in inference mode could not be written outside of it.
        with torch.inference_mode(False):
            held = new.new_empty(shape)
        if old is not None:
            held.narrow(self.dim, 0, old.shape[self.dim]).copy_(old)
        self.held = held
        return held


class _Places:
    """Where the cached entries stand, shared by all layers of one reach, in the slot order of their keys."""

    def __init__(self, reach: int | None, sink_tokens: int | None) -> None:
        self.kept = None if sink_tokens is None else KeptPlaces(sink_tokens)
        self.index = _Store(reach, dim=1)
        self.position = _Store(reach, dim=1)
        self.document = _Store(reach, dim=1)
        self._of: Tokens | None = None
        self._keys: Tokens | None = None

    def append(self, tokens: Tokens, seen: int) -> Tokens:
        """The key tokens of this forward; the first layer to ask stores them, the others get the same object."""
        if self._of is not tokens or self._keys is None:
            ring = self._append(tokens, seen)
            self._of, self._keys = tokens, ring if self.kept is None else self.kept.append(tokens, ring)
        return self._keys

    def _append(self, tokens: Tokens, seen: int) -> Tokens:
        if seen == 0:
            self.index.append(tokens.index, 0)
            if tokens.position is not tokens.index:
                self.position.append(tokens.position, 0)
            if tokens.document is not None:
                self.document.append(tokens.document, 0)
            return tokens
        # Columns not stored so far begin here: positions that equalled indices, documents not given (all 0).
        if tokens.position is not tokens.index and self.position.held is None:
            assert self.index.held is not None
            self.position.held = self.index.held.clone()
        if tokens.document is not None and self.document.held is None:
            assert self.index.held is not None
            self.document.held = torch.zeros_like(self.index.held)
        index = self.index.append(tokens.index, seen)
        position = index
        if self.position.held is not None:
            position = self._extend(self.position, tokens.position, seen)
        document = None
        if tokens.document is not None:
            document = self._extend(self.document, tokens.document, seen)
        return Tokens(index, position, document)

    @staticmethod
    def _extend(column: _Store, new: Tensor, seen: int) -> Tensor:
        """Append where either side may have one row for all."""
        assert column.held is not None
        rows = max(new.shape[0], column.held.shape[0])
        if column.held.shape[0] < rows:
            column.held = column.held.expand(rows, -1).clone()
        return column.append(new.expand(rows, -1), seen)


class LayerCache:
    """Keys and values of one layer."""

    def __init__(self, owner: KVCache, reach: int | None, places: _Places) -> None:
        self._owner = owner
        self._places = places
        self.keys = _Store(reach, dim=2)
        self.values = _Store(reach, dim=2)
        self.kept_keys, self.kept_values = Kept(), Kept()

    def append(
        self, k: Float[Tensor, "B G T K"], v: Float[Tensor, "B G T K"], tokens: Tokens
    ) -> tuple[Float[Tensor, "B G Tk K"], Float[Tensor, "B G Tk K"], Tokens]:
        """Store this forward's keys and values; return those that its queries may look at, and where they stand."""
        owner = self._owner
        if k.shape[0] != owner.batch_size:
            raise MinillmError(f"cache: made for batch size {owner.batch_size}, got {k.shape[0]} rows.")
        k, v = k.to(owner.dtype), v.to(owner.dtype)
        seen = owner.past.seen
        places, kept = self._places.append(tokens, seen), self._places.kept
        all_k, all_v = self.keys.append(k, seen), self.values.append(v, seen)
        if kept is not None:
            all_k, all_v = self.kept_keys.append(k, all_k, kept), self.kept_values.append(v, all_v, kept)
        return all_k, all_v, places

    def nbytes(self) -> int:
        stores = (self.keys, self.values, self.kept_keys, self.kept_values)
        return sum(store.held.untyped_storage().nbytes() for store in stores if store.held is not None)


class KVCache:
    """What a decoder remembers of the tokens it has seen; `len(cache)` counts them, padding included."""

    def __init__(
        self, specs: Sequence[LayerSpec], batch_size: int, dtype: torch.dtype, device: torch.device | str
    ) -> None:
        self.batch_size = batch_size
        self.dtype = dtype
        self.device = torch.device(device)
        self.past = Past(0, None, None)
        places: dict[tuple[int | None, int | None], _Places] = {}
        self.layers = []
        for spec in specs:
            key = (spec.reach, spec.sink_tokens)
            self.layers.append(LayerCache(self, spec.reach, places.setdefault(key, _Places(*key))))

    def __len__(self) -> int:
        return self.past.seen

    def advance(self, tokens: Tokens) -> None:
        """Count `tokens` as seen: once per forward and after the last layer, so that all layers stand at one place."""
        self.past = follow(self.past, tokens)

    def repeated(self, rows: int) -> KVCache:
        """A copy for `rows` texts that all begin with what this cache of one text has seen."""
        if self.batch_size != 1:
            raise MinillmError(f"cache: only that of one text can be repeated, this one has {self.batch_size} rows.")
        other = copy.deepcopy(self)
        other.batch_size = rows
        # Where the entries stand is held once for all rows.
        for layer in other.layers:
            for store in (layer.keys, layer.values, layer.kept_keys, layer.kept_values):
                if store.held is not None:
                    store.held = store.held.repeat_interleave(rows, dim=0)
        return other

    def nbytes(self) -> int:
        """Bytes held for keys and values (the few integers that say where they stand are not counted)."""
        return sum(layer.nbytes() for layer in self.layers)
