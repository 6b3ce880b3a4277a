"""One call for every backend. A backend that cannot do a spec says so when the model is built, and never falls back.

`check` at build time, `attend` at run time::

    check("banded", spec)                       # ConfigError, naming a backend that can
    out = attend(q, k, v, spec, queries, keys, context, position, backend="auto")

A new backend is one entry of `BACKENDS`: a function from `Call` to the output, what it cannot do, and where it is not.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from minillm.attention import banded as _banded
from minillm.attention import flex as _flex
from minillm.attention import varlen as _varlen
from minillm.attention.machine import Machine, machine
from minillm.attention.mask import Call, has_bias, is_relative
from minillm.attention.reference import reference
from minillm.attention.sdpa import sdpa
from minillm.attention.tokens import StepContext, Tokens
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError, MinillmError, nearest
from minillm.position.base import LayerPosition


@dataclass(frozen=True)
class AttentionBackend:
    """A way to compute attention: `run`; `cannot`, the reason why a spec is beyond it; `missing`, the reason why a
    machine has no such kernel for the spec (None: it can, it is there)."""

    name: str
    run: Callable[[Call], Tensor]
    cannot: Callable[[LayerSpec], str | None]
    missing: Callable[[LayerSpec, Machine], str | None] = lambda spec, machine: None


def _fused_cannot(spec: LayerSpec) -> str | None:
    if spec.softcap is not None:
        return "has a softcap, which the fused kernel does not know; 'reference' can"
    if is_relative(spec):
        return f"has position '{spec.position.scheme}', whose terms the fused kernel does not know; 'reference' can"
    return None


def _banded_cannot(spec: LayerSpec) -> str | None:
    return _fused_cannot(spec) or _banded.unsupported(spec)


BACKENDS: dict[str, AttentionBackend] = {
    backend.name: backend
    for backend in (
        AttentionBackend("reference", reference, lambda spec: None),
        AttentionBackend("sdpa", sdpa, _fused_cannot),
        AttentionBackend("banded", _banded.banded, _banded_cannot),
        AttentionBackend("flex", _flex.flex, _flex.unsupported, _flex.missing),
        AttentionBackend("varlen", _varlen.varlen, _varlen.unsupported, _varlen.missing),
    )
}


def unsupported(backend: str, spec: LayerSpec) -> str | None:
    """Why `backend` cannot compute `spec`, naming one that can; None where it can. `auto` always can."""
    if backend == "auto":
        return None
    if backend not in BACKENDS:
        known = ["auto", *BACKENDS]
        raise ConfigError(f"backend '{backend}': unknown.{nearest(backend, known)} Allowed: {', '.join(known)}.")
    reason = BACKENDS[backend].cannot(spec)
    if reason is None:
        return None
    return f"backend '{backend}' cannot compute layer {spec.index} (kind '{spec.kind}'): it {reason}."


def check(backend: str, spec: LayerSpec) -> None:
    """Raise ConfigError where `backend` cannot compute `spec`; called for every layer when a model is built."""
    reason = unsupported(backend, spec)
    if reason is not None:
        raise ConfigError(reason)


def absent(backend: str, spec: LayerSpec, machine: Machine) -> str | None:
    """Why `backend` cannot compute `spec` on this machine, naming one that can; None where it can, as `auto` always."""
    reason = None if backend == "auto" else BACKENDS[backend].missing(spec, machine)
    if reason is None:
        return None
    can = choose(spec, length=1, where=machine)
    return f"backend '{backend}' cannot compute layer {spec.index} (kind '{spec.kind}') here: {reason}; '{can}' can."


def require(backend: str, spec: LayerSpec, machine: Machine) -> None:
    """Raise MinillmError where `backend` cannot compute `spec` on this machine."""
    reason = absent(backend, spec, machine)
    if reason is not None:
        raise MinillmError(reason)


FUSED_FROM = 128
"""Tokens from which `auto` takes `flex` and `varlen`: the side of a block."""


def choose(
    spec: LayerSpec,
    length: int,
    where: Machine | str,
    cached: bool = False,
    documents: bool = False,
) -> str:
    """What `auto` uses for `length` new tokens, by layer and machine alone.

    Without a GPU: `banded` where the layer reaches well less far than that. The bound was measured on CPU, forward and
    backward, with windows of 16 to 256. Keys from a cache (`cached`) are cut to the band already, so there the mask is
    small.

    `where` is the machine, or a device's name: then of float32, as training.

    On CUDA `varlen` and `flex` come first where more than causality hides keys, or something is added to the scores:
    `sdpa` would hold the square there. A trained bias stays with `sdpa` and `banded`: `flex` sums its gradient pair by
    pair into a few numbers. The order is by what the kernels do, and not measured yet.
    """
    here = where if isinstance(where, Machine) else machine(where)
    if here.device == "cuda" and not cached and length >= FUSED_FROM:
        hidden = documents or spec.sink_tokens is not None or (spec.reach is not None and spec.reach < length)
        trained = has_bias(spec) and spec.position.bias_key is None
        if not trained and (hidden or has_bias(spec) or spec.softcap is not None):
            for name in ("varlen", "flex"):
                backend = BACKENDS[name]
                if backend.cannot(spec) is None and backend.missing(spec, here) is None:
                    return name
    if _fused_cannot(spec) is not None:
        return "reference"
    if _banded.unsupported(spec) is not None or cached:
        return "sdpa"
    if spec.reach is not None and length >= max(spec.reach + 64, 3 * spec.reach // 2):
        return "banded"
    return "sdpa"


def autocast_dtype(device: str) -> torch.dtype:
    """The dtype of attention's own matrix products under autocast.

    The fused kernel of a CPU without AMX has no bf16 products to gain from: its backward took 6.5 times as long in bf16
    as in float32 where only AVX512-BF16 was there (torch 2.13), a third of the whole training step.
    """
    dtype = torch.get_autocast_dtype(device)
    if device == "cpu" and dtype == torch.bfloat16 and not torch.cpu._is_amx_tile_supported():
        return torch.float32
    return dtype


def attend(
    q: Float[Tensor, "B H Tq K"],
    k: Float[Tensor, "B G Tk K"],
    v: Float[Tensor, "B G Tk K"],
    spec: LayerSpec,
    queries: Tokens,
    keys: Tokens,
    context: StepContext,
    position: LayerPosition | None,
    backend: str = "auto",
    sinks: Float[Tensor, "H"] | None = None,
) -> Float[Tensor, "B H Tq K"]:
    """Attention of one layer. q and k come rotated, normed and tempered; scale, soft-cap, bias and mask happen here.

    Query head h reads kv head h // (H / G); `sinks` are the layer's learned logits where it has them. Under autocast
    the matrix products are in the dtype that `autocast_dtype` says, masks and biases stay as they are, and the output
    is in autocast's dtype.
    """
    device = q.device.type
    autocast = torch.is_autocast_enabled(device)
    dtype = autocast_dtype(device) if autocast else q.dtype
    gradients = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    here = context.machine._replace(dtype=dtype, gradients=gradients)
    if backend == "auto":
        backend = choose(spec, q.shape[2], here, not context.contiguous, queries.document is not None)
    else:
        check(backend, spec)
        if context.contiguous:
            require(backend, spec, here)
    run = BACKENDS[backend].run
    if autocast:
        # Autocast would round the additive mask, and with it ALiBi's distances, to bf16.
        call = Call(q.to(dtype), k.to(dtype), v.to(dtype), spec, queries, keys, context, position, sinks)
        with torch.autocast(device, enabled=False):
            return run(call).to(torch.get_autocast_dtype(device))
    return run(Call(q, k.to(q.dtype), v.to(q.dtype), spec, queries, keys, context, position, sinks))
