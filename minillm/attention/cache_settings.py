"""How keys and values are kept while decoding: as they are or in few bits, all of them or first tokens and a window.

    CacheSettings()                                          # every value in the weights' dtype: exact
    CacheSettings("int8"), CacheSettings("int4")             # old tokens in 8 or 4 bits (attention/quantised.py)
    CacheSettings(evict=Evict(window=512, sink_tokens=4))    # full layers: the first 4 tokens, the last 512

Eviction. StreamingLLM (arXiv 2309.17453) keeps the first tokens and a window in the cache of a model trained with full
attention. Here a full layer then *is* the same layer with `window` and `sink_tokens`: whatever its piece of the text,
a query sees what such a layer would, so logits are those of the same weights under that plan. One thing differs from
the paper: it numbers positions by place in the cache, so that the first tokens always stand right before the window;
here every token keeps its position in the document. With rotary embeddings the first tokens are therefore seen over
distances that grow with the text, past the trained ones too. Layers without position (NoPE) do not know the difference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from minillm.config import fields
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError, nearest

BITS = {"full": None, "int8": 8, "int4": 4}


@dataclass(frozen=True)
class Evict:
    """What full-attention layers keep; other layers are as their plan says."""

    window: int
    """Newest tokens, the query's own included."""
    sink_tokens: int = 4
    """First tokens of the document, which are never forgotten."""


@dataclass(frozen=True)
class CacheSettings:
    """One choice for the whole model; what it means for a layer is asked here, given the layer's spec."""

    kind: Literal["full", "int8", "int4"] = "full"
    """full: all values as they are; int8, int4: 8 or 4 bits for tokens of blocks that are complete."""
    group: int = 32
    """int8, int4: tokens that share the scale of a key channel."""
    residual: int = 128
    """int8, int4: tokens of a block, of which the newest is kept as it is; a multiple of `group`."""
    evict: Evict | None = None

    def __post_init__(self) -> None:
        if self.kind not in BITS:
            raise ConfigError(
                f"cache.kind = {self.kind!r}: unknown.{nearest(str(self.kind), BITS)} Allowed: {', '.join(BITS)}."
            )
        if self.group < 1:
            raise ConfigError(f"cache.group = {self.group}: must be 1 or more.")
        if self.residual < 2 or self.residual % self.group or self.residual % 2:
            raise ConfigError(
                f"cache.residual = {self.residual}: must be an even multiple of cache.group ({self.group}), 2 or more."
            )
        for field in dataclasses.fields(self):
            if self.bits is None and field.name in ("group", "residual"):
                value = getattr(self, field.name)
                if value != field.default:
                    raise ConfigError(f"cache.{field.name} = {value}: has no effect on cache.kind = full.")
        if self.evict is not None and self.evict.window < 1:
            raise ConfigError(f"cache.evict.window = {self.evict.window}: must be 1 or more.")
        if self.evict is not None and self.evict.sink_tokens < 0:
            raise ConfigError(f"cache.evict.sink_tokens = {self.evict.sink_tokens}: must not be negative.")

    @classmethod
    def from_plain(cls, value: Any, where: str) -> CacheSettings:
        """A bare kind, or a mapping of the fields."""
        return fields.build(cls, value if isinstance(value, Mapping) else {"kind": value}, where)

    @property
    def bits(self) -> int | None:
        return BITS[self.kind]

    @property
    def exact(self) -> bool:
        """Does decoding give the logits of a forward pass without a cache?"""
        return self.bits is None and self.evict is None

    def check(self, specs: Sequence[LayerSpec]) -> None:
        """Raise ConfigError where a setting would change nothing in this plan."""
        if self.evict is not None and all(spec.reach is not None for spec in specs):
            raise ConfigError("cache.evict: no layer of this plan has full attention, so there is nothing to evict.")
        reaches = [self.applied(spec).reach for spec in specs]
        if self.bits is not None and not any(self.quantises(self.applied(spec)) for spec in specs):
            raise ConfigError(
                f"cache.kind = {self.kind}: no layer looks back further than {max(r for r in reaches if r)} tokens, "
                f"and cache.residual = {self.residual} of them are kept as they are. Allowed: a smaller residual, or "
                "kind full."
            )

    def applied(self, spec: LayerSpec) -> LayerSpec:
        """The layer as it is computed with such a cache: what it may see under `evict`."""
        if self.evict is None or spec.reach is not None:
            return spec
        return dataclasses.replace(spec, window=self.evict.window, sink_tokens=self.evict.sink_tokens or None)

    def quantises(self, spec: LayerSpec) -> bool:
        """Is this layer (as `applied` gives it) held in few bits? One whose whole ring is no longer than a block is
        not: the ring is smaller than the block that a quantised layer keeps as it is."""
        return self.bits is not None and (spec.reach is None or spec.reach > self.residual)

    def old_blocks(self, spec: LayerSpec) -> int | None:
        """Most complete blocks that a quantised layer holds: those within reach of a block's first token."""
        return None if spec.reach is None else -(-(spec.reach - 1) // self.residual)

    def kv_bytes(self, spec: LayerSpec, length: int, bytes_per_value: int) -> int:
        """Bytes that one sequence of `length` tokens keeps in this layer, scales included."""
        spec = self.applied(spec)
        if not self.quantises(spec):
            return spec.cached_tokens(length) * spec.kv_bytes_per_token(bytes_per_value)
        assert self.bits is not None
        blocks, most = length // self.residual, self.old_blocks(spec)
        if most is not None:
            blocks = min(blocks, most)
        codes = self.residual * spec.kv_bytes_per_token(1) * self.bits // 8
        # A scale and a low value for each key channel of a group, and for each value vector.
        scales = 2 * spec.num_key_value_heads * (self.residual // self.group * spec.head_dim + self.residual)
        as_they_are = min(length, self.residual) + min(length, spec.sink_tokens or 0)
        return blocks * (codes + scales * bytes_per_value) + as_they_are * spec.kv_bytes_per_token(bytes_per_value)
