"""Two model configurations compared by what they compute: names, initial weights and backends do not count."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from minillm.config.layers import LayerSpec
from minillm.config.plan_warnings import ranges
from minillm.config.schema import ModelConfig
from minillm.position.temperature import TemperatureScheme, as_mapping

NAMES_ONLY = ("index", "kind")
START_ONLY = ("initializer_range", "depth_scaled_init")


def differences(asked: ModelConfig, got: ModelConfig, name: str) -> list[str]:
    """What `asked` has and `got`, which the family `name` would make of it, has otherwise; empty where none is."""
    out = [
        f"{key} is {getattr(asked, key)}, {name} would have {getattr(got, key)}"
        for key in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "max_position_embeddings")
        if getattr(asked, key) != getattr(got, key)
    ]
    ours, theirs = _block(asked), _block(got)
    for key, value in ours.items():
        if not _alike(value, theirs[key]):
            out.append(f"block.{key} is {_words(value)}, {name} has {_words(theirs[key])}")
    if asked.embedding_position != got.embedding_position:
        out.append(
            f"embedding.position is {_words(asked.embedding_position)}, {name} has {_words(got.embedding_position)}"
        )
    return out + _layers(asked.layers, got.layers, name)


def _layers(asked: Sequence[LayerSpec], got: Sequence[LayerSpec], name: str) -> list[str]:
    """Reasons with the layers that share them."""
    grouped: dict[str, list[int]] = {}
    for mine, other in zip(asked, got, strict=False):
        ours, theirs = _layer(mine), _layer(other)
        for key, value in ours.items():
            if not _alike(value, theirs[key]):
                reason = f"{key} is {_words(value)}, {name} would have {_words(theirs[key])}"
                grouped.setdefault(reason, []).append(mine.index)
    return [f"{ranges(indices)}: {reason}" for reason, indices in grouped.items()]


def _block(model: ModelConfig) -> dict[str, Any]:
    block = model.block
    out = {f.name: getattr(block, f.name) for f in dataclasses.fields(block) if f.name not in START_ONLY}
    if out["embedding_scale"] == "sqrt_hidden":
        out["embedding_scale"] = math.sqrt(model.hidden_size)
    for key in ("embedding_scale", "logit_scale", "residual_scale"):
        if out.get(key) == 1:
            out[key] = None
    return out


def _layer(spec: LayerSpec) -> dict[str, Any]:
    out = {f.name: getattr(spec, f.name) for f in dataclasses.fields(spec) if f.name not in NAMES_ONLY}
    out["scale"] = spec.score_scale
    return out


def _alike(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-12)
    return bool(a == b)


def _words(value: Any) -> str:
    """A value as the plan would say it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return f"{value:.6g}"
    if hasattr(value, "scheme"):
        fields = [f"{f.name} {_words(getattr(value, f.name))}" for f in dataclasses.fields(value) if _said(value, f)]
        return value.scheme + (f" ({', '.join(fields)})" if fields else "")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        plain = as_mapping(value) if isinstance(value, TemperatureScheme) else dataclasses.asdict(value)
        return "{" + ", ".join(f"{k}: {_words(v)}" for k, v in plain.items() if v is not None) + "}"
    return str(value)


def _said(value: Any, field: dataclasses.Field[Any]) -> bool:
    return field.name == "theta" or getattr(value, field.name) != field.default
