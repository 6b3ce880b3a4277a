"""Specs, inputs and layouts of tokens that the attention tests share, and one way to run a backend on them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from minillm.attention.backends import attend
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.position.alibi import ALiBi
from minillm.position.base import LayerPosition, LayerShape, Place, PositionScheme
from minillm.position.nope import NoPE


@dataclass(frozen=True)
class LearnedDistances(PositionScheme):
    """A trained bias per head and distance: what a scheme with parameters asks of the backends."""

    scheme: ClassVar[str] = "learned_distances"
    place: ClassVar[Place] = "bias"

    def make(self, layer: LayerShape) -> LayerPosition:
        return DistanceTable(layer.num_attention_heads)


class DistanceTable(LayerPosition):
    def __init__(self, heads: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(heads, 12, generator=torch.Generator().manual_seed(3)))

    def bias(self, queries: Tokens, keys: Tokens) -> Tensor:
        distance = (queries.position[:, :, None] - keys.position[:, None, :]).clamp(0, 11)
        return self.table[:, distance].transpose(0, 1)


@dataclass(frozen=True)
class AbsoluteBias(PositionScheme):
    """A bias that does not depend on distances alone, so that no strip or block of it may serve others."""

    scheme: ClassVar[str] = "absolute_bias"
    place: ClassVar[Place] = "bias"

    def make(self, layer: LayerShape) -> LayerPosition:
        return Wave(layer.num_attention_heads)


class Wave(LayerPosition):
    shift_invariant = False

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def bias(self, queries: Tokens, keys: Tokens) -> Tensor:
        wave = torch.sin(queries.position[:, :, None] * 0.7 + keys.position[:, None, :] * 0.3)
        return wave[:, None] * torch.arange(1, self.heads + 1)[:, None, None]


BIASES: dict[str, PositionScheme] = {
    "no bias": NoPE(),
    "alibi": ALiBi(),
    "learned bias": LearnedDistances(),
    "absolute bias": AbsoluteBias(),
}


def layer(
    window: int | None = None,
    chunk: int | None = None,
    heads: int = 4,
    kv_heads: int = 2,
    head_dim: int = 8,
    position: PositionScheme | None = None,
    **fields: Any,
) -> LayerSpec:
    return LayerSpec(0, "tested", position or NoPE(), heads, kv_heads, head_dim, window=window, chunk=chunk, **fields)


def random_qkv(spec: LayerSpec, batch: int, length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v as projections give them: (B, N, T, K) views of (B, T, N, K) memory."""
    heads = (spec.num_attention_heads, spec.num_key_value_heads, spec.num_key_value_heads)
    return [torch.randn(batch, length, n, spec.head_dim, dtype=dtype).transpose(1, 2) for n in heads]


def sink_logits(spec: LayerSpec) -> Tensor | None:
    """A logit for each head, some of which outweigh all keys, where the layer has them."""
    return torch.linspace(-2, 4, spec.num_attention_heads).requires_grad_() if spec.sink_logits else None


def _packed(batch: int, length: int) -> Tensor:
    """Documents with other boundaries in each row."""
    place = torch.arange(length)
    return torch.stack([(place + 3 * row) // (length // 3 + 2 + row) for row in range(batch)])


def _padded(batch: int, length: int) -> Tensor:
    """Two documents; the first row is padded on the left, the others on the right."""
    ids = (torch.arange(length) >= length // 2).long().expand(batch, length).clone()
    ids[0, : length // 4] = -1
    ids[1:, length - length // 5 - 1 :] = -1
    return ids


Layout = Callable[[int, int], Tokens]
LAYOUTS: dict[str, Layout] = {
    "one document": lambda batch, length: arrange(batch, length, "cpu"),
    "packed documents": lambda batch, length: arrange(batch, length, "cpu", _packed(batch, length)),
    "padded rows": lambda batch, length: arrange(batch, length, "cpu", _padded(batch, length)),
    "positions from 100": lambda batch, length: arrange(
        batch, length, "cpu", positions=(torch.arange(length) + 100)[None]
    ),
    "positions of each row": lambda batch, length: arrange(
        batch, length, "cpu", positions=torch.arange(length) + 5 * torch.arange(batch)[:, None]
    ),
}


class Result(NamedTuple):
    """Output (B, H, T, K), gradients of q, k, v, and gradients of what position and sinks train."""

    out: Tensor
    grads: list[Tensor]
    trained: list[Tensor]


def run(backend: str, spec: LayerSpec, qkv: list[Tensor], tokens: Tokens, backward: bool = True) -> Result:
    leaves = [x.detach().clone().requires_grad_(backward) for x in qkv]
    position = spec.position.make(spec.shape)
    sinks = sink_logits(spec)
    out = attend(*leaves, spec, tokens, tokens, StepContext(tokens, contiguous=True), position, backend, sinks)
    if not backward:
        return Result(out, [], [])
    trained = [] if position is None else list(position.parameters())
    trained += [] if sinks is None else [sinks]
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).reshape(out.shape)
    grads = list(torch.autograd.grad((out * weight).sum(), [*leaves, *trained]))
    return Result(out.detach(), grads[:3], grads[3:])


def assert_same(got: Result, wanted: Result) -> None:
    """Equal to 1e-5, of large gradients relatively; a trained bias sums over all rows, and gets 1e-4."""
    torch.testing.assert_close(got.out, wanted.out, atol=1e-5, rtol=0)
    torch.testing.assert_close(got.grads, wanted.grads, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(got.trained, wanted.trained, atol=1e-4, rtol=0)
