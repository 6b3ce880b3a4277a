"""Which arithmetic a run uses: weights are float32 always, `bf16` runs the forward pass under autocast.

`trainer.precision=auto` asks the processor: bf16 where matrix units for it exist (AMX, AVX512-BF16, NVIDIA from
Ampere on), else fp32. What was decided is kept for the run's whole life (`decided.json`, checkpoints), so that a
run resumed on another machine goes on in the arithmetic in which it began.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Literal

import torch

from minillm.errors import ConfigError

Arithmetic = Literal["fp32", "bf16"]


@dataclass(frozen=True)
class Precision:
    """The arithmetic of a run on one device; `why` is what the start of the run prints."""

    name: Arithmetic
    device_type: str
    why: str

    @property
    def dtype(self) -> torch.dtype:
        """Of matrix products."""
        return torch.bfloat16 if self.name == "bf16" else torch.float32

    def autocast(self) -> AbstractContextManager[None]:
        """Around every forward pass: training, validation, samples."""
        return torch.autocast(self.device_type, dtype=torch.bfloat16, enabled=self.name == "bf16")


def decide(asked: str, device_type: str, before: str | None = None) -> Precision:
    """The precision for `trainer.precision=asked`; `before` is what an earlier part of the same run decided."""
    if asked not in ("auto", "fp32", "bf16"):
        raise ConfigError(f"trainer.precision: {asked!r} is not allowed. Allowed: auto, fp32, bf16.")
    if asked == "auto" and before is not None:
        return Precision("bf16" if before == "bf16" else "fp32", device_type, "decided when the run began")
    if asked != "auto":
        return Precision("bf16" if asked == "bf16" else "fp32", device_type, "asked for")
    unit = bf16_unit(device_type)
    if unit is None:
        return Precision("fp32", device_type, f"this {device_type} has no bf16 matrix unit")
    return Precision("bf16", device_type, f"this {device_type} has {unit}")


def bf16_unit(device_type: str) -> str | None:
    """The name of what multiplies bf16 matrices in hardware here, or None."""
    if device_type == "cuda":
        return "bf16 tensor cores" if torch.cuda.is_bf16_supported(including_emulation=False) else None
    if torch.cpu._is_amx_tile_supported():
        return "AMX"
    if torch.cpu._is_avx512_bf16_supported():
        return "AVX512-BF16"
    return None
