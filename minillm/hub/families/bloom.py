"""BLOOM: ALiBi on every layer and a norm right after the embeddings (models/bloom).

q, k and v are stored head by head. Its ALiBi is `slope * position of the key`, which differs from ours by a number per
row that the softmax takes away; the slopes are the same for any number of heads.
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.gpt_like import GPTLike
from minillm.hub.links import HeadsFirst, Step
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader


@register
class Bloom(GPTLike):
    name, rank, architecture = "bloom", 13, "BloomForCausalLM"
    prefix, embedding = "transformer.", "transformer.word_embeddings.weight"
    inert = frozenset(
        {
            "offset_alibi", "masked_softmax_fusion", "bias_dropout_fusion", "skip_bias_add",
            "skip_bias_add_qkv", "attention_softmax_in_fp32",
        }
    )  # fmt: skip
    keys = {
        "vocab_size": ("vocab_size",),
        "hidden_size": ("hidden_size", "n_embed"),
        "num_hidden_layers": ("n_layer", "num_hidden_layers"),
        "num_attention_heads": ("n_head", "num_attention_heads"),
        "max_position_embeddings": ("seq_length",),
    }
    defaults = {
        "vocab_size": 250880, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8,
        "max_position_embeddings": 2048, "tie_word_embeddings": True,
    }  # fmt: skip
    block = {"norm_bias": True, "attention_bias": True, "mlp_bias": True, "mlp": "gelu", "embedding_norm": True}
    wide = 4
    outside = {"embed_tokens": "word_embeddings", "embed_norm": "word_embeddings_layernorm", "norm": "ln_f"}
    inside = {
        "input_layernorm": "input_layernorm",
        "attention.qkv_proj": "self_attention.query_key_value",
        "attention.o_proj": "self_attention.dense",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "mlp.up_proj": "mlp.dense_h_to_4h",
        "mlp.down_proj": "mlp.dense_4h_to_h",
    }

    def layers(self, config: Reader, depth: int, head_dim: int, max_positions: int) -> list[Layer]:
        if config.take("apply_residual_connection_post_layernorm", bool, False):
            raise config.error(
                "apply_residual_connection_post_layernorm",
                "the residual stream would be taken after the norm, and no norm_placement here does that",
            )
        if config.take("slow_but_exact", bool, False) and config.take("pretraining_tp", int, 1) > 1:
            raise config.error(
                "slow_but_exact",
                "with pretraining_tp above 1 the class then leaves out the biases of dense and dense_4h_to_h. "
                "Allowed: false, which is what the model was trained as",
            )
        return [{"position": "alibi", "window": None}] * depth

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        return {"apply_residual_connection_post_layernorm": False}

    def steps(self, module: str, model: ModelConfig) -> tuple[Step, ...]:
        return (HeadsFirst(model.layers[0].num_attention_heads),) if module == "attention.qkv_proj" else ()
