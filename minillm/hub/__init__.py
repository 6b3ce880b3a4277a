"""Hugging Face in and out: a layer plan read from a config.json and written into one, layer by layer.

    model = minillm.hub.from_transformers("SmolLM3-3B")      # a folder, or a model of transformers
    theirs = minillm.hub.to_transformers(model)              # the plainest family that says the plan exactly

A family is one file in `families/`. Names load on first use; only to_transformers needs the package transformers. Once
this is imported, `transformers.AutoModelForCausalLM.from_pretrained` loads folders in this project's own form too.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from minillm.hub.auto import tell_auto_classes

if TYPE_CHECKING:
    from minillm.hub.api import from_transformers as from_transformers
    from minillm.hub.api import load as load
    from minillm.hub.api import load_tokenizer as load_tokenizer
    from minillm.hub.api import read_plan as read_plan
    from minillm.hub.api import to_transformers as to_transformers
    from minillm.hub.runs import export as export
    from minillm.hub.runs import import_run as import_run
    from minillm.hub.runs import save as save

_HOMES = {
    "from_transformers": "minillm.hub.api",
    "to_transformers": "minillm.hub.api",
    "load": "minillm.hub.api",
    "load_tokenizer": "minillm.hub.api",
    "read_plan": "minillm.hub.api",
    "save": "minillm.hub.runs",
    "export": "minillm.hub.runs",
    "import_run": "minillm.hub.runs",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'minillm.hub' has no attribute {name!r}")


tell_auto_classes()
