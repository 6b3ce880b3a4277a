"""Qwen 3, dense: RMS norm on each head of q and k before the rotation (models/qwen3)."""

from __future__ import annotations

from minillm.hub.families.qwen2 import QwenWindows
from minillm.hub.family import register


@register
class Qwen3(QwenWindows):
    name, rank, architecture = "qwen3", 2, "Qwen3ForCausalLM"
    fields = {"qk_norm": "rms"}
    defaults = {
        "vocab_size": 151936, "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32768,
        "hidden_act": "silu", "rms_norm_eps": 1e-6, "tie_word_embeddings": False,
    }  # fmt: skip
