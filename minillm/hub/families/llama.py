"""Llama 1 to 3 and the many models saved under its name: all layers full, one RoPE (models/llama)."""

from __future__ import annotations

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.llama_like import LlamaLike
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope


@register
class Llama(LlamaLike):
    name, rank, architecture = "llama", 0, "LlamaForCausalLM"
    mlp_bias = True
    defaults = {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": None, "max_position_embeddings": 2048, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    }  # fmt: skip

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        return [{"position": read_rope(config, 10000.0, max_positions), "window": None}] * depth

    def demands(self, model: ModelConfig) -> list[str]:
        return whole_heads(model, self.name)


def whole_heads(model: ModelConfig, name: str) -> list[str]:
    """Some classes refuse a width that the heads do not divide, although head_dim is given."""
    heads = model.layers[0].num_attention_heads
    if model.hidden_size % heads == 0:
        return []
    return [f"hidden_size is {model.hidden_size}, {name} in transformers asks for a multiple of the {heads} heads"]
