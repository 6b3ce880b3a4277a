"""The sizes and plans that gpu_check.py measures, as plain values: where it runs there may be neither Hydra nor YAML.

tests/test_gpu_check.py holds them to conf/size and conf/model.
"""

from __future__ import annotations

from typing import Any

from minillm.config.parse import model_config
from minillm.config.schema import BlockConfig, ModelConfig, SizeConfig

VOCABULARY = 32000

SIZES = {
    "small": SizeConfig(512, 1408, 12, 8, 4, 64, seq_len=1024, window=128),
    "base": SizeConfig(768, 2048, 12, 12, 4, 64, seq_len=2048, window=256),
    "medium": SizeConfig(1024, 2816, 24, 16, 8, 64, seq_len=4096, window=512),
}
TOY = {"toy": SizeConfig(32, 64, 4, 4, 2, 16, seq_len=64, window=8)}

ROPE = {"scheme": "rope", "theta": 10000.0}
FAR_ROPE = {"scheme": "rope", "theta": 1000000.0}


def plan(name: str, window: int) -> dict[str, Any]:
    """The `layers` of an arm: rope (full attention), rnope_swa or gemma3."""
    if name == "rope":
        return {"kinds": {"full": {"position": ROPE, "window": None}}, "pattern": ["full"]}
    if name == "rnope_swa":
        kinds: dict[str, Any] = {
            "local": {"position": ROPE, "window": window},
            "global": {"position": "nope", "window": None},
        }
        return {"kinds": kinds, "pattern": [*3 * ["local"], "global"]}
    assert name == "gemma3"
    kinds = {
        "local": {"position": ROPE, "window": window, "qk_norm": "rms"},
        "global": {"position": FAR_ROPE, "window": None, "qk_norm": "rms"},
    }
    return {"kinds": kinds, "pattern": [*5 * ["local"], "global"]}


PLANS = ("rope", "rnope_swa", "gemma3")


def model(size: SizeConfig, name: str, length: int, window: int, backend: Any = "auto") -> ModelConfig:
    """An arm in the standard block at one training length."""
    plain = {"layers": plan(name, window), "backend": backend}
    return model_config(plain, size, BlockConfig(), length, VOCABULARY)[0]
