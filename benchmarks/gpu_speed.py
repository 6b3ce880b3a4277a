"""Speed and memory for gpu_check.py: one layer's attention by backend, and training steps by size, plan and length."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gpu_plans
import torch
from gpu_parity import layout

from minillm.attention.backends import BACKENDS, attend, choose
from minillm.attention.machine import machine
from minillm.attention.tokens import StepContext
from minillm.config.layers import LayerSpec
from minillm.config.schema import SizeConfig
from minillm.model.compiled import compile_blocks
from minillm.model.cost import cost
from minillm.model.decoder import build_model
from minillm.position.nope import NoPE

Row = dict[str, Any]
Fits = Callable[[float], bool]


class Scale(NamedTuple):
    """What is measured."""

    sizes: dict[str, SizeConfig]
    lengths: tuple[int, ...]
    tokens: int
    """Tokens of a step, as whole rows; at least one row."""
    heads: tuple[int, int, int]
    """Of the single layer: query heads, key heads, width."""
    rounds: int


GPU_SCALE = Scale(gpu_plans.SIZES, (2048, 32768, 8192, 4096, 16384), 32768, (12, 4, 64), rounds=5)
TOY_SCALE = Scale(gpu_plans.TOY, (160, 96), 192, (4, 2, 16), rounds=2)


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def timed(run: Callable[[], object], device: str, rounds: int, warm: int = 2) -> float:
    """Median seconds of `rounds` after `warm` runs, during which kernels compile."""
    seconds = []
    for count in range(warm + rounds):
        wait(device)
        begun = time.perf_counter()
        run()
        wait(device)
        if count >= warm:
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def peak_memory(device: str) -> float | None:
    """Most MiB held since the last call, on a GPU."""
    gc.collect()  # what the measurement before left behind
    if device != "cuda":
        return None
    most = torch.cuda.max_memory_allocated() / 2**20
    torch.cuda.reset_peak_memory_stats()
    return round(most, 1)


class Planned:
    """Runs what fits into the time; what does not is named. A first estimate of a kind is what it took before."""

    def __init__(self, fits: Fits, rows: list[Row], left: list[str]) -> None:
        self.fits, self.rows, self.left = fits, rows, left
        self._took: dict[str, float] = {}

    def leave(self, what: str) -> None:
        if what not in self.left:
            self.left.append(what)

    def add(self, name: str, kind: str, row: Row, run: Callable[[], Row]) -> None:
        if not self.fits(self._took.get(kind, 0.0)):
            self.leave(f"{name}: no time left")
            return
        begun = time.perf_counter()
        try:
            self.rows.append(row | run())
        except torch.OutOfMemoryError:
            self.leave(f"{name}: out of memory")
        except Exception as raised:
            self.rows.append(row | {"raised": f"{type(raised).__name__}: {str(raised).strip()[:300]}"})
        self._took[kind] = time.perf_counter() - begun


def attention(scale: Scale, device: str, dtype: torch.dtype, planned: Planned) -> None:
    """Milliseconds, forward and backward, of one layer by backend."""
    heads, kv_heads, head_dim = scale.heads
    here = machine(device)._replace(dtype=dtype)
    for length in sorted(scale.lengths)[:: 2 if len(scale.lengths) > 2 else 1]:
        for name, documents, window in (
            ("full", False, None),
            (f"window of {length // 8}", False, length // 8),
            ("full, 4 documents", True, None),
            (f"window of {length // 8}, 4 documents", True, length // 8),
        ):
            spec = LayerSpec(0, "measured", NoPE(), heads, kv_heads, head_dim, window=window)
            chosen = choose(spec, length, here, documents=documents)
            for backend in ("sdpa", "banded", "flex", "varlen"):
                if BACKENDS[backend].cannot(spec) is not None:
                    continue  # `banded` without a window
                reason = BACKENDS[backend].missing(spec, here)
                if reason is not None:
                    planned.leave(f"one layer by '{backend}': not here, {reason}")
                    continue
                label = f"one layer, {name}, {length} tokens, '{backend}'"
                row = {"layer": name, "length": length, "backend": backend, "chosen": backend == chosen}
                planned.add(
                    label, backend, row,
                    lambda s=spec, n=length, d=documents, b=backend: _one_layer(s, n, d, b, scale, device, dtype),
                )  # fmt: skip


def _one_layer(
    spec: LayerSpec, length: int, documents: bool, backend: str, scale: Scale, device: str, dtype: torch.dtype
) -> Row:
    tokens = layout("packed documents" if documents else "one document", 1, length, device)
    heads = (spec.num_attention_heads, spec.num_key_value_heads, spec.num_key_value_heads)
    inputs = [
        torch.randn(1, length, n, spec.head_dim, device=device, dtype=dtype).transpose(1, 2).requires_grad_()
        for n in heads
    ]
    weight = torch.randn_like(inputs[0])

    def step() -> None:
        context = StepContext(tokens, contiguous=True)  # making the mask is part of the price
        out = attend(*inputs, spec, tokens, tokens, context, None, backend)  # type: ignore[misc]
        torch.autograd.grad(out, inputs, weight)

    peak_memory(device)
    return {"milliseconds": round(1e3 * timed(step, device, scale.rounds), 3), "peak_mib": peak_memory(device)}


def training(scale: Scale, device: str, peak: float, compiled_too: bool, dtype: torch.dtype, planned: Planned) -> None:
    """Training steps: loss, gradients, AdamW, of one document a row."""
    for length in scale.lengths:
        for size_name, size in scale.sizes.items():
            for compiled in (False, True) if compiled_too else (False,):
                for plan in gpu_plans.PLANS:
                    state = "compiled" if compiled else "eager"
                    row = {"size": size_name, "plan": plan, "length": length, "state": state}
                    planned.add(
                        f"training {size_name}, {plan}, {length} tokens, {state}", f"{size_name} {state}", row,
                        lambda s=size, p=plan, n=length, c=compiled: _step(s, p, n, c, scale, device, peak, dtype),
                    )  # fmt: skip


def _step(
    size: SizeConfig, plan: str, length: int, compiled: bool, scale: Scale, device: str, peak: float, dtype: torch.dtype
) -> Row:
    config = gpu_plans.model(size, plan, length, window=length // 8)
    rows = max(1, scale.tokens // length)
    model = build_model(config, seed=0, device=device)
    if compiled:
        compile_blocks(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    generator = torch.Generator(device).manual_seed(0)
    ids = torch.randint(config.vocab_size, (rows, length + 1), device=device, generator=generator)

    def step() -> None:
        with torch.autocast(device, dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model.loss(ids[:, :-1], ids[:, 1:])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    peak_memory(device)
    seconds = timed(step, device, scale.rounds)
    tokens_per_second = rows * length / seconds
    flops = cost(config, length).flops_per_token
    here = machine(device)._replace(dtype=dtype)
    used = [choose(spec, length, here) for spec in config.layers]
    return {
        "rows": rows,
        "tokens_per_second": round(tokens_per_second),
        "mfu": round(tokens_per_second * flops / peak, 4),
        "peak_mib": peak_memory(device),
        "backends": ", ".join(f"{name} ({used.count(name)})" for name in dict.fromkeys(used)),
    }
