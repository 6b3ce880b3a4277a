"""What becomes of each tensor of a model when a run begins with it: kept, resized, dropped, or new.

Parameters are matched by name and shape, so that another layer plan keeps all that the two have in common.

    transfer = Transfer.between(shapes_of_source, cfg.model, allow=("interpolate",))     # raises ConfigError
    print(transfer.describe())
    decoder.load_state_dict(transfer.weights(source.weights, cfg.model, cfg.seed))
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from minillm.config.plan_warnings import ranges
from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError
from minillm.model.decoder import build_model

Shapes = Mapping[str, tuple[int, ...]]
POSITION_TABLE = "embed_positions.table.weight"
"""The one place where another length means another shape."""


@dataclass(frozen=True)
class Transfer:
    """Names and shapes by fate, each in the model's order."""

    kept: Shapes
    resized: Shapes
    """Position tables of another length, with the new shape."""
    new: Shapes
    """In the model asked for only: they begin as in any run, by seed and name."""
    dropped: Shapes
    """In the source only."""

    @classmethod
    def between(cls, source: Shapes, model: ModelConfig, allow: Collection[str] = ()) -> Transfer:
        """Compare the source's tensors with those that `model` needs; `allow` as `init_from_allow`.

        Raises:
            ConfigError: a tensor has another shape and may not be fitted, or nothing at all is kept.
        """
        target = {name: tuple(t.shape) for name, t in build_model(model, device="meta").state_dict().items()}
        kept = {name: shape for name, shape in target.items() if source.get(name) == shape}
        differing = {name: shape for name, shape in target.items() if name in source and name not in kept}
        for name, shape in differing.items():
            _check_shapes(name, source[name], shape, allow)
        if not kept:
            raise ConfigError(
                f"init_from: nothing is kept. None of its {len(source)} tensors ({', '.join(list(source)[:3])}, ...) "
                "has a place in the model asked for."
            )
        return cls(
            kept=kept,
            resized=differing,
            new={name: shape for name, shape in target.items() if name not in source},
            dropped={name: shape for name, shape in source.items() if name not in target},
        )

    def weights(self, source: Mapping[str, Tensor], model: ModelConfig, seed: int) -> dict[str, Tensor]:
        """The state dict of `model` to begin with, in float32."""
        start = {name: value.detach() for name, value in build_model(model, seed=seed).state_dict().items()}
        for name in self.kept:
            start[name].copy_(source[name])
        for name, shape in self.resized.items():
            start[name].copy_(_fit(source[name], shape[0]))
        return start

    def to_dict(self) -> dict[str, Any]:
        """Every tensor with its shape, for init_from.json."""
        fates = {"kept": self.kept, "resized": self.resized, "new": self.new, "dropped": self.dropped}
        return {fate: {name: list(shape) for name, shape in shapes.items()} for fate, shapes in fates.items()}

    def describe(self) -> list[str]:
        """Lines for the screen: tensors of layers together, then counts."""
        lines = []
        for fate, shapes in (
            ("kept", self.kept), ("resized", self.resized), ("new", self.new), ("dropped", self.dropped)
        ):  # fmt: skip
            for index, text in enumerate(grouped(shapes)):
                lines.append(f"  {fate if index == 0 else '':<8} {text}")
        counts = [
            _count(fate, shapes) for fate, shapes in (("kept", self.kept), ("new", self.new), ("dropped", self.dropped))
        ]
        if self.resized:
            counts.insert(1, _count("resized", self.resized))
        return [*lines, f"  {'total':<8} {', '.join(counts)}"]


def grouped(names: Iterable[str]) -> list[str]:
    """``layers 0-11: attention.qkv_proj.weight, mlp.up_proj.weight``: layers with the same tensors in one line."""
    layers: dict[str, list[int]] = {}
    outside = []
    for name in names:
        match = re.fullmatch(r"layers\.(\d+)\.(.+)", name)
        if match is None:
            outside.append(name)
        else:
            layers.setdefault(match.group(2), []).append(int(match.group(1)))
    together: dict[tuple[int, ...], list[str]] = {}
    for rest, indices in layers.items():
        together.setdefault(tuple(indices), []).append(rest)
    lines = [f"{ranges(indices)}: {', '.join(rests)}" for indices, rests in together.items()]
    return ([", ".join(outside)] if outside else []) + lines


def _count(fate: str, shapes: Shapes) -> str:
    numbers = sum(math.prod(shape) for shape in shapes.values())
    return f"{len(shapes)} tensors {fate} ({numbers:,} numbers)" if shapes else f"none {fate}"


def _check_shapes(name: str, given: tuple[int, ...], needed: tuple[int, ...], allow: Collection[str]) -> None:
    if name != POSITION_TABLE or given[1:] != needed[1:]:
        raise ConfigError(
            f"init_from: {name} has the shape {list(given)} there and {list(needed)} in the model asked for. "
            "Shapes must agree: change the plan or the sizes so that they do."
        )
    word, what = ("interpolate", "stretched to the new length") if given[0] < needed[0] else ("crop", "cut")
    if word not in allow:
        raise ConfigError(
            f"init_from: the position table {name} has {given[0]} rows there and {needed[0]} in the model asked for "
            f"(data.seq_len). Give data.seq_len={given[0]}, or init_from_allow=[{word}] to have it {what}."
        )


def _fit(table: Tensor, length: int) -> Tensor:
    """A trained position table with `length` rows."""
    from minillm.position.learned import interpolate_table

    return table[:length] if length <= table.shape[0] else interpolate_table(table, length)
