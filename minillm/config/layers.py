"""`LayerSpec`: all that is known of one layer's attention. Everything that differs between layers is asked here.

Lengths and windows are in tokens. A window counts the query's own token: query q sees k iff q - window < k <= q.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from minillm.position.base import LayerShape, PositionScheme
from minillm.position.temperature import TemperatureScheme, as_mapping

QKNormType = Literal["rms", "l2", "layernorm"]


@dataclass(frozen=True)
class QKNorm:
    """Norm on queries and keys: over each head or the full width, before or after the rotation."""

    type: QKNormType
    over: Literal["head", "full"] = "head"
    order: Literal["before_rope", "after_rope"] = "before_rope"

    def summary(self) -> str:
        words: list[str] = [self.type]
        if self.over == "full":
            words.append("full")
        if self.order == "after_rope":
            words.append("after rope")
        return " ".join(words)


@dataclass(frozen=True)
class LayerSpec:
    """One layer of the plan, validated; `index` counts from 0. Built by `minillm.config.expand`, read by everything."""

    index: int
    kind: str
    position: PositionScheme
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    window: int | None = None
    chunk: int | None = None
    qk_norm: QKNorm | None = None
    temperature: TemperatureScheme | None = None
    softcap: float | None = None
    scale: float | None = None
    """Multiplies q.k; None is head_dim ** -0.5."""
    qkv_bias: bool = False

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.index, self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @property
    def score_scale(self) -> float:
        return self.head_dim**-0.5 if self.scale is None else self.scale

    @property
    def reach(self) -> int | None:
        """Most tokens a query can see, itself included; None where it grows with the length (full attention)."""
        return self.window if self.window is not None else self.chunk

    @property
    def mask_key(self) -> tuple[int | None, int | None]:
        """Layers of equal keys see the same tokens."""
        return (self.window, self.chunk)

    def cached_tokens(self, length: int) -> int:
        """Tokens whose state a decoder must hold after `length` tokens."""
        return length if self.reach is None else min(length, self.reach)

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes of keys and values for one cached token of one sequence."""
        return 2 * self.num_key_value_heads * self.head_dim * bytes_per_value

    def visible_pairs(self, length: int) -> int:
        """Query-key pairs that the mask lets through over one document of `length` tokens."""
        if self.window is not None:
            w = min(self.window, length)
            return w * (w + 1) // 2 + (length - w) * w
        if self.chunk is not None:
            whole, rest = divmod(length, self.chunk)
            return whole * self.chunk * (self.chunk + 1) // 2 + rest * (rest + 1) // 2
        return length * (length + 1) // 2

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as saved in layers.json."""
        out: dict[str, Any] = {"index": self.index, "kind": self.kind}
        out["position"] = {"scheme": self.position.scheme, **dataclasses.asdict(self.position)}
        out["qk_norm"] = None if self.qk_norm is None else dataclasses.asdict(self.qk_norm)
        out["temperature"] = None if self.temperature is None else as_mapping(self.temperature)
        for name in (
            "window",
            "chunk",
            "softcap",
            "scale",
            "qkv_bias",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        ):
            out[name] = getattr(self, name)
        return out
