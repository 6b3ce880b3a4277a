"""`LayerSpec`: all that is known of one layer's attention. Everything that differs between layers is asked here.

Lengths and windows are in tokens. A window counts the query's own token: query q sees k iff q - window < k <= q.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from minillm.position.base import LayerShape, PositionScheme
from minillm.position.temperature import TemperatureScheme, as_mapping

QKNormType = Literal["rms", "l2", "layernorm"]


class MaskKey(NamedTuple):
    """What a query may see, as far as the layer says it (attention/mask.py)."""

    window: int | None = None
    chunk: int | None = None
    sink_tokens: int | None = None


@dataclass(frozen=True)
class QKNorm:
    """Norm on queries and keys: over each head or the full width, before or after the rotation."""

    type: QKNormType
    """rms: x / rms(x) times a weight; l2: the same without one; layernorm: the mean is subtracted first."""
    over: Literal["head", "full"] = "head"
    """head: each head, one weight for all of them; full: the width of all heads together."""
    order: Literal["before_rope", "after_rope"] = "before_rope"
    """Before the rotation or after it, which differs where the weight is not uniform."""

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
    """A scheme by name, or a mapping with its name under `scheme` and its fields."""
    num_attention_heads: int
    num_key_value_heads: int
    """Heads of keys and values (grouped-query attention), divides num_attention_heads; null in YAML: the size's."""
    head_dim: int
    window: int | None = None
    """Tokens a query sees, its own included; null is full attention."""
    chunk: int | None = None
    """A query sees its own block of so many tokens of the document; excludes `window`."""
    sink_tokens: int | None = None
    """First tokens of a document that stay visible beyond the window (StreamingLLM, arXiv 2309.17453)."""
    sink_logits: bool = False
    """One learned logit per query head in the softmax's denominator, so that a head may attend to nothing (gpt-oss)."""
    qk_norm: QKNorm | None = None
    """A norm by name, or a mapping with its name under `type` and its fields."""
    temperature: TemperatureScheme | None = None
    """A factor on the queries by name, or a mapping with its name under `type` and its fields."""
    softcap: float | None = None
    """c * tanh(score / c); before a position bias."""
    scale: float | None = None
    """Multiplies q.k; null is (head_dim * position.score_parts) ** -0.5, score_parts being 1 but for deberta."""
    qkv_bias: bool = False
    """Biases on queries, keys and values."""
    shared_qk: bool = False
    """q and k are two affine maps, channel by channel, of one projection: the GAU form (arXiv 2202.10447)."""
    gate: bool = False
    """The output is multiplied by sigmoid(x W), channel by channel, before the output projection."""

    @property
    def shape(self) -> LayerShape:
        return LayerShape(self.index, self.num_attention_heads, self.num_key_value_heads, self.head_dim)

    @property
    def score_scale(self) -> float:
        return (self.head_dim * self.position.score_parts) ** -0.5 if self.scale is None else self.scale

    @property
    def key_bias_is_dead(self) -> bool:
        """A bias on keys adds q.b to all scores of a query alike, which no softmax sees, unless something between
        treats keys differently. The bias of a shared projection stands before SiLU, and those of `shared_qk` behind."""
        if not (self.qkv_bias or self.shared_qk):
            return False
        told_apart = self.position.tells_keys_apart(self.shape)
        return not (told_apart or self.sink_logits or self.qk_norm is not None or self.softcap is not None)

    @property
    def reach(self) -> int | None:
        """How far back a query sees, itself included and kept first tokens aside; None where it grows with the length
        (full attention)."""
        return self.window if self.window is not None else self.chunk

    @property
    def mask_key(self) -> MaskKey:
        """Layers of equal keys see the same tokens."""
        return MaskKey(self.window, self.chunk, self.sink_tokens)

    def cached_tokens(self, length: int) -> int:
        """Tokens whose state a decoder holds after `length` tokens; kept first tokens have places of their own."""
        if self.reach is None:
            return length
        return min(length, self.reach) + min(length, self.sink_tokens or 0)

    def kv_bytes_per_token(self, bytes_per_value: int) -> int:
        """Bytes of keys and values for one cached token of one sequence."""
        return 2 * self.num_key_value_heads * self.head_dim * bytes_per_value

    def visible_pairs(self, length: int) -> int:
        """Query-key pairs that the mask lets through over one document of `length` tokens."""
        if self.window is not None:
            w = min(self.window, length)
            beyond = length - w
            sinks = min(self.sink_tokens or 0, beyond)
            # Query w + j sees its window and the first j + 1 tokens before it, of which at most `sink_tokens` are kept.
            kept = sinks * (sinks + 1) // 2 + (beyond - sinks) * sinks
            return w * (w + 1) // 2 + beyond * w + kept
        if self.chunk is not None:
            whole, rest = divmod(length, self.chunk)
            return whole * self.chunk * (self.chunk + 1) // 2 + rest * (rest + 1) // 2
        return length * (length + 1) // 2

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as saved in layers.json."""
        out: dict[str, Any] = {"index": self.index, "kind": self.kind}
        out["position"] = self.position.to_dict()
        out["qk_norm"] = None if self.qk_norm is None else dataclasses.asdict(self.qk_norm)
        out["temperature"] = None if self.temperature is None else as_mapping(self.temperature)
        for name in (
            "window",
            "chunk",
            "sink_tokens",
            "sink_logits",
            "softcap",
            "scale",
            "qkv_bias",
            "shared_qk",
            "gate",
            "num_attention_heads",
            "num_key_value_heads",
            "head_dim",
        ):
            out[name] = getattr(self, name)
        return out
