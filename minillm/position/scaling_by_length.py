"""RoPE scaling that depends on the length in use: dynamic NTK and LongRoPE.

Up to the trained length L both leave a document alone (LongRoPE: with its short factors), beyond it every frequency of
the document changes, that of its first token too. Nothing is remembered from call to call: the length is that of the
token's document in the call at hand (attention/lengths.py), so a long text leaves no trace in the next short one, and
neighbours in a batch or a packed row do not matter.

Keys in a cache were rotated, and the states below them computed, at the length of their time. Where the frequencies of
now are other ones, no rotation afterwards makes the cached call equal to the uncached one in a model of more than one
layer: it is refused (position/rope.py). What remains exact is a document within L, and under LongRoPE one whose first
call was beyond L already.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from minillm.errors import ConfigError
from minillm.position.scaling import Scaling, _require, _require_length, plain_frequencies, register_scaling


@dataclass(frozen=True)
class ScalingByLength(Scaling):
    """Base of the types whose frequencies change when the length passes `original_max_position_embeddings`."""

    original_max_position_embeddings: int
    """Length L up to which nothing changes; as a rule the trained one."""

    depends_on_length = True

    def validate(self, theta: float, dim: int) -> None:
        super().validate(theta, dim)
        _require_length(self.original_max_position_embeddings)


@register_scaling
@dataclass(frozen=True)
class DynamicNTK(ScalingByLength):
    """NTK-aware scaling by as much as the length n needs: base b * (f * n / L - (f - 1)) ** (D / (D - 2)), n >= L.

    `dynamic` of transformers (modeling_rope_utils.py, where L is max_position_embeddings). At n = L it changes nothing;
    factor f = 1 divides the slowest frequency by n / L, a larger one by more.
    """

    type: Literal["dynamic_ntk"] = "dynamic_ntk"

    def base(self, theta: float, dim: int, seq_len: int) -> float:
        """The base at `seq_len` tokens."""
        trained = self.original_max_position_embeddings
        grown = self.factor * max(seq_len, trained) / trained - (self.factor - 1)
        return theta * grown ** (dim / (dim - 2))

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        # Exactly the plain ones up to L, whatever rounding would make of f - (f - 1).
        if seq_len <= self.original_max_position_embeddings:
            return plain_frequencies(theta, dim)
        return plain_frequencies(self.base(theta, dim, seq_len), dim)

    def validate(self, theta: float, dim: int) -> None:
        super().validate(theta, dim)
        if dim < 4:
            raise ConfigError(
                f"position.scaling.type = 'dynamic_ntk': needs at least 4 rotated channels, this layer has {dim}."
            )


@register_scaling
@dataclass(frozen=True)
class LongRoPE(ScalingByLength):
    """Each frequency divided by a number of its own: one list up to L, another beyond it (arXiv 2402.13753, where a
    search finds them).

    Cosines and sines are multiplied by sqrt(1 + ln f / ln L) at every length (Phi-3; transformers,
    modeling_rope_utils.py).
    """

    short_factor: tuple[float, ...] | float
    """Divides the frequencies of documents up to L: a number per pair, or one number for all pairs."""
    long_factor: tuple[float, ...] | float
    """The same for documents beyond L."""
    attention_factor: float | None = None
    """Instead of the factor that follows from f and L."""
    type: Literal["longrope"] = "longrope"

    def frequencies(self, theta: float, dim: int, seq_len: int) -> list[float]:
        factor = self.long_factor if seq_len > self.original_max_position_embeddings else self.short_factor
        plain = plain_frequencies(theta, dim)
        divisors = factor if isinstance(factor, tuple) else (factor,) * len(plain)
        return [f / divisor for f, divisor in zip(plain, divisors, strict=True)]

    @property
    def amplitude(self) -> float:
        if self.attention_factor is not None:
            return self.attention_factor
        return math.sqrt(1 + math.log(self.factor) / math.log(self.original_max_position_embeddings))

    def validate(self, theta: float, dim: int) -> None:
        super().validate(theta, dim)
        length = self.original_max_position_embeddings
        _require(length >= 2, "original_max_position_embeddings", length, "must be at least 2")
        for name in ("short_factor", "long_factor"):
            factor = getattr(self, name)
            if isinstance(factor, tuple) and len(factor) != dim // 2:
                raise ConfigError(
                    f"position.scaling.{name} has {len(factor)} numbers: this layer rotates {dim} channels, so give "
                    f"{dim // 2}, one per pair, or a single number for all pairs."
                )
            numbers = factor if isinstance(factor, tuple) else (factor,)
            _require(all(number > 0 for number in numbers), name, factor, "must be above 0")
        given = self.attention_factor
        _require(given is None or given > 0, "attention_factor", given, "must be above 0, or null")
