"""Granite SWA: a window and a base for each layer (0 is NoPE), attention sinks, Granite's four multipliers.

models/granite_swa. Every layer has a learned sink per head; scores are multiplied by `attention_multiplier` (class
default 1, not head_dim ** -0.5) and logits divided by `logits_scaling`.
"""

from __future__ import annotations

from typing import Any

from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.links import Link, same
from minillm.hub.llama_like import (
    LlamaLike,
    first_rotated,
    layer_types,
    said_factor,
    said_scale,
    windows,
    written_types,
    written_window,
)
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope, write_rope
from minillm.position.rope import RoPE


@register
class GraniteSWA(LlamaLike):
    name, rank, architecture = "granite_swa", 10, "GraniteSWAForCausalLM"
    mlp_bias = True
    defaults = {
        "vocab_size": 100352, "hidden_size": 2560, "intermediate_size": 8192, "num_hidden_layers": 24,
        "num_attention_heads": 20, "num_key_value_heads": 4, "max_position_embeddings": 8192, "hidden_act": "silu",
        "rms_norm_eps": 1e-5, "tie_word_embeddings": True,
    }  # fmt: skip

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        rope = read_rope(config, 10000.0, max_positions)
        thetas = config.take("layer_rope_theta", tuple[float, ...], None)
        thetas = (rope["theta"],) * depth if thetas is None else thetas
        if len(thetas) != depth:
            raise config.error("layer_rope_theta", f"it has {len(thetas)} entries, num_hidden_layers = {depth}")
        default = ["full_attention" if i % 4 == 0 else "sliding_attention" for i in range(depth)]
        spans = windows(config, layer_types(config, depth, default), config.take("sliding_window", int | None, 128))
        scale = config.take("attention_multiplier", float, 1.0)
        return [
            {
                "position": {**rope, "theta": theta} if theta else "nope",
                "window": span,
                "scale": said_scale(scale, self.head_dim(config)),
                "sink_logits": True,
            }
            for theta, span in zip(thetas, spans, strict=True)
        ]

    def block_of(self, config: Reader) -> dict[str, Any]:
        scaling = config.take("logits_scaling", float, 1.0)
        if not scaling > 0:
            raise config.error("logits_scaling", "must be above 0")
        return {
            "embedding_scale": said_factor(config.take("embedding_multiplier", float, 1.0)),
            "residual_scale": said_factor(config.take("residual_multiplier", float, 1.0)),
            "logit_scale": said_factor(1 / scaling),
        }

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        block = model.block
        scale = model.hidden_size**0.5 if block.embedding_scale == "sqrt_hidden" else block.embedding_scale
        return {
            "rope_parameters": write_rope(first_rotated(model)),
            "layer_rope_theta": [
                spec.position.theta if isinstance(spec.position, RoPE) else 0.0 for spec in model.layers
            ],
            "sliding_window": written_window(model) or 128,
            "layer_types": written_types(model),
            "attention_multiplier": model.layers[0].score_scale,
            "embedding_multiplier": 1.0 if scale is None else scale,
            "residual_multiplier": 1.0 if block.residual_scale is None else block.residual_scale,
            "logits_scaling": 1.0 if block.logit_scale is None else 1 / block.logit_scale,
        }

    def layer_links(self, spec: LayerSpec, model: ModelConfig) -> list[Link]:
        sinks = same(f"layers.{spec.index}.attention.sinks", f"{self.prefix}layers.{spec.index}.self_attn.sinks")
        return [*super().layer_links(spec, model), sinks]
