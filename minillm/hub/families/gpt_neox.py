"""GPT-NeoX and Pythia: partial rotation, attention and MLP in parallel with a layernorm each (models/gpt_neox).

q, k and v are stored head by head. Files call the head `embed_out`, transformers since 5.x `lm_head`.
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.gpt_like import ACTIVATIONS, WRITTEN_ACTIVATION, GPTLike
from minillm.hub.links import HeadsFirst, Step
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope, write_rope
from minillm.position.rope import RoPE

ROTATED = 0.25
"""The class's default share of a head."""


@register
class GPTNeoX(GPTLike):
    name, rank, architecture = "gpt_neox", 12, "GPTNeoXForCausalLM"
    prefix, embedding = "gpt_neox.", "gpt_neox.embed_in.weight"
    ignored_tensors = r"rotary_emb\.inv_freq$|\.attention\.(masked_)?bias$"
    keys = {
        name: (name,)
        for name in (
            "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
            "max_position_embeddings",
        )
    }  # fmt: skip
    defaults = {
        "vocab_size": 50432, "hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44,
        "num_attention_heads": 64, "max_position_embeddings": 2048, "tie_word_embeddings": False,
    }  # fmt: skip
    block = {"norm_bias": True, "mlp_bias": True}
    eps = "layer_norm_eps"
    stack = "layers."
    outside = {"embed_tokens": "embed_in", "norm": "final_layer_norm"}
    inside = {
        "input_layernorm": "input_layernorm",
        "attention.qkv_proj": "attention.query_key_value",
        "attention.o_proj": "attention.dense",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }

    def layers(self, config: Reader, depth: int, head_dim: int, max_positions: int) -> list[Layer]:
        theta = config.take("rotary_emb_base", float, 10000.0)
        share = config.take("rotary_pct", float, ROTATED)
        # Written beside them by some versions; transformers 5.24 reads the names above alone.
        for key, value in {"rope_theta": theta, "partial_rotary_factor": share}.items():
            if config.take(key, float, value) != value:
                raise config.error(key, f"gpt_neox reads rotary_emb_base and rotary_pct, which say {value:g}")
        rope = read_rope(config, theta, max_positions, partial=share)
        return [{"position": rope, "window": None}] * depth

    def block_of(self, config: Reader) -> dict[str, Any]:
        parallel = config.take("use_parallel_residual", bool, True)
        return {
            "mlp": ACTIVATIONS[config.only("hidden_act", "gelu", *ACTIVATIONS)],
            "norm_placement": "parallel_split" if parallel else "pre",
            "attention_bias": config.take("attention_bias", bool, True),
        }

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        position, block = model.layers[0].position, model.block
        # Written out even where all is rotated: left out it would mean a quarter.
        share = position.partial_rotary_factor if isinstance(position, RoPE) else ROTATED
        rope = {**write_rope(model.layers[0]), "partial_rotary_factor": share}
        return {
            "hidden_act": WRITTEN_ACTIVATION.get(block.mlp, "gelu"),
            "use_parallel_residual": block.norm_placement == "parallel_split",
            "attention_bias": block.attention_bias,
            "rope_parameters": rope,
            "rotary_pct": share,  # the first releases of transformers 5, and older ones, read these two alone
            "rotary_emb_base": rope["rope_theta"],
        }

    def steps(self, module: str, model: ModelConfig) -> tuple[Step, ...]:
        return (HeadsFirst(model.layers[0].num_attention_heads),) if module == "attention.qkv_proj" else ()

    def tensor_name(self, name: str) -> str | None:
        return super().tensor_name(self.head if name == "embed_out.weight" else name)

    def file_name(self, name: str) -> str:
        return "embed_out.weight" if name == self.head else name
