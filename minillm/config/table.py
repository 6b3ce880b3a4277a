"""The expanded layer plan as people read it (printed at start) and as tools read it (layers.json)."""

from __future__ import annotations

import dataclasses
from typing import Any

from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.model.cost import cost
from minillm.position.base import EmbeddingScheme

COLUMNS = (
    "layer", "kind", "position", "theta", "scaling", "window", "qk_norm", "temperature", "also", "kv_heads",
    "kv_B/token", "FLOPs",
)  # fmt: skip


def rows(config: ModelConfig, seq_len: int, bytes_per_value: int = 4) -> list[tuple[str, ...]]:
    """One row of cells per layer, in the order of COLUMNS; FLOPs is the layer's share of the model's."""
    total = cost(config, seq_len, bytes_per_value)
    return [
        (*_cells(spec), str(part.kv_bytes_per_token), f"{100 * part.flops_share:.1f}%")
        for spec, part in zip(config.layers, total.layers, strict=True)
    ]


def _cells(spec: LayerSpec) -> tuple[str, ...]:
    summary = spec.position.summary()
    name = spec.position.scheme + (f" ({summary['detail']})" if summary.get("detail") else "")
    theta = summary.get("theta")
    window = "full" if spec.reach is None else str(spec.window) if spec.window is not None else f"chunk {spec.chunk}"
    if spec.sink_tokens is not None:
        window += f" + first {spec.sink_tokens}"
    return (
        str(spec.index),
        spec.kind,
        name,
        "-" if theta is None else f"{theta:g}",
        str(summary.get("scaling") or "-"),
        window,
        "-" if spec.qk_norm is None else spec.qk_norm.summary(),
        "-" if spec.temperature is None else spec.temperature.summary(),
        ", ".join(_also(spec)) or "-",
        str(spec.num_key_value_heads),
    )


def _also(spec: LayerSpec) -> list[str]:
    """What a layer has that few layers have."""
    numbers = (("softcap", spec.softcap), ("scale", spec.scale))
    flags = ("sink_logits", "gate", "shared_qk", "qkv_bias")
    return [f"{name} {value:g}" for name, value in numbers if value is not None] + [
        name for name in flags if getattr(spec, name)
    ]


def layer_table(config: ModelConfig, seq_len: int, bytes_per_value: int = 4) -> str:
    """The table as aligned text; columns in which no layer has anything are left out."""
    body = rows(config, seq_len, bytes_per_value)
    keep = [i for i, name in enumerate(COLUMNS) if name in ("theta", "window") or any(row[i] != "-" for row in body)]
    table = [[COLUMNS[i] for i in keep], *([row[i] for i in keep] for row in body)]
    widths = [max(len(row[i]) for row in table) for i in range(len(keep))]
    lines = ["  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in table]
    if config.embedding_position is not None:
        lines.append(f"token embeddings carry position: {_embedding(config.embedding_position)}")
    return "\n".join(lines)


def _embedding(scheme: EmbeddingScheme) -> str:
    fields = ", ".join(f"{f.name}={getattr(scheme, f.name)}" for f in dataclasses.fields(scheme))
    return f"{scheme.scheme} ({fields})" if fields else scheme.scheme


def layers_json(config: ModelConfig, seq_len: int, bytes_per_value: int = 4) -> dict[str, Any]:
    """The plan in plain values, with each layer's cost at the training length."""
    total = cost(config, seq_len, bytes_per_value)
    embedding = config.embedding_position
    return {
        "embedding_position": None if embedding is None else embedding.to_dict(),
        "seq_len": seq_len,
        "layers": [
            {
                **spec.to_dict(),
                "kv_bytes_per_token": part.kv_bytes_per_token,
                "flops_share": part.flops_share,
            }
            for spec, part in zip(config.layers, total.layers, strict=True)
        ],
    }
