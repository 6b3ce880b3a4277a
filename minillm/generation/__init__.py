"""Text from a trained model: decoding with the cache, sampling, streaming, files of prompts.

ids = generate(model, [[1, 5, 9], [1, 7]], max_new_tokens=20, temperature=0.8)        # the one code path
python -m minillm.generate run=outputs/RUN prompt="The President"                     # the program on top of it
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minillm.generation.decode import PREFILL_TOKENS as PREFILL_TOKENS
    from minillm.generation.decode import generate as generate

__all__ = ["PREFILL_TOKENS", "generate"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module("minillm.generation.decode"), name)
    raise AttributeError(f"module 'minillm.generation' has no attribute {name!r}")
