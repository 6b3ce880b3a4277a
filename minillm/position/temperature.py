"""Query temperature: a factor on the queries (so on the logits) that may depend on position or head.

A temperature is one dataclass under `register_temperature`, like a position scheme, and has a `factor` (where position
alone decides: `PositionTemperature`) or makes a module of its own (where it is learned: temperature_learned.py). It
applies to rotated layers as well as to NoPE layers. Positions count within the document.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.errors import ConfigError, nearest
from minillm.position.base import LayerShape


class QueryScale(nn.Module):
    """Runtime of a temperature: the factor for each query, broadcast against (B, H, T, K)."""

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B H T 1"]:
        raise NotImplementedError


@dataclass(frozen=True)
class TemperatureScheme:
    """Spec of a temperature; subclasses add fields (the YAML fields) and `make`."""

    type: ClassVar[str]

    def validate(self, layer: LayerShape) -> None:
        """Raise ConfigError naming field, value and what is allowed; the caller prefixes the layer."""

    def make(self, layer: LayerShape) -> QueryScale:
        raise NotImplementedError

    def summary(self) -> str:
        """The cell of the layer table, e.g. ``llama4(scale=0.1, floor=8192)``."""
        values = ((f.name, getattr(self, f.name)) for f in dataclasses.fields(self))
        fields = ", ".join(f"{name}={value:g}" for name, value in values if value is not None)
        return f"{self.type}({fields})" if fields else self.type


S = TypeVar("S", bound=type[TemperatureScheme])
TEMPERATURES: dict[str, type[TemperatureScheme]] = {}


def register_temperature(name: str) -> Callable[[S], S]:
    """Class decorator: make a temperature known to YAML under `name`."""

    def add(cls: S) -> S:
        cls.type = name
        TEMPERATURES[name] = cls
        return cls

    return add


def temperature_class(name: str, where: str) -> type[TemperatureScheme]:
    if name not in TEMPERATURES:
        known = ", ".join(sorted(TEMPERATURES))
        raise ConfigError(f"{where}: unknown temperature '{name}'.{nearest(name, TEMPERATURES)} Known: {known}.")
    return TEMPERATURES[name]


@dataclass(frozen=True)
class PositionTemperature(TemperatureScheme):
    """A temperature that is a fixed function of the position alone."""

    def factor(self, position: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        raise NotImplementedError

    def make(self, layer: LayerShape) -> QueryScale:
        return ScaleByPosition(self)


class ScaleByPosition(QueryScale):
    """Runtime of `PositionTemperature`, in float32 (positions are exact up to 2**24)."""

    def __init__(self, scheme: PositionTemperature) -> None:
        super().__init__()
        self.scheme = scheme

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B H T 1"]:
        return self.scheme.factor(position.to(torch.float32))[:, None, :, None]


@register_temperature("uniform")
@dataclass(frozen=True)
class Uniform(PositionTemperature):
    """q *= scale, one constant for all heads and positions: lambda = scale / sqrt(head_dim) (arXiv 2404.12224).

    There it is set on a trained NoPE model for texts beyond its training length: 1.2 at twice that length, 1.5 at four
    times, 1.8 at eight times (the scripts of AntNLP/nope_head_scale; trained at 2048).
    """

    scale: float
    """The constant; 1 changes nothing."""

    def validate(self, layer: LayerShape) -> None:
        if not self.scale > 0:
            raise ConfigError(f"temperature.scale = {self.scale!r}: must be above 0.")

    def factor(self, position: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return torch.full_like(position, self.scale)


@register_temperature("llama4")
@dataclass(frozen=True)
class Llama4(PositionTemperature):
    """q *= 1 + scale * log(1 + floor((pos + 1) / floor)), pos from 0 (transformers, modeling_llama4.py)."""

    scale: float = 0.1
    """How fast the factor grows."""
    floor: float = 8192.0
    """Tokens from one step to the next; released: the length of Llama 4's chunks."""

    def validate(self, layer: LayerShape) -> None:
        _check_steps(self.scale, self.floor)

    def factor(self, position: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return 1 + self.scale * torch.log1p(torch.floor((position + 1) / self.floor))


@register_temperature("ministral")
@dataclass(frozen=True)
class Ministral(PositionTemperature):
    """q *= 1 + scale * log(1 + floor(pos / floor)), pos from 0 (transformers, modeling_ministral3.py).

    Llama 4's form without its +1, so a step comes one position later. Ministral 3 has it on all layers, which are
    rotated; the released floor is 16384, the length before its context was extended.
    """

    scale: float = 0.1
    """How fast the factor grows."""
    floor: float = 16384.0
    """Tokens from one step to the next."""

    def validate(self, layer: LayerShape) -> None:
        _check_steps(self.scale, self.floor)

    def factor(self, position: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return 1 + self.scale * torch.log1p(torch.floor(position / self.floor))


def _check_steps(scale: float, floor: float) -> None:
    if not scale >= 0:
        raise ConfigError(f"temperature.scale = {scale!r}: must not be negative, or the factor falls below 0 far on.")
    if not floor > 0:
        raise ConfigError(f"temperature.floor = {floor!r}: must be above 0.")


@register_temperature("log_n")
@dataclass(frozen=True)
class LogN(PositionTemperature):
    """q *= log_base(base + pos), at least 1 (SWAN, arXiv 2504.08719, where base is fitted after training)."""

    base: float = 362.0
    """The factor is 2 at position base * (base - 1); the smaller, the faster it grows."""

    def validate(self, layer: LayerShape) -> None:
        if not self.base > 1:
            raise ConfigError(f"temperature.base = {self.base!r}: must be above 1.")

    def factor(self, position: Float[Tensor, "B T"]) -> Float[Tensor, "B T"]:
        return torch.log(self.base + position) / math.log(self.base)


def as_mapping(temperature: TemperatureScheme) -> dict[str, Any]:
    """The YAML form of a temperature, for layers.json."""
    return {"type": temperature.type, **dataclasses.asdict(temperature)}
