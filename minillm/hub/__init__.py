"""Hugging Face in and out: a layer plan read from a config.json and written into one, layer by layer.

    model = minillm.hub.from_transformers("SmolLM3-3B")      # a folder, or a model of transformers
    theirs = minillm.hub.to_transformers(model)              # the plainest family that says the plan exactly

A family is one file in `families/`. Names load on first use; only to_transformers needs the package transformers.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.hub.api import export as export
    from minillm.hub.api import from_transformers as from_transformers
    from minillm.hub.api import load as load
    from minillm.hub.api import load_tokenizer as load_tokenizer
    from minillm.hub.api import read_plan as read_plan
    from minillm.hub.api import save as save
    from minillm.hub.api import to_transformers as to_transformers

__all__ = ["export", "from_transformers", "load", "load_tokenizer", "read_plan", "save", "to_transformers"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("minillm.hub.api"), name)
    raise AttributeError(f"module 'minillm.hub' has no attribute {name!r}")
