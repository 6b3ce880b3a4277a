"""Keys and values of tokens already seen: a ring of `reach` entries on windowed and chunked layers, all on full ones.
First tokens that a windowed layer keeps for good have places of their own beside the ring (attention/kept.py). Keys are
cached as they meet in the scores: normed and rotated. `CacheSettings` says what else may be done: fewer bits
(attention/quantised.py), or forgetting on full layers.

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

from minillm.attention.cache_settings import CacheSettings
from minillm.attention.kept import Kept, KeptPlaces
from minillm.attention.quantised import AsItIs, Blocks, Codec, KeyCodec, ValueCodec
from minillm.attention.stores import Store
from minillm.attention.tokens import Past, Tokens, follow
from minillm.config.layers import LayerSpec
from minillm.errors import MinillmError

Column = Store | Blocks


class _Places:
    """Where the cached entries stand, shared by all layers of one reach, in the slot order of their keys."""

    def __init__(self, spec: LayerSpec, settings: CacheSettings) -> None:
        self.kept = None if spec.sink_tokens is None else KeptPlaces(spec.sink_tokens)
        self.index, self.position, self.document = (_column(spec, settings, 1, AsItIs()) for _ in range(3))
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
        if tokens.position is not tokens.index and self.position.empty:
            self.position = copy.deepcopy(self.index)
        if tokens.document is not None and self.document.empty:
            self.document = copy.deepcopy(self.index)
            for held in _tensors(self.document):
                held.zero_()
        index = self.index.append(tokens.index, seen)
        position = index
        if not self.position.empty:
            position = self._extend(self.position, tokens.position, seen)
        document = None
        if tokens.document is not None:
            document = self._extend(self.document, tokens.document, seen)
        return Tokens(index, position, document)

    @staticmethod
    def _extend(column: Column, new: Tensor, seen: int) -> Tensor:
        """Append where either side may have one row for all."""
        rows = max(new.shape[0], *(held.shape[0] for held in _tensors(column)))
        for store in column.stores():
            if store.held is not None and store.held.shape[0] < rows:
                store.held = store.held.expand(rows, -1).clone()
        return column.append(new.expand(rows, -1), seen)


def _column(spec: LayerSpec, settings: CacheSettings, dim: int, codec: Codec) -> Column:
    """An empty store of a layer's entries; `codec` is for layers that are held in few bits."""
    if not settings.quantises(spec):
        return Store(spec.reach, dim)
    return Blocks(spec.reach, settings.old_blocks(spec), dim, settings.residual, codec)


def _tensors(column: Column | Kept) -> list[Tensor]:
    return [store.held for store in column.stores() if store.held is not None]


class LayerCache:
    """Keys and values of one layer; `spec` is the layer as it is computed with this cache."""

    def __init__(self, owner: KVCache, spec: LayerSpec, settings: CacheSettings, places: _Places) -> None:
        self.spec = spec
        self._owner = owner
        self._places = places
        bits, block = settings.bits or 0, settings.residual
        self.keys = _column(spec, settings, 2, KeyCodec(bits, settings.group, block))
        self.values = _column(spec, settings, 2, ValueCodec(bits, block))
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

    def parts(self) -> list[Column | Kept]:
        return [self.keys, self.values, self.kept_keys, self.kept_values]

    def nbytes(self) -> int:
        return sum(held.untyped_storage().nbytes() for part in self.parts() for held in _tensors(part))

    def used_bytes(self) -> int:
        return sum(part.used_bytes(self._owner.past.seen) for part in self.parts())


class KVCache:
    """What a decoder remembers of the tokens it has seen; `len(cache)` counts them, padding included."""

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        batch_size: int,
        dtype: torch.dtype,
        device: torch.device | str,
        settings: CacheSettings = CacheSettings(),  # noqa: B008  # frozen
    ) -> None:
        """Raises ConfigError where a setting would change nothing in this plan."""
        settings.check(specs)
        self.batch_size = batch_size
        self.dtype = dtype
        self.device = torch.device(device)
        self.settings = settings
        self.past = Past(0, None, None)
        places: dict[tuple[int | None, int | None], _Places] = {}
        self.layers = []
        for given in specs:
            spec = settings.applied(given)
            key = (spec.reach, spec.sink_tokens)
            if key not in places:
                places[key] = _Places(spec, settings)
            self.layers.append(LayerCache(self, spec, settings, places[key]))

    def pieces(self, length: int) -> list[int]:
        """The sizes in which the next `length` tokens must come: all at once, but for caches in few bits, of whose
        blocks each ends a piece."""
        if self.settings.bits is None:
            return [length]
        block = self.settings.residual
        first = min(length, block - self.past.seen % block)
        rest = length - first
        return [first, *[block] * (rest // block), *([rest % block] if rest % block else [])]

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
            for part in layer.parts():
                for store in part.stores():
                    if store.held is not None:
                        store.held = store.held.repeat_interleave(rows, dim=0)
        return other

    def nbytes(self) -> int:
        """Bytes allocated for keys and values, with their scales and room to grow (the few integers that say where
        they stand are not counted)."""
        return sum(layer.nbytes() for layer in self.layers)

    def used_bytes(self) -> int:
        """Those that hold something; `nbytes` exceeds them by the room to grow, 1/64 or some tens of tokens."""
        return sum(layer.used_bytes() for layer in self.layers)
