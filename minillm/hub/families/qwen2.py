"""Qwen 2 and 2.5: biases on q, k and v; windows from layer `max_window_layers` on, if at all (models/qwen2)."""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.llama_like import LlamaLike, first_rotated, layer_types, windows, written_types, written_window
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope, write_rope


class QwenWindows(LlamaLike):
    """Layers of Qwen 2 and 3. `sliding_window` counts only with `use_sliding_window`."""

    fields: Layer = {}
    """What every layer has beside position and window."""
    inert = frozenset({"use_mrope"})

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        rope = read_rope(config, 10000.0, max_positions)
        on = config.take("use_sliding_window", bool, False)
        window = config.take("sliding_window", int | None, 4096)
        first = config.take("max_window_layers", int, 28)
        window = window if on else None
        sliding = [window is not None and i >= first for i in range(depth)]
        types = layer_types(config, depth, ["sliding_attention" if s else "full_attention" for s in sliding])
        return [{"position": rope, "window": w, **self.fields} for w in windows(config, types, window)]

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        window = written_window(model)
        return {
            "rope_parameters": write_rope(first_rotated(model)),
            "use_sliding_window": window is not None,
            "sliding_window": window,
            "max_window_layers": model.num_hidden_layers,
            "layer_types": written_types(model),
        }


@register
class Qwen2(QwenWindows):
    name, rank, architecture = "qwen2", 1, "Qwen2ForCausalLM"
    attention_bias = False
    fields = {"qkv_bias": True}
    defaults = {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32768, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    }  # fmt: skip
