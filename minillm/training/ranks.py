"""What the processes of one run tell each other: who they are, sums over all of them. One process needs no group."""

from __future__ import annotations

import torch
import torch.distributed as dist
from rich import get_console


def grouped() -> bool:
    """Whether this process belongs to a group of several, or of one that was launched as such."""
    return dist.is_available() and dist.is_initialized()


def rank() -> int:
    return dist.get_rank() if grouped() else 0


def world_size() -> int:
    return dist.get_world_size() if grouped() else 1


def total(values: list[float], device: torch.device) -> list[float]:
    """Each of `values` summed over all ranks, in double precision: token counts and sums of nats must not be rounded.

    Every rank must call it, with as many values.
    """
    if not grouped():
        return values
    together = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(together)
    return [float(v) for v in together.tolist()]


def say(text: str) -> None:
    """A line for the person who watches, once per run. Goes above the progress bar where there is one."""
    if rank() == 0:
        get_console().print(text, markup=False, highlight=False, soft_wrap=True)
