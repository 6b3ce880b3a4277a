"""Position schemes and query temperatures, a file per family. Every module in this folder is imported here.

So a new scheme is one new file with a class under `register` (see `docs/adding-a-position-scheme.md`): no list to
extend. What other code uses by name is exported below.
"""

from __future__ import annotations

import importlib
import pkgutil

from minillm.position.alibi import alibi_slopes
from minillm.position.base import (
    SCHEMES,
    EmbeddingScheme,
    LayerPosition,
    LayerShape,
    PositionScheme,
    Rotary,
    register,
    scheme_class,
)
from minillm.position.learned import interpolate_table
from minillm.position.rope import rope_frequencies
from minillm.position.rotation_forms import half_to_interleaved, interleaved_to_half, rotate_complex
from minillm.position.t5 import t5_bucket
from minillm.position.temperature import TEMPERATURES, QueryScale, TemperatureScheme, temperature_class

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = [
    "SCHEMES",
    "TEMPERATURES",
    "EmbeddingScheme",
    "LayerPosition",
    "LayerShape",
    "PositionScheme",
    "QueryScale",
    "Rotary",
    "TemperatureScheme",
    "alibi_slopes",
    "half_to_interleaved",
    "interleaved_to_half",
    "interpolate_table",
    "register",
    "rope_frequencies",
    "rotate_complex",
    "scheme_class",
    "t5_bucket",
    "temperature_class",
]
