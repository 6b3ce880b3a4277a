"""Cohere 2 (Command R7B, Command A): RNoPE-SWA, attention and MLP in parallel, scaled logits (models/cohere2).

Windowed layers rotate (interleaved pairs) and full layers do not: the class ties the two together, so a plan that
windows a NoPE layer or rotates a full one is not Cohere's.
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.llama_like import (
    SHARED,
    LlamaLike,
    every,
    first_rotated,
    full_interval,
    layer_types,
    said_factor,
    windows,
    written_types,
    written_window,
)
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope, write_rope


@register
class Cohere2(LlamaLike):
    name, rank, architecture = "cohere2", 9, "Cohere2ForCausalLM"
    layout = "interleaved"
    block = {"norm": "layernorm", "norm_bias": False, "norm_placement": "parallel"}
    norms = SHARED
    eps = "layer_norm_eps"
    inert = frozenset({"use_parallel_embedding"})  # how the embeddings were split over devices in training
    defaults = {
        "vocab_size": 256000, "hidden_size": 8192, "intermediate_size": 22528, "num_hidden_layers": 40,
        "num_attention_heads": 64, "num_key_value_heads": None, "max_position_embeddings": 8192, "hidden_act": "silu",
        "layer_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        rope = read_rope(config, 10000.0, max_positions, layout="interleaved")
        interval = full_interval(config, 4)
        types = layer_types(config, depth, every(depth, interval))
        for name, default, *allowed in (
            ("use_parallel_block", True, True),
            ("use_gated_activation", True, True),
            ("use_qk_norm", False, False),
            ("use_embedding_sharing", True, True, config.take("tie_word_embeddings", bool, True)),
            ("rotary_pct", 1.0, 1.0),
            ("position_embedding_type", "rope_gptj", "rope_gptj"),
            ("order_of_interleaved_layers", "local_attn_first", "local_attn_first"),
            ("layer_switch", interval, interval),
        ):
            config.only(name, default, *allowed)
        window = config.take("sliding_window", int | None, 4096)
        return [
            {"position": "nope" if span is None else rope, "window": span} for span in windows(config, types, window)
        ]

    def block_of(self, config: Reader) -> dict[str, Any]:
        return {"logit_scale": said_factor(config.take("logit_scale", float, 0.0625))}

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        scale = model.block.logit_scale
        return {
            "rope_parameters": write_rope(first_rotated(model)),
            "sliding_window": written_window(model) or 4096,
            "layer_types": written_types(model),
            "logit_scale": 1.0 if scale is None else scale,
        }
