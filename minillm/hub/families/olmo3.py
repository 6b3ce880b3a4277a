"""OLMo 3: OLMo 2 with windows on three layers of four, and RoPE scaling on the full ones alone (models/olmo3).

Files of transformers 4 have one `rope_theta`, for all layers. (transformers 5.24 gives it to the full layers and 500000
to the others; released models have 500000 in both.)
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.families.olmo2 import DEFAULTS, QK_NORM
from minillm.hub.family import register
from minillm.hub.llama_like import BRANCH_POST, LlamaLike, every, layer_types, windows, written_types, written_window
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import LAYER_TYPES, read_rope_by_type, write_rope_by_type


@register
class Olmo3(LlamaLike):
    name, rank, architecture = "olmo3", 4, "Olmo3ForCausalLM"
    block = {"norm": "rmsnorm", "norm_placement": "branch_post"}
    norms = BRANCH_POST
    defaults = DEFAULTS

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        ropes = read_rope_by_type(config, dict.fromkeys(LAYER_TYPES, 500000.0), max_positions)
        types = layer_types(config, depth, every(depth, 4))
        spans = windows(config, types, config.take("sliding_window", int | None, 4096))
        return [
            {"position": ropes[name], "window": w, "qk_norm": QK_NORM} for name, w in zip(types, spans, strict=True)
        ]

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        return {
            "rope_parameters": write_rope_by_type(model),
            "sliding_window": written_window(model) or 4096,  # its class builds a mask with it, used or not
            "layer_types": written_types(model),
        }
