"""Whether a run trains compiled blocks (`trainer.compile`), decided once at its start.

Compiling takes the better part of a minute before the first update, so `auto` weighs it: the training that is left, at
the speed that the measured peak of matrix products lets expect, against the share of it that compiled blocks were seen
to save. As with the precision, what was decided holds for the run's whole life: a run resumed elsewhere goes on in the
same arithmetic (fused kernels round differently).
"""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass

from minillm.errors import MinillmError

EFFICIENCY = {"cpu": 0.4, "cuda": 0.3}
"""Share of the matrix-product peak that training uses, roughly: it is what an estimate of minutes needs."""
SAVED = {"cpu": 0.12, "cuda": 0.25}
"""Share of training time that compiled blocks save. CPU: benchmarks/results; CUDA: not measured by us."""
SECONDS = {"cpu": 60.0, "cuda": 60.0}
"""What compiling costs at the start."""
MARGIN = 2.0
"""`auto` compiles where it saves so many times what it costs: both are estimates."""


@dataclass(frozen=True)
class Compilation:
    """`why` is what the start of the run prints."""

    on: bool
    why: str


def decide(asked: bool | str, device_type: str, eager_seconds: float, before: bool | None = None) -> Compilation:
    """The decision for `trainer.compile=asked`: true, false or "auto".

    Args:
        eager_seconds: estimate of the training that is left, not compiled (`estimated_seconds`).
        before: what an earlier part of the same run decided.

    Raises:
        MinillmError: true is asked for, and there is nothing to compile with.
    """
    missing = missing_compiler(device_type)
    on = before if asked == "auto" else bool(asked)
    if on is not None:
        if on and missing:
            what = "trainer.compile=true" if asked is True else "this run began with compiled blocks"
            raise MinillmError(f"{what}: {missing}. trainer.compile=false trains without (and rounds differently).")
        return Compilation(on, "decided when the run began" if asked == "auto" else "asked for")
    if missing:
        return Compilation(False, missing)
    saved, cost = SAVED[device_type] * eager_seconds, SECONDS[device_type]
    weighed = (
        f"of about {eager_seconds / 60:.1f} minutes it would save {saved / 60:.1f} and take {cost / 60:.1f} to begin"
    )
    return Compilation(saved > MARGIN * cost, weighed)


def missing_compiler(device_type: str) -> str | None:
    """What torch.compile needs on this machine and does not find, or None."""
    if device_type == "cuda":
        missing = importlib.util.find_spec("triton") is None
        return "torch.compile needs triton on a GPU, which is not installed" if missing else None
    if not any(shutil.which(name) for name in ("g++", "c++", "clang++")):
        return "torch.compile needs a C++ compiler (g++) on a CPU, and none was found"
    return None


def estimated_seconds(flops: float, peak: float, device_type: str) -> float:
    """Seconds of training that does `flops` floating-point operations at `peak` FLOP/s of all devices together."""
    return flops / (peak * EFFICIENCY[device_type])
