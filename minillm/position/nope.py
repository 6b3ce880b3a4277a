"""NoPE: no position at all (Haviv et al. 2022; Kazemnejad et al. 2023, arXiv 2305.19466).

Order then reaches the layer only through the causal mask and what other layers have written. It implies nothing about
the window: a NoPE layer may be full or windowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from minillm.position.base import Place, PositionScheme, register


@register("nope")
@dataclass(frozen=True)
class NoPE(PositionScheme):
    """Has no fields and no module: its layers skip the rotation, and with it any YaRN attention factor."""

    place: ClassVar[Place] = "nowhere"
