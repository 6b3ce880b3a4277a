"""EXAONE 4: norms on the branches' outputs, QK-norm, and RNoPE-SWA in the large model (models/exaone4).

With a window in the file windowed layers rotate and full ones do not; without one every layer is full and rotates.
`sliding_window_pattern` is a number, or letters such as LLLG, which only `layer_types` makes binding: the class itself
cannot read letters, and its promise of a full last layer is not kept by its code.
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.llama_like import (
    BRANCH_POST,
    LlamaLike,
    every,
    first_rotated,
    layer_types,
    windows,
    written_types,
    written_window,
)
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope, write_rope


@register
class Exaone4(LlamaLike):
    name, rank, architecture = "exaone4", 6, "Exaone4ForCausalLM"
    attention_bias = False
    block = {"norm": "rmsnorm", "norm_placement": "branch_post"}
    norms = BRANCH_POST
    defaults = {
        "vocab_size": 102400, "hidden_size": 4096, "intermediate_size": 16384, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 2048, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
    }  # fmt: skip

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        rope = read_rope(config, 10000.0, max_positions)
        window = config.take("sliding_window", int | None, 4096)
        types = layer_types(config, depth, self._types(config, depth, window))
        return [
            {"position": rope if window is None or span is not None else "nope", "window": span, "qk_norm": "rms"}
            for span in windows(config, types, window)
        ]

    def _types(self, config: Reader, depth: int, window: int | None) -> list[str]:
        pattern = config.take("sliding_window_pattern", int | str | None, 4)
        if window is None or not pattern:
            return ["full_attention"] * depth
        if isinstance(pattern, int):
            return every(depth, pattern)
        letters = {"L": "sliding_attention", "G": "full_attention"}
        if set(pattern) - set(letters):
            raise config.error("sliding_window_pattern", "allowed: a number, or the letters L (local) and G (global)")
        types = [letters[pattern[i % len(pattern)]] for i in range(depth)]
        if types[-1] != "full_attention" and not config.has("layer_types"):
            raise config.error("sliding_window_pattern", "is the last layer local or full? Give layer_types")
        return types

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        unrotated = any(spec.position.scheme == "nope" for spec in model.layers)
        return {
            "rope_parameters": write_rope(first_rotated(model)),
            "sliding_window": written_window(model) or (4096 if unrotated else None),
            "layer_types": written_types(model),
        }
