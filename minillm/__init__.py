"""minillm: train small language models whose attention is declared layer by layer in YAML, and compare them.

    cfg = minillm.compose(["model=rnope_swa", "size=micro"])
    model = minillm.build_model(cfg.model, seed=0)
    logits = model(tokens)                       # (B, T) int64 -> (B, T, V) float32

Names load on first use: the model needs torch and jaxtyping only, `compose` needs Hydra, training needs Lightning.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.attention.cache_settings import CacheSettings as CacheSettings
    from minillm.attention.cache_settings import Evict as Evict
    from minillm.checkpoint import load as load
    from minillm.config.compose import compose as compose
    from minillm.config.layers import LayerSpec as LayerSpec
    from minillm.errors import ConfigError as ConfigError
    from minillm.errors import MinillmError as MinillmError
    from minillm.generation import generate as generate
    from minillm.model.cost import cost as cost
    from minillm.model.decoder import Decoder as Decoder
    from minillm.model.decoder import build_model as build_model

_HOMES = {
    "CacheSettings": "minillm.attention.cache_settings",
    "Evict": "minillm.attention.cache_settings",
    "compose": "minillm.config.compose",
    "LayerSpec": "minillm.config.layers",
    "ConfigError": "minillm.errors",
    "MinillmError": "minillm.errors",
    "load": "minillm.checkpoint",
    "generate": "minillm.generation",
    "cost": "minillm.model.cost",
    "Decoder": "minillm.model.decoder",
    "build_model": "minillm.model.decoder",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in (
        "position",
        "attention",
        "config",
        "model",
        "data",
        "training",
        "evaluation",
        "report",
        "hub",
        "generation",
    ):
        return importlib.import_module(f"minillm.{name}")
    raise AttributeError(f"module 'minillm' has no attribute {name!r}")
