"""A family's model in the plain values that a person would write in YAML, and from there into `ModelConfig`.

The plan goes through `minillm.config.expand` like any other, so an imported layer is checked as a written one is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from minillm.config import fields, parse
from minillm.config.schema import BlockConfig, ModelConfig, SizeConfig

Layer = dict[str, Any]
"""One layer's fields as in `model.layers.kinds.<name>`."""


@dataclass(frozen=True)
class Plan:
    """What a family reads out of its config.json."""

    size: dict[str, int]
    """hidden_size, intermediate_size, num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim."""
    block: dict[str, Any]
    layers: Sequence[Layer]
    """One mapping per layer."""
    vocab_size: int
    max_position_embeddings: int
    embedding: dict[str, Any] = field(default_factory=dict)
    """`model.embedding`: position."""

    def plain(self) -> dict[str, Any]:
        """The YAML-like form: kinds with names, and the shortest pattern that gives these layers."""
        return {
            "size": self.size,
            "block": self.block,
            "layers": self.named(),
            "embedding": self.embedding,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_position_embeddings,
        }

    def named(self) -> dict[str, Any]:
        """`model.layers`: kinds and pattern."""
        return named_layers(self.layers)

    def model_config(self) -> tuple[ModelConfig, tuple[str, ...]]:
        """The checked configuration, and warnings for settings without effect."""
        plain = self.plain()
        size = SizeConfig(**self.size, seq_len=self.max_position_embeddings, window=self.max_position_embeddings)
        model = {"layers": plain["layers"], "embedding": self.embedding}
        block = fields.build(BlockConfig, self.block, "block")
        return parse.model_config(model, size, block, self.max_position_embeddings, self.vocab_size)


def named_layers(layers: Sequence[Layer]) -> dict[str, Any]:
    """kinds and pattern. Windowed layers are `local`, full ones among them `global`, else `full`, or `rope` and `nope`.

    Different layers that would have one name are numbered: local, local2, ...
    """
    distinct: list[Layer] = []
    for layer in layers:
        if layer not in distinct:
            distinct.append(layer)
    names: list[str] = []
    for layer in distinct:
        stem = _stem(layer, distinct)
        taken = sum(name.rstrip("0123456789") == stem for name in names)
        names.append(stem if not taken else f"{stem}{taken + 1}")
    order = [names[distinct.index(layer)] for layer in layers]
    return {"kinds": dict(zip(names, distinct, strict=True)), "pattern": shortest(order)}


def shortest(order: Sequence[str]) -> list[str]:
    """The shortest pattern that gives these kinds, one per layer, when it is cycled."""
    period = next(p for p in range(1, len(order) + 1) if all(order[i] == order[i % p] for i in range(len(order))))
    return list(order[:period])


def _stem(layer: Layer, distinct: Sequence[Layer]) -> str:
    def narrow(one: Mapping[str, Any]) -> bool:
        return one.get("window") is not None or one.get("chunk") is not None

    if narrow(layer):
        return "local"
    if any(narrow(other) for other in distinct):
        return "global"
    if len({_scheme(other) for other in distinct}) > 1:
        return _scheme(layer)
    return "full"


def _scheme(layer: Mapping[str, Any]) -> str:
    position = layer["position"]
    return position if isinstance(position, str) else str(position["scheme"])
