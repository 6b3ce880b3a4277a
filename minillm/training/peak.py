"""The device: its name, and how fast it multiplies matrices, which a training step's speed is measured against (MFU).

The published peak of a chip says little on a laptop that shares its cores, so it is measured when the run starts, in
the run's arithmetic and with its threads. MFU is the FLOPs per second that the plan needs (minillm.cost: windows and
causality counted, every row one document) over this peak times the number of devices.
"""

from __future__ import annotations

import platform
import time
from pathlib import Path

import torch

SECONDS = 0.25
"""Spent on measuring."""
SIZES = {"cpu": 1024, "cuda": 8192}
"""Width of the square matrices: large enough for the device's best speed, small enough to repeat."""


def matmul_peak(device_type: str, dtype: torch.dtype) -> float:
    """FLOP/s of the quickest of repeated square matrix products, a multiply-add being two.

    The quickest, not the mean: what else runs on the machine only ever slows it.
    """
    size = SIZES[device_type]
    left, right = (torch.ones(size, size, dtype=dtype, device=device_type) for _ in range(2))
    _wait(device_type, left @ right)  # the first call makes threads, handles and workspaces
    best, started = float("inf"), time.perf_counter()
    while time.perf_counter() - started < SECONDS:
        begun = time.perf_counter()
        _wait(device_type, left @ right)
        best = min(best, time.perf_counter() - begun)
    return 2.0 * size**3 / best


def _wait(device_type: str, result: torch.Tensor) -> None:
    if device_type == "cuda":
        torch.cuda.synchronize(result.device)


def device_name(device_type: str) -> str:
    """What the device calls itself: the GPU's name, or the processor's as Linux tells it."""
    if device_type == "cuda":
        return torch.cuda.get_device_name()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
