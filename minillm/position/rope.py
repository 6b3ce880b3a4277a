"""RoPE: queries and keys rotated by angles position * frequency (Su et al. 2021, arXiv 2104.09864).

Everything is per layer: base `theta`, scaling, how much of a head is rotated, and which channels form a pair. Tables
are computed at each call from the positions given, so there is no longest length and no buffer that could be cast to
half, left empty by a meta-device build, or missing from a checkpoint. Layers of equal frequencies share one table.
Where a scaling depends on the length in use, that is the length of the token's own document in the call at hand.

Frequencies are computed in float64 and rounded to float32 once; angles and the rotation itself are float32.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.attention.lengths import Length, Lengths, context_lengths, document_lengths
from minillm.attention.tokens import StepContext, Tokens
from minillm.errors import CacheNotExact, ConfigError
from minillm.position.base import LayerPosition, LayerShape, Place, PositionScheme, Rotary, register
from minillm.position.scaling import Scaling, plain_frequencies


@register("rope")
@dataclass(frozen=True)
class RoPE(PositionScheme):
    """Rotary position. The frequency of pair i of R rotated channels is theta ** (-2i / R)."""

    place: ClassVar[Place] = "rotation"

    theta: float = 10000.0
    """The base: the larger, the slower the slow pairs turn."""
    scaling: Scaling | None = None
    """Changed frequencies for longer contexts: `{type: linear | yarn | ..., factor: ...}` (position/scaling.py and
    scaling_by_length.py)."""
    partial_rotary_factor: float = 1.0
    """Share of a head that is rotated: int(head_dim * factor) channels; 0 rotates nothing, which is NoPE."""
    rule: Literal["neox", "proportional"] = "neox"
    """neox: the first channels are rotated, frequencies spread over them, the rest passes through. proportional
    (p-RoPE, arXiv 2410.06205): frequencies spread over the whole head, the slowest ones are set to 0."""
    layout: Literal["half", "interleaved"] = "half"
    """Pairs are channels (i, i + R/2) as in Llama, or (2i, 2i + 1) as in GPT-J and Cohere."""

    def rotary_dim(self, head_dim: int) -> int:
        """Channels of each head that the tables cover; even."""
        share = self.partial_rotary_factor
        if self.rule == "proportional":
            return head_dim if int(share * head_dim // 2) else 0
        return int(head_dim * share)

    def frequencies(self, head_dim: int, seq_len: int) -> tuple[float, ...]:
        """(rotary_dim/2,) radians per token, float64, after scaling; `seq_len` is the length in use."""
        dim = self.rotary_dim(head_dim)
        if self.scaling is None:
            out = plain_frequencies(self.theta, dim)
        else:
            out = self.scaling.frequencies(self.theta, dim, seq_len)
        if self.rule == "proportional":
            turning = int(self.partial_rotary_factor * head_dim // 2)
            out = out[:turning] + [0.0] * (len(out) - turning)
        return tuple(out)

    @property
    def attention_factor(self) -> float:
        """Multiplies cosines and sines, so the rotated part of q.k by its square (YaRN)."""
        return 1.0 if self.scaling is None else self.scaling.amplitude

    def validate(self, layer: LayerShape) -> None:
        if not self.theta > 1:
            raise ConfigError(
                f"position.theta = {self.theta!r}: must be above 1. For a layer without rotation use `position: nope`."
            )
        share = self.partial_rotary_factor
        if not 0 <= share <= 1:
            raise ConfigError(f"position.partial_rotary_factor = {share!r}: must be from 0 to 1.")
        dim = self.rotary_dim(layer.head_dim)
        if dim % 2:
            raise ConfigError(
                f"position.partial_rotary_factor = {share!r} of head_dim = {layer.head_dim} rotates {dim} channels: "
                f"channels turn in pairs, so their number must be even."
            )
        if dim == 0 and share > 0:
            raise ConfigError(
                f"position.partial_rotary_factor = {share!r} of head_dim = {layer.head_dim} rotates no channel: "
                f"give at least {2 / layer.head_dim:g}, or `position: nope`."
            )
        if self.scaling is not None:
            if dim == 0:
                raise ConfigError(
                    "position.scaling: has no effect with partial_rotary_factor = 0, which rotates nothing."
                )
            self.scaling.validate(self.theta, dim)

    def tells_keys_apart(self, layer: LayerShape) -> bool:
        return self.rotary_dim(layer.head_dim) > 0

    def make(self, layer: LayerShape) -> LayerPosition | None:
        if not self.rotary_dim(layer.head_dim):
            return None
        by_length = self.scaling is not None and self.scaling.depends_on_length
        return RotationByLength(self, layer) if by_length else Rotation(self, layer.head_dim)

    @property
    def cache_limit(self) -> int | None:
        if self.scaling is None or not self.scaling.depends_on_length or self.partial_rotary_factor == 0:
            return None
        limit: int = self.scaling.original_max_position_embeddings  # type: ignore[attr-defined]
        return limit

    def summary(self) -> dict[str, Any]:
        detail = []
        if self.partial_rotary_factor != 1:
            words = "partial" if self.rule == "neox" else "proportional"
            detail.append(f"{words} {self.partial_rotary_factor:g}")
        if self.layout == "interleaved":
            detail.append("interleaved")
        return {
            "theta": self.theta,
            "scaling": None if self.scaling is None else self.scaling.summary(),
            "detail": ", ".join(detail) or None,
        }


def rope_frequencies(position_spec: PositionScheme, head_dim: int, seq_len: int) -> tuple[Float[Tensor, "R2"], float]:
    """Frequencies (rotary_dim/2,) float32 and attention factor of a layer's `spec.position`.

    `seq_len` is the length in use: only scalings that depend on it read it. Raises ConfigError where the scheme is not
    rope, or cannot be had with this head width.
    """
    if not isinstance(position_spec, RoPE):
        name = getattr(position_spec, "scheme", repr(position_spec))
        raise ConfigError(f"rope_frequencies: the scheme is '{name}', only 'rope' has rotary frequencies.")
    position_spec.validate(LayerShape(0, 1, 1, head_dim))
    frequencies = torch.tensor(position_spec.frequencies(head_dim, seq_len), dtype=torch.float32)
    return frequencies, position_spec.attention_factor


class Rotation(LayerPosition):
    """Runtime of `RoPE` for one layer. Holds Python floats only."""

    def __init__(self, scheme: RoPE, head_dim: int) -> None:
        super().__init__()
        self.frequencies = scheme.frequencies(head_dim, 0)
        self.attention_factor = scheme.attention_factor
        self.interleaved = scheme.layout == "interleaved"

    def rotary(self, context: StepContext, tokens: Tokens) -> Rotary:
        if tokens is not context.tokens:
            return self._tables(tokens)
        # Layout is no part of the key: both layouts read the same table.
        return context.once(("rotary", self.frequencies, self.attention_factor), lambda: self._tables(tokens))

    def _tables(self, tokens: Tokens) -> Rotary:
        frequencies = torch.tensor(self.frequencies, dtype=torch.float32, device=tokens.position.device)
        return self._turn(tokens, frequencies)

    def _turn(self, tokens: Tokens, frequencies: Float[Tensor, "*BT R2"]) -> Rotary:
        position = tokens.position.to(torch.float32)
        # An elementwise product, not a matmul: autocast would do a matmul in bf16.
        angle = position[..., None] * frequencies
        cos, sin = angle.cos(), angle.sin()
        if self.attention_factor != 1.0:
            cos, sin = cos * self.attention_factor, sin * self.attention_factor
        return Rotary(cos, sin)

    def rotate(self, x: Float[Tensor, "B N T K"], rotary: Rotary) -> Float[Tensor, "B N T K"]:
        cos, sin = rotary.cos[:, None], rotary.sin[:, None]
        half = cos.shape[-1]
        turned, rest = x[..., : 2 * half], x[..., 2 * half :]
        turned = turned.to(torch.promote_types(x.dtype, torch.float32))
        if self.interleaved:
            first, second = turned[..., 0::2], turned[..., 1::2]
            out = torch.stack((first * cos - second * sin, second * cos + first * sin), dim=-1).flatten(-2)
        else:
            first, second = turned[..., :half], turned[..., half:]
            out = torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
        out = out.to(x.dtype)
        return torch.cat((out, rest), dim=-1) if rest.shape[-1] else out


class RotationByLength(Rotation):
    """Runtime of `RoPE` under a scaling that depends on the length of the token's document."""

    def __init__(self, scheme: RoPE, layer: LayerShape) -> None:
        super().__init__(scheme, layer.head_dim)
        self.layer, self.scheme = layer, scheme
        self._of_scheme = ("rotary", dataclasses.replace(scheme, layout="half"), layer.head_dim)

    def rotary(self, context: StepContext, tokens: Tokens) -> Rotary:
        if tokens is not context.tokens:
            return self._at_lengths(tokens, document_lengths(tokens, None))
        return context.once(self._of_scheme, lambda: self._at_lengths(tokens, context_lengths(context)))

    def _at_lengths(self, tokens: Tokens, lengths: Lengths) -> Rotary:
        sets = [self._at_length(length) for length in lengths.distinct]
        if len(set(sets)) == 1:
            sets = sets[:1]
        frequencies = torch.tensor(sets, dtype=torch.float32, device=tokens.position.device)
        return self._turn(tokens, frequencies[0] if len(sets) == 1 else frequencies[lengths.which])

    def _at_length(self, length: Length) -> tuple[float, ...]:
        """Frequencies of a document, or CacheNotExact where those of its cached tokens were others."""
        frequencies = self.scheme.frequencies(self.layer.head_dim, length.now)
        if length.before and self.scheme.frequencies(self.layer.head_dim, length.before) != frequencies:
            scaling = self.scheme.scaling
            assert scaling is not None
            raise CacheNotExact(
                f"layer {self.layer.index}: position.scaling.type = '{scaling.name}' has other frequencies for a "
                f"document of {length.now} tokens than for the {length.before} that it had when its keys went into "
                f"the cache (original_max_position_embeddings = {self.scheme.cache_limit}): keys and logits of its "
                f"earlier tokens would be others now. Decode without a cache, as minillm.generate does, or use a "
                f"scaling that does not depend on the length (yarn, ntk)."
            )
        return frequencies
