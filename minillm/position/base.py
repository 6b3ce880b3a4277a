"""What a position scheme is: one frozen dataclass (the spec) and, where it has something to compute, one module.

A scheme is one file: a dataclass whose fields are its YAML fields, decorated with `register`, and an nn.Module (its
runtime) that overrides the hooks of the place at which position enters::

    @register("alibi")
    @dataclass(frozen=True)
    class ALiBi(PositionScheme):
        place = "bias"
        learned: bool = False

        def make(self, layer: LayerShape) -> LayerPosition:
            return ALiBiBias(layer.num_attention_heads)

The layer plan holds the dataclass (``spec.position.scheme == "alibi"``); attention calls the module. Shapes: B batch,
T tokens, H query heads, G key-value heads, K head width.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minillm.attention.tokens import StepContext, Tokens
from minillm.errors import ConfigError, nearest

Place = Literal["nowhere", "rotation", "bias", "relative", "embedding"]
PairBias = Callable[[Tensor, Tensor], Tensor]
"""(head, distance), integers of any one shape, to what is added to the score there, float32."""


class LayerShape(NamedTuple):
    """What a scheme may know of its layer when it validates itself and builds its module."""

    index: int  # type: ignore[assignment]  # hides tuple.index, which nobody calls
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


class Rotary(NamedTuple):
    """Cosines and sines for one set of positions, (B or 1, T, R/2) float32; R dims of each head are rotated."""

    cos: Tensor
    sin: Tensor


class LayerPosition(nn.Module):
    """Runtime of a per-layer scheme. Every hook's default does nothing; a scheme overrides those of its place."""

    shift_invariant: ClassVar[bool] = True
    """The bias depends on differences of positions only, so one block of it serves every block of a banded layer."""

    def rotary(self, context: StepContext, tokens: Tokens) -> Rotary | None:
        """Rotation tables for `tokens`; shared by layers of an equal scheme through `context.once`."""
        return None

    def rotate(self, x: Float[Tensor, "B N T K"], rotary: Rotary) -> Float[Tensor, "B N T K"]:
        """Rotate queries or keys (N heads) by the tables; keys are cached rotated."""
        raise NotImplementedError

    def bias(self, queries: Tokens, keys: Tokens) -> Float[Tensor, "B H Tq Tk"] | None:
        """What is added to the scaled scores, float32, B may be 1; None adds nothing."""
        return None

    def pair_bias(self, device: torch.device) -> PairBias | None:
        """The same as a function of one query head and one distance, |query position - key position|, which a kernel
        computes pair by pair. None where there is no such form; the spec says so by `pairwise`."""
        return None

    def scores(
        self, q: Float[Tensor, "B H Tq K"], k: Float[Tensor, "B H Tk K"], queries: Tokens, keys: Tokens
    ) -> Float[Tensor, "B H Tq Tk"]:
        """Place "relative": what content and distance together add to q.k, before the scale. float32 in and out; each
        query head comes with its own key head."""
        raise NotImplementedError

    def values(
        self, probs: Float[Tensor, "B H Tq Tk"], queries: Tokens, keys: Tokens
    ) -> Float[Tensor, "B H Tq K"] | None:
        """Place "relative": what distance adds to the weighted sum of values; None adds nothing."""
        return None


@dataclass(frozen=True)
class PositionScheme:
    """Spec of a scheme. Subclasses add fields (the YAML fields), `place`, and `make`."""

    scheme: ClassVar[str]
    place: ClassVar[Place]
    score_parts = 1
    """Products of which a score is the sum: 1 is q.k alone. Where nothing else is said, the sum is divided by
    sqrt(head_dim * score_parts)."""
    pairwise: ClassVar[bool] = False
    """Place "bias": its module's `pair_bias` gives a function, so that backend `flex` can compute it."""
    shared = False
    """Layers of an equal scheme and equal `shared_shape` have one module together."""

    def validate(self, layer: LayerShape) -> None:
        """Raise ConfigError naming field, value and what is allowed; the caller prefixes the layer."""

    def make(self, layer: LayerShape) -> LayerPosition | None:
        """The layer's module, or None where there is nothing to compute."""
        return None

    def summary(self) -> dict[str, Any]:
        """Cells of the printed layer table: keys among 'theta', 'scaling', 'detail'."""
        return {}

    def to_dict(self) -> dict[str, Any]:
        """The YAML form: its name, and all of its fields."""
        return {"scheme": self.scheme, **dataclasses.asdict(self)}

    def tells_keys_apart(self, layer: LayerShape) -> bool:
        """Is what position adds to a score different for two vectors of one key? Else a bias on keys learns nothing."""
        return False

    def shared_shape(self, layer: LayerShape) -> tuple[int, ...]:
        """What the shape of a shared module depends on: all that there is of heads, unless a scheme says less."""
        return (layer.num_attention_heads, layer.num_key_value_heads, layer.head_dim)

    def flops_per_token(self, layer: LayerShape, length: int) -> float:
        """Forward FLOPs beyond those of q.k and of the weighted values, averaged over a document of `length` tokens."""
        return 0.0

    @property
    def cache_limit(self) -> int | None:
        """Longest document that can be decoded with a cache; None: any. Beyond it every key depends on the length."""
        return None

    @property
    def bias_key(self) -> Hashable:
        """For biases without parameters: layers of equal keys and equal heads share one bias per step. None: the bias
        belongs to the module, and so to the layers that share it."""
        return None


@dataclass(frozen=True)
class EmbeddingScheme(PositionScheme):
    """A scheme added to the token embeddings (``model.embedding.position``), not to a layer."""

    same_in_all_channels = False
    """It moves all channels of a token alike, which is what a layernorm takes away."""

    def validate_embedding(self, hidden_size: int) -> None:
        """Raise ConfigError naming field, value and what is allowed; the caller prefixes the key."""

    def make_embedding(self, hidden_size: int, max_position_embeddings: int) -> nn.Module:
        """A module from positions (B or 1, T) int64 to (B or 1, T, hidden_size)."""
        raise NotImplementedError

    def max_positions(self, max_position_embeddings: int) -> int | None:
        """The first position that is not defined (a learned table's size), or None where every position is."""
        return None


S = TypeVar("S", bound=type[PositionScheme])
SCHEMES: dict[str, type[PositionScheme]] = {}


def register(name: str) -> Callable[[S], S]:
    """Class decorator: make a scheme known to YAML under `name`."""

    def add(cls: S) -> S:
        if name in SCHEMES and SCHEMES[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"position scheme {name!r} is registered twice")
        cls.scheme = name
        SCHEMES[name] = cls
        return cls

    return add


def scheme_class(name: str, where: str, embedding: bool = False) -> type[PositionScheme]:
    """The dataclass registered as `name`, for a layer or (`embedding=True`) for the embeddings."""
    known = {n: c for n, c in SCHEMES.items() if issubclass(c, EmbeddingScheme) == embedding}
    if name in known:
        return known[name]
    if name in SCHEMES:
        place = "model.embedding.position" if not embedding else "a layer's `position`"
        raise ConfigError(f"{where}: scheme '{name}' does not belong here; it goes in {place}.")
    raise ConfigError(
        f"{where}: unknown position scheme '{name}'.{nearest(name, known)} Known: {', '.join(sorted(known))}."
    )
