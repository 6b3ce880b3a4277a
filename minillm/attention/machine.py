"""What kernels there are where attention is to run: device, dtype, and what the installed torch offers there."""

from __future__ import annotations

import importlib.util
import inspect
from functools import lru_cache
from typing import NamedTuple

import torch

HALF = (torch.float16, torch.bfloat16)


class Machine(NamedTuple):
    """All that the choice of a backend may know besides the layer; made by `machine`, or by hand in a test."""

    device: str = "cpu"
    """Type of the device: cpu, cuda, ..."""
    dtype: torch.dtype = torch.float32
    """Of queries and keys when they meet."""
    gradients: bool = True
    """Will gradients flow?"""
    flex: bool = False
    """torch has `flex_attention`, and a compiler to run it with."""
    varlen: bool = False
    """torch has `varlen_attn`, and the device a kernel for it."""
    varlen_windows: bool = False
    """`varlen_attn` takes windows."""


@lru_cache
def machine(device: str) -> Machine:
    """The machine as it is, but for dtype and gradients, which a call knows: `machine("cuda")._replace(dtype=...)`.

    A step asks once, where its `StepContext` is made: torch.compile could not trace what is looked up here.
    """
    varlen = _has_varlen(device)
    windows = varlen and "window_size" in varlen_arguments()
    return Machine(device, flex=_has_flex(device), varlen=varlen, varlen_windows=windows)


def _has_flex(device: str) -> bool:
    """`flex_attention`, with `AuxRequest`, by which it returns sums of weights: torch 2.9 on. Not imported to find out:
    that takes seconds, and on CPU it is seldom used."""
    major, minor = (int(part) for part in torch.__version__.split(".")[:2])
    if (major, minor) < (2, 9):
        return False
    return device == "cpu" or (device == "cuda" and importlib.util.find_spec("triton") is not None)


def _has_varlen(device: str) -> bool:
    """Its kernel is FlashAttention-2 for NVIDIA GPUs from Ampere on."""
    if device != "cuda" or not varlen_arguments() or torch.version.hip is not None:
        return False
    return torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)


@lru_cache
def varlen_arguments() -> frozenset[str]:
    """Names of what `varlen_attn` takes (it changes from one torch to the next); empty where torch lacks it."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return frozenset()
    return frozenset(inspect.signature(varlen_attn).parameters)
