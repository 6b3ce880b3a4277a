"""minillm: this project's own form, for any plan at all; transformers loads it after `import minillm.hub`.

config.json holds the plain values of the model: sizes, `block`, `embedding`, and `layers` with one mapping per layer,
as in a run's layers.json. It is read through the same door as a YAML file. Tensors have our names behind `model.`.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.hub.family import Family, register, written_sizes
from minillm.hub.links import Link, same
from minillm.hub.plan import Layer, Plan, shortest
from minillm.hub.reader import Reader
from minillm.model.decoder import build_model

FORMAT = 1
"""`minillm_format` in config.json."""
SIZES = (
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
)  # fmt: skip
MODEL_WIDE = ("num_attention_heads", "head_dim")
"""What a layer's mapping repeats of the model."""


@dataclass(frozen=True)
class OwnPlan(Plan):
    """A plan whose layers keep the names of their kinds."""

    names: Sequence[str] = ()

    def named(self) -> dict[str, Any]:
        return with_names(self.names, self.layers)


def with_names(names: Sequence[str], layers: Sequence[Layer]) -> dict[str, Any]:
    """kinds and pattern; layers of one name that differ, as after an override, are numbered: local, local2, ..."""
    kinds: dict[str, Layer] = {}
    order = []
    for stem, layer in zip(names, layers, strict=True):
        name, count = stem, 1
        while kinds.get(name, layer) != layer:
            count += 1
            name = f"{stem}{count}"
        kinds[name] = layer
        order.append(name)
    return {"kinds": kinds, "pattern": shortest(order)}


@register
class Own(Family):
    name, rank, architecture = "minillm", 99, "MinillmForCausalLM"
    by_name_only = True
    layout = None
    head, embedding = "model.lm_head.weight", "model.embed_tokens.weight"
    ignored_tensors = r"(?!)"

    def plan(self, config: Reader) -> Plan:
        config.only("minillm_format", None, FORMAT)
        size = {name: self._size(config, name) for name in SIZES}
        block = self._needed(config, "block", dict)
        tied = block.get("tie_word_embeddings", True)
        config.only("tie_word_embeddings", tied, tied)
        given = self._needed(config, "layers", tuple[dict, ...])
        if len(given) != size["num_hidden_layers"]:
            raise config.error("num_hidden_layers", f"`layers` has {len(given)} entries")
        names, layers = zip(*(self._layer(config, i, layer, size) for i, layer in enumerate(given)), strict=True)
        return OwnPlan(
            size,
            block,
            layers,
            self._size(config, "vocab_size"),
            self._size(config, "max_position_embeddings"),
            config.take("embedding", dict | None, None) or {},
            names,
        )

    @staticmethod
    def _size(config: Reader, name: str) -> int:
        value = config.size(name, None)
        if value is None:
            raise config.error(name, "missing")
        return int(value)

    @staticmethod
    def _needed(config: Reader, name: str, hint: Any) -> Any:
        value = config.take(name, hint, None)
        if value is None:
            raise config.error(name, "missing")
        return value

    @staticmethod
    def _layer(config: Reader, index: int, given: Mapping[str, Any], size: Mapping[str, int]) -> tuple[str, Layer]:
        """Kind and fields of one entry of `layers`."""
        fields = dict(given)
        for key, value in {"index": index, **{name: size[name] for name in MODEL_WIDE}}.items():
            if fields.pop(key, value) != value:
                raise config.error("layers", f"entry {index} has {key} {given[key]!r}, which must be {value}")
        if "position" not in fields:
            raise config.error("layers", f"entry {index} has no position")
        return str(fields.pop("kind", "layer")), fields

    def config(self, model: ModelConfig) -> dict[str, Any]:
        embedding = model.embedding_position
        values = {
            "minillm_format": FORMAT,
            **written_sizes(model),
            "tie_word_embeddings": model.block.tie_word_embeddings,
            "block": dataclasses.asdict(model.block),
            "embedding": {"position": None if embedding is None else embedding.to_dict()},
            "layers": [LayerSpec.to_dict(spec) for spec in model.layers],
        }
        plain: dict[str, Any] = json.loads(json.dumps(values))  # lists where ours are tuples, as a file has them
        return plain

    def links(self, model: ModelConfig) -> list[Link]:
        return [same(name, f"{self.prefix}{name}") for name in build_model(model, device="meta").state_dict()]
