"""RoPE scaling: frequencies changed so that a model trained at one length can be used at a longer one.

In YAML a mapping with `type` and the fields of that type, e.g. ``scaling: {type: yarn, factor: 4,
original_max_position_embeddings: 1024}``. A new type is one dataclass under `register_scaling`. Types that depend on
the length in use are in scaling_by_length.py.

Notation: D rotated channels, b the base theta, L the trained length, s = factor, frequencies b ** (-2i/D) radians per
token; pair i turns r_i = L * frequency_i / 2pi times over the trained length. Everything here is float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from minillm.config.fields import build
from minillm.errors import ConfigError, nearest


def plain_frequencies(theta: float, dim: int) -> list[float]:
    """theta ** (-2i/dim) for the dim/2 pairs."""
    return [theta ** (-2 * i / dim) for i in range(dim // 2)]


@dataclass(frozen=True)
class Scaling:
    """Base of the scaling types. Subclasses add fields, `type` among them, so that it is saved with the rest."""

    factor: float
    """How much longer the context becomes; at least 1."""

    depends_on_length: ClassVar[bool] = False
    """The frequencies are others beyond `original_max_position_embeddings`, a field that such a type has."""

    @property
    def name(self) -> str:
        return self.type  # type: ignore[attr-defined]

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        """The (dim/2,) scaled frequencies; `seq_len` is the length in use."""
        raise NotImplementedError

    @property
    def amplitude(self) -> float:
        """Multiplies cosines and sines."""
        return 1.0

    def validate(self, theta: float, dim: int) -> None:
        """Raise ConfigError for values that make no sense with this base and rotary width."""
        _require(self.factor >= 1, "factor", self.factor, "must be at least 1")

    def summary(self) -> str:
        return f"{self.name} x{self.factor:g}"

    @classmethod
    def from_plain(cls, value: Any, where: str) -> Scaling:
        """The typed form of a YAML mapping; ConfigError for a missing, misspelt or incomplete one."""
        if isinstance(value, Scaling):
            return value
        known = ", ".join(SCALINGS)
        if not isinstance(value, Mapping):
            raise ConfigError(
                f"{where}: expected null or a mapping with `type` and its fields, got {value!r}. Types: {known}."
            )
        if "type" not in value:
            given = ", ".join(str(k) for k in value) or "nothing"
            raise ConfigError(f"{where}.type: missing (given: {given}). Known types: {known}.")
        name = str(value["type"])
        if name not in SCALINGS:
            raise ConfigError(f"{where}.type: unknown type '{name}'.{nearest(name, SCALINGS)} Known: {known}.")
        return build(SCALINGS[name], value, where)


S = TypeVar("S", bound=type[Scaling])
SCALINGS: dict[str, type[Scaling]] = {}


def register_scaling(cls: S) -> S:
    """Class decorator: make a scaling known to YAML under its `type`."""
    SCALINGS[cls.type] = cls  # type: ignore[attr-defined]
    return cls


@register_scaling
@dataclass(frozen=True)
class Linear(Scaling):
    """Position interpolation: every frequency divided by the factor (arXiv 2306.15595)."""

    type: Literal["linear"] = "linear"

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        return [f / self.factor for f in plain_frequencies(theta, dim)]


@register_scaling
@dataclass(frozen=True)
class NTK(Scaling):
    """A larger base, b * s ** (D/(D-2)): the fastest pair keeps its frequency, the slowest is divided by s."""

    type: Literal["ntk"] = "ntk"

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        return plain_frequencies(theta * self.factor ** (dim / (dim - 2)), dim)

    def validate(self, theta: float, dim: int) -> None:
        super().validate(theta, dim)
        if dim < 4:
            raise ConfigError(
                f"position.scaling.type = 'ntk': needs at least 4 rotated channels, this layer has {dim}."
            )


@register_scaling
@dataclass(frozen=True)
class NTKByParts(Scaling):
    """Interpolates slow pairs only, blending by turns r: gamma = clip((r - beta_slow) / (beta_fast - beta_slow)).

    arXiv 2309.00071, section 3.2 (there alpha and beta). YaRN as released blends by the pair's index instead.
    """

    original_max_position_embeddings: int
    """The trained length L."""
    beta_fast: float = 32.0
    """Pairs that turn at least so often within L are kept."""
    beta_slow: float = 1.0
    """Pairs that turn at most so often are divided by the factor."""
    type: Literal["ntk_by_parts"] = "ntk_by_parts"

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        out = []
        for f in plain_frequencies(theta, dim):
            turns = self.original_max_position_embeddings * f / (2 * math.pi)
            keep = min(max((turns - self.beta_slow) / (self.beta_fast - self.beta_slow), 0.0), 1.0)
            out.append(keep * f + (1 - keep) * f / self.factor)
        return out

    def validate(self, theta: float, dim: int) -> None:
        super().validate(theta, dim)
        _require_length(self.original_max_position_embeddings)
        _require_betas(self.beta_fast, self.beta_slow)


@register_scaling
@dataclass(frozen=True)
class YaRN(Scaling):
    """NTK-by-parts with a ramp over the pair's index, and cosines and sines multiplied by 0.1 ln s + 1.

    As the authors' code and `transformers` do it (arXiv 2309.00071; modeling_rope_utils.py).
    """

    original_max_position_embeddings: int
    """The trained length L."""
    beta_fast: float = 32.0
    """Pairs that turn at least so often within L are kept."""
    beta_slow: float = 1.0
    """Pairs that turn at most so often are divided by the factor."""
    truncate: bool = True
    """Round the ends of the ramp outwards to whole pairs; gpt-oss does not."""
    attention_factor: float | None = None
    """Instead of the factor that follows from s."""
    mscale: float | None = None
    """DeepSeek: together with mscale_all_dim, the factor is (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1)."""
    mscale_all_dim: float | None = None
    """See mscale; both or neither."""
    type: Literal["yarn"] = "yarn"

    def ramp(self, theta: float, dim: int) -> tuple[float, float]:
        """Pair indices between which frequencies go from kept to divided."""

        def index_of(turns: float) -> float:
            return dim * math.log(self.original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(theta))

        low, high = index_of(self.beta_fast), index_of(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        return float(max(low, 0)), float(min(high, dim - 1))

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        low, high = self.ramp(theta, dim)
        width = high - low or 0.001
        out = []
        for i, f in enumerate(plain_frequencies(theta, dim)):
            divide = min(max((i - low) / width, 0.0), 1.0)
            out.append(divide * f / self.factor + (1 - divide) * f)
        return out

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        grow = math.log(self.factor)
        if self.mscale is not None and self.mscale_all_dim is not None:
            return (0.1 * self.mscale * grow + 1) / (0.1 * self.mscale_all_dim * grow + 1)
        return 0.1 * grow + 1

    def validate(self, theta: float, dim: int) -> None:
        super().validate(theta, dim)
        _require_length(self.original_max_position_embeddings)
        _require_betas(self.beta_fast, self.beta_slow)
        for name in ("attention_factor", "mscale", "mscale_all_dim"):
            value = getattr(self, name)
            _require(value is None or value > 0, name, value, "must be above 0, or null")
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ConfigError("position.scaling: mscale and mscale_all_dim act only together; give both or neither.")
        if self.attention_factor is not None and self.mscale is not None:
            raise ConfigError("position.scaling: attention_factor and mscale exclude each other; give one of them.")
        low, high = self.ramp(theta, dim)
        if low > high:
            raise ConfigError(
                f"position.scaling.original_max_position_embeddings = {self.original_max_position_embeddings}: with "
                f"theta = {theta:g} and {dim} rotated channels the YaRN ramp is empty (from pair {low:g} to {high:g}). "
                f"Lengths that work lie between about {2 * math.pi * self.beta_slow:.0f} and "
                f"{2 * math.pi * self.beta_fast * theta:.0f}."
            )


@register_scaling
@dataclass(frozen=True)
class Llama3(Scaling):
    """Fast pairs kept, slow pairs divided, a blend between, by wavelength (Llama 3.1; modeling_rope_utils.py)."""

    original_max_position_embeddings: int
    """The trained length L."""
    low_freq_factor: float
    """Pairs that turn less often within L are divided by the factor."""
    high_freq_factor: float
    """Pairs that turn more often are kept."""
    type: Literal["llama3"] = "llama3"

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        out = []
        for f in plain_frequencies(theta, dim):
            turns = self.original_max_position_embeddings * f / (2 * math.pi)
            keep = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
            keep = min(max(keep, 0.0), 1.0)
            out.append(keep * f + (1 - keep) * f / self.factor)
        return out

    def validate(self, theta: float, dim: int) -> None:
        super().validate(theta, dim)
        _require_length(self.original_max_position_embeddings)
        _require(self.low_freq_factor > 0, "low_freq_factor", self.low_freq_factor, "must be above 0")
        above = self.high_freq_factor > self.low_freq_factor
        _require(
            above, "high_freq_factor", self.high_freq_factor, f"must be above low_freq_factor {self.low_freq_factor}"
        )


def _require(ok: bool, field: str, value: object, rule: str) -> None:
    if not ok:
        raise ConfigError(f"position.scaling.{field} = {value!r}: {rule}.")


def _require_length(value: int) -> None:
    _require(value >= 1, "original_max_position_embeddings", value, "must be at least 1")


def _require_betas(fast: float, slow: float) -> None:
    _require(slow > 0, "beta_slow", slow, "must be above 0")
    _require(fast > slow, "beta_fast", fast, f"must be above beta_slow {slow}")
