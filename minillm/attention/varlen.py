"""`varlen`: torch's varlen_attn, FlashAttention over packed documents: full attention and windows, nothing else.

All rows of a batch lie one behind the other, and the kernel is told where each document begins; it computes no pair of
different documents, and holds no mask. Padding tokens are documents of one token, so that each sees itself alone, as in
every other backend.

Where documents begin is data: their number has to be known to the host, so a step waits for the device once (the kernel
that `flex` runs does not). With a cache `sdpa` computes, and so it does where padding stands in the middle of a
document, which would cut it in two here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from minillm.attention.machine import HALF, Machine, varlen_arguments
from minillm.attention.mask import Call, has_bias, is_relative
from minillm.attention.sdpa import sdpa
from minillm.attention.tokens import Tokens, document_starts
from minillm.config.layers import LayerSpec


class Pieces(NamedTuple):
    """Where documents begin in the rows laid one behind the other."""

    starts: Int[Tensor, "N1"]
    """(documents + 1,) int32, from 0 to B * T."""
    longest: int


def unsupported(spec: LayerSpec) -> str | None:
    if is_relative(spec) or has_bias(spec):
        return f"has position '{spec.position.scheme}', which the kernel does not know; 'reference' can"
    if spec.softcap is not None:
        return "has a softcap, which the kernel does not know; 'flex' and 'reference' can"
    if spec.chunk is not None:
        return "sees chunks, which the kernel does not know; 'banded' and 'flex' can"
    if spec.sink_tokens is not None:
        return "keeps first tokens visible, which lie outside the window; 'flex' and 'sdpa' can"
    if spec.sink_logits:
        return "has sink logits, for which the kernel gives no gradient; 'flex' and 'sdpa' can"
    return None


def missing(spec: LayerSpec, machine: Machine) -> str | None:
    if machine.device != "cuda":
        return f"its kernel runs on NVIDIA GPUs, not on {machine.device}"
    if not machine.varlen:
        return f"torch {torch.__version__} has no varlen_attn for this GPU (it must be Ampere or newer)"
    if spec.window is not None and not machine.varlen_windows:
        return f"varlen_attn of torch {torch.__version__} takes no windows"
    if machine.dtype not in HALF:
        return f"its kernel computes in half precision, here is {str(machine.dtype).removeprefix('torch.')}"
    if spec.head_dim % 8 or spec.head_dim > 256:
        return f"its kernel takes heads of 8, 16, ..., 256 channels, this layer's have {spec.head_dim}"
    return None


def varlen(call: Call) -> Float[Tensor, "B H Tq K"]:
    if not call.context.contiguous:
        return sdpa(call)
    spec, (batch, _, length, _) = call.spec, call.q.shape
    made = call.context.once(("varlen", batch, length), lambda: pieces(call.queries, batch, length))
    if made is None:
        return sdpa(call)
    q, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (call.q, call.k, call.v))
    out = _kernel(q, k, v, made, spec.score_scale, window_size(spec.window, made.longest))
    return out.unflatten(0, (batch, length)).transpose(1, 2)


def window_size(window: int | None, longest: int) -> tuple[int, int]:
    """FlashAttention's (left, right): keys that a query sees before and after itself, -1 for all of them. Our windows
    count the query's own token, its left does not."""
    return (-1, 0) if window is None or window >= longest else (window - 1, 0)


def pieces(tokens: Tokens, batch: int, length: int) -> Pieces | None:
    """One document per row where no ids are given, else one per run of an id and one per padding token. None where
    padding cuts a document in two."""
    device = tokens.index.device
    if tokens.document is None:
        return Pieces(torch.arange(0, (batch + 1) * length, length, dtype=torch.int32, device=device), length)
    begins, broken = piece_begins(tokens.document)
    # What has to be asked of the device is asked at once; the number of starts is part of it.
    starts = torch.cat([begins.flatten().nonzero()[:, 0], begins.new_tensor([batch * length], dtype=torch.int64)])
    longest, broke = torch.stack([starts.diff().max(), broken.any().long()]).tolist()
    return None if broke else Pieces(starts.to(torch.int32), longest)


def piece_begins(document: Int[Tensor, "B T"]) -> tuple[Bool[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Where pieces begin, and which of these are only the rest of a document after padding."""
    begins = torch.ones_like(document, dtype=torch.bool)
    begins[:, 1:] = (document[:, 1:] != document[:, :-1]) | (document[:, 1:] < 0)
    starts = document_starts(document, document.new_full((document.shape[0],), -1))
    return begins, begins & (document >= 0) & ~starts


def _kernel(q: Tensor, k: Tensor, v: Tensor, made: Pieces, scale: float, window: tuple[int, int]) -> Tensor:
    """(B * T, heads, K) each; arguments as the installed torch names them."""
    from torch.nn.attention.varlen import varlen_attn

    attend: Callable[..., Any] = varlen_attn
    known = varlen_arguments()
    options: dict[str, object] = {"scale": scale} if "scale" in known else {}
    if "scale" not in known:
        q = q * (scale * q.shape[-1] ** 0.5)  # it divides by the root itself
    if q.shape[1] != k.shape[1]:
        if "enable_gqa" in known:
            options["enable_gqa"] = True
        else:
            groups = q.shape[1] // k.shape[1]
            k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if "window_size" in known:
        options["window_size"] = window
    else:
        options["is_causal"] = True
    out: Tensor = attend(q, k, v, made.starts, made.starts, made.longest, made.longest, **options)
    return out
