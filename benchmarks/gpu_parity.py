"""Parity for gpu_check.py: every backend on every kind of layer against `reference`, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from minillm.attention.backends import BACKENDS, attend
from minillm.attention.machine import Machine, machine
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.position.alibi import ALiBi
from minillm.position.nope import NoPE
from minillm.position.t5 import T5

TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 2e-2}
"""Largest difference from `reference` in float32 on the same inputs, as a share of the largest value of that tensor."""


class Shape(NamedTuple):
    """How large the layers are."""

    batch: int
    length: int
    heads: int
    kv_heads: int
    head_dim: int
    window: int
    chunk: int
    dtypes: tuple[torch.dtype, ...] = (torch.bfloat16, torch.float32)


GPU_SHAPE = Shape(batch=2, length=1025, heads=8, kv_heads=4, head_dim=64, window=128, chunk=200)
TOY_SHAPE = Shape(batch=2, length=70, heads=4, kv_heads=2, head_dim=16, window=16, chunk=20, dtypes=(torch.float32,))


@dataclass(frozen=True)
class Case:
    """One layer on one layout of tokens."""

    name: str
    spec: LayerSpec
    layout: str
    length: int
    dtype: torch.dtype
    urgent: int
    """Lower goes first; the first of an equal kernel pays for its compilation."""


def cases(shape: Shape) -> list[Case]:
    """In the order in which they run, for each backend."""

    def layer(**fields: Any) -> LayerSpec:
        head = {"num_attention_heads": shape.heads, "num_key_value_heads": shape.kv_heads, "head_dim": shape.head_dim}
        return LayerSpec(0, "checked", **{"position": NoPE(), **head, **fields})

    w, t = shape.window, shape.length
    window = layer(window=w)
    listed: list[tuple[str, LayerSpec, str, int, int]] = [
        ("window", window, "one document", t, 0),
        ("ALiBi and window", layer(window=w, position=ALiBi()), "one document", t, 0),
        ("window of one less than the length", layer(window=t - 1), "one document", t, 1),
        ("window of the length", layer(window=t), "one document", t, 1),
        ("window of one more than the length", layer(window=t + 1), "one document", t, 1),
        ("window", window, "packed documents", t, 0),
        ("full", layer(), "one document", t, 2),
        ("full", layer(), "packed documents", t, 0),
        ("full", layer(), "padded rows", t, 1),
        ("window", window, "padded rows", t, 1),
        ("chunk", layer(chunk=shape.chunk), "one document", t, 2),
        ("chunk", layer(chunk=shape.chunk), "packed documents", t, 3),
        ("window and sink logits", layer(window=w, sink_logits=True), "one document", t, 2),
        ("full and sink logits", layer(sink_logits=True), "packed documents", t, 3),
        ("window and 4 kept tokens", layer(window=w, sink_tokens=4), "packed documents", t, 3),
        ("soft-cap", layer(softcap=20.0), "one document", t, 2),
        ("soft-cap, window, documents", layer(softcap=20.0, window=w), "packed documents", t, 4),
        ("ALiBi", layer(position=ALiBi()), "packed documents", t, 4),
        ("learned ALiBi and window", layer(window=w, position=ALiBi(learned=True)), "one document", t, 4),
        ("T5", layer(position=T5()), "one document", t, 4),
        ("3 queries a key", layer(window=w, num_attention_heads=6, num_key_value_heads=2), "one document", t, 3),
        ("window, short", window, "one document", min(100, t), 5),
        ("window, whole blocks", window, "one document", t // 128 * 128 or t, 5),
    ]  # fmt: skip
    made = [
        Case(name, spec, layout, length, dtype, urgent + (3 if dtype == torch.float32 else 0))
        for dtype in shape.dtypes
        for name, spec, layout, length, urgent in listed
    ]
    return sorted(made, key=lambda case: case.urgent)


def layout(name: str, batch: int, length: int, device: str) -> Tokens:
    place = torch.arange(length, device=device)
    if name == "one document":
        return arrange(batch, length, device)
    if name == "packed documents":
        ids = torch.stack([(place + 7 * row) // (length // 5 + 1 + row) for row in range(batch)])
        return arrange(batch, length, device, ids)
    ids = (place >= length // 2).long().expand(batch, length).clone()
    ids[0, : length // 8] = -1
    ids[1:, length - length // 9 :] = -1
    return arrange(batch, length, device, ids)


def outcome(backend: str, case: Case, inputs: list[Tensor], tokens: Tokens, backward: bool) -> list[Tensor]:
    """Output, then the gradients of q, k, v and of what the layer trains, all float32."""
    spec = case.spec
    leaves = [x.detach().clone().requires_grad_(backward) for x in inputs]
    position = spec.position.make(spec.shape)
    trained: list[Tensor] = []
    if position is not None:
        position = position.to(inputs[0].device)
        for parameter in position.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator(parameter.device).manual_seed(1))
        trained += position.parameters()
    sinks = None
    if spec.sink_logits:
        sinks = torch.linspace(-2, 2, spec.num_attention_heads, device=inputs[0].device).requires_grad_(backward)
        trained.append(sinks)
    context = StepContext(tokens, contiguous=True)
    with torch.set_grad_enabled(backward):
        out = attend(*leaves, spec, tokens, tokens, context, position, backend, sinks)
    if not backward:
        return [out.float()]
    weight = torch.linspace(-1, 1, out.shape[2], device=out.device)[:, None].expand_as(out) / out.shape[2] ** 0.5
    grads = torch.autograd.grad((out.float() * weight).sum(), [*leaves, *trained])
    return [out.detach().float(), *(grad.float() for grad in grads)]


def error(got: list[Tensor], wanted: list[Tensor]) -> float:
    """Largest difference, as a share of the largest wanted value of that tensor; infinite where one is not finite."""
    shares = []
    for a, b in zip(got, wanted, strict=True):
        if not a.isfinite().all():
            return float("inf")
        shares.append(((a - b).abs().max() / b.abs().max()).item())
    return max(shares)


Row = dict[str, Any]


def compare(backend: str, case: Case, shape: Shape, device: str, backward: bool) -> Row:
    """One line of the table."""
    begun = time.perf_counter()
    tokens = layout(case.layout, shape.batch, case.length, device)
    generator = torch.Generator(device).manual_seed(0)
    spec = case.spec
    heads = (spec.num_attention_heads, spec.num_key_value_heads, spec.num_key_value_heads)
    inputs = [
        torch.randn(shape.batch, case.length, n, spec.head_dim, device=device, generator=generator)
        .transpose(1, 2).to(case.dtype)
        for n in heads
    ]  # fmt: skip
    row: Row = {
        "backend": backend,
        "layer": case.name,
        "layout": case.layout,
        "length": case.length,
        "dtype": str(case.dtype).removeprefix("torch."),
    }
    tolerance = TOLERANCE[case.dtype]
    try:
        wanted = outcome("reference", case, [x.float() for x in inputs], tokens, backward)
        got = outcome(backend, case, inputs, tokens, backward)
        forward, back = error(got[:1], wanted[:1]), error(got[1:], wanted[1:]) if backward else None
        ok = forward <= tolerance and (back is None or back <= tolerance)
        row |= {"forward_error": forward, "backward_error": back, "tolerance": tolerance, "ok": ok}
    except Exception as raised:  # whatever a kernel or its compiler raises is a finding
        row |= {"ok": False, "raised": f"{type(raised).__name__}: {str(raised).strip()[:300]}"}
    row["seconds"] = round(time.perf_counter() - begun, 2)
    return row


def check(shape: Shape, device: str, fits: Callable[[float], bool], rows: list[Row], left_out: list[str]) -> None:
    """Add to `rows` as they come, and to `left_out` with the reason. `fits(seconds)`: is there so much time left?"""
    left: dict[str, int] = {}
    try:
        _check(shape, device, fits, rows, left)
    finally:
        left_out += [f"{reason} ({count} cases)" for reason, count in left.items()]


def _check(shape: Shape, device: str, fits: Callable[[float], bool], rows: list[Row], left: dict[str, int]) -> None:
    slowest = dict.fromkeys(BACKENDS, 0.0)
    for backend, case in order(shape):
        why, backward = able(backend, case, machine(device))
        if why is None and not fits(slowest[backend]):
            why = "no time left"
        if why is not None:
            text = f"parity of '{backend}': {why}"
            left[text] = left.get(text, 0) + 1
            continue
        row = compare(backend, case, shape, device, backward)
        slowest[backend] = max(slowest[backend], row["seconds"])
        rows.append(row)


def order(shape: Shape) -> Iterator[tuple[str, Case]]:
    """What is quick first: `flex` compiles a kernel for each new shape of mask and score functions."""
    for backend in sorted(BACKENDS, key="flex".__eq__):
        for case in cases(shape):
            yield backend, case


def able(backend: str, case: Case, here: Machine) -> tuple[str | None, bool]:
    """Why a backend cannot, or None; and whether it can be asked for gradients."""
    known = BACKENDS[backend]
    reason = known.cannot(case.spec)
    if reason is not None:
        return f"refuses a layer that {reason}", False
    for gradients in (True, False):
        reason = known.missing(case.spec, here._replace(dtype=case.dtype, gradients=gradients))
        if reason is None:
            return None, gradients
    return f"not here, {reason}", False
