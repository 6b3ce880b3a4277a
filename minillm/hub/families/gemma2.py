"""Gemma 2: norms around each branch, soft-caps on scores and logits, every other layer windowed (models/gemma2)."""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.families.llama import whole_heads
from minillm.hub.family import register
from minillm.hub.llama_like import (
    SANDWICH,
    LlamaLike,
    every,
    first_rotated,
    layer_types,
    said_scale,
    windows,
    written_types,
    written_window,
)
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope, write_rope


class GemmaLike(LlamaLike):
    """The block of Gemma 2 and 3."""

    block = {
        "norm": "rmsnorm", "norm_placement": "sandwich", "norm_unit_offset": True, "embedding_scale": "sqrt_hidden",
    }  # fmt: skip
    norms = SANDWICH
    activation = "hidden_activation"
    inert = frozenset({"hidden_act"})  # older files have both; the class reads hidden_activation
    final_cap: float | None = None
    """The class's default soft-cap of the logits."""

    def common(self, config: Reader) -> Layer:
        """What all layers have alike: the scale of the scores."""
        scalar = config.take("query_pre_attn_scalar", float, 256.0)
        if not scalar > 0:
            raise config.error("query_pre_attn_scalar", "must be above 0")
        return {"scale": said_scale(scalar**-0.5, self.head_dim(config))}

    def block_of(self, config: Reader) -> dict[str, Any]:
        return {"final_logit_softcapping": config.take("final_logit_softcapping", float | None, self.final_cap)}

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        return {
            "query_pre_attn_scalar": round(max(model.layers[0].score_scale, 1e-150) ** -2),  # a float holds it
            "final_logit_softcapping": model.block.final_logit_softcapping,
            "sliding_window": written_window(model) or 4096,
            "layer_types": written_types(model),
        }

    def demands(self, model: ModelConfig) -> list[str]:
        return whole_heads(model, self.name)


@register
class Gemma2(GemmaLike):
    name, rank, architecture = "gemma2", 7, "Gemma2ForCausalLM"
    final_cap = 30.0
    defaults = {
        "vocab_size": 256000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        rope, common = read_rope(config, 10000.0, max_positions), self.common(config)
        types = layer_types(config, depth, every(depth, 2))
        window = config.take("sliding_window", int | None, 4096)
        cap = config.take("attn_logit_softcapping", float | None, 50.0)
        return [{"position": rope, "window": w, "softcap": cap, **common} for w in windows(config, types, window)]

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        return {
            **super().extra(model),
            "attn_logit_softcapping": model.layers[0].softcap,
            "rope_parameters": write_rope(first_rotated(model)),
        }
