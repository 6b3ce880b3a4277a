"""How a length that is too long for the machine is told from a bug."""

from __future__ import annotations

import torch


def out_of_memory(error: BaseException) -> bool:
    """torch says it by a class of its own on a GPU, and by a plain RuntimeError on the CPU."""
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
