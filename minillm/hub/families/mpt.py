"""MPT: ALiBi on every layer and no bias anywhere (models/mpt).

The class in transformers always adds ALiBi and has an MLP four times as wide as the model; it does not read `alibi`,
`qk_ln`, `prefix_lm`, `logit_scale`, `expansion_ratio` or `norm_type`. A file that sets these describes another model
and is refused, as are slopes that do not go down to 2 ** -8, and `clip_qkv`. Theirs runs up to `max_seq_len` tokens.
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.gpt_like import GPTLike
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader

SLOPES = 8
"""`alibi_bias_max`: the flattest head's slope is 2 ** -8."""


@register
class MPT(GPTLike):
    name, rank, architecture = "mpt", 14, "MptForCausalLM"
    prefix, embedding = "transformer.", "transformer.wte.weight"
    inert = frozenset(
        {
            "emb_pdrop", "embedding_fraction", "init_config", "init_device", "learned_pos_emb", "tokenizer_name",
            "verbose",
        }
    )  # fmt: skip
    keys = {
        "vocab_size": ("vocab_size",),
        "hidden_size": ("d_model", "hidden_size"),
        "num_hidden_layers": ("n_layers", "num_hidden_layers"),
        "num_attention_heads": ("n_heads", "num_attention_heads"),
        "max_position_embeddings": ("max_seq_len",),
    }
    defaults = {
        "vocab_size": 50368, "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16,
        "max_position_embeddings": 2048, "tie_word_embeddings": True,
    }  # fmt: skip
    block = {"norm_bias": False, "attention_bias": False, "mlp_bias": False, "mlp": "gelu_erf"}
    wide = 4
    stack = "blocks."
    outside = {"embed_tokens": "wte", "norm": "norm_f"}
    inside = {
        "input_layernorm": "norm_1",
        "attention.qkv_proj": "attn.Wqkv",
        "attention.o_proj": "attn.out_proj",
        "pre_feedforward_layernorm": "norm_2",
        "mlp.up_proj": "ffn.up_proj",
        "mlp.down_proj": "ffn.down_proj",
    }

    def layers(self, config: Reader, depth: int, head_dim: int, max_positions: int) -> list[Layer]:
        config.only("no_bias", True, True)
        config.only("expansion_ratio", self.wide, self.wide)
        config.only("norm_type", "low_precision_layernorm", "low_precision_layernorm", "layernorm")
        config.only("logit_scale", None, None)
        given = config.take("attn_config", dict | None, None) or {}
        attention = Reader(given, f"{config.where}: attn_config")
        attention.only("attn_type", "multihead_attention", "multihead_attention")
        attention.only("alibi", True, True)  # a table of positions instead is not in the class of transformers
        attention.only("alibi_bias_max", SLOPES, SLOPES)
        for key in ("clip_qkv", "qk_ln", "prefix_lm", "attn_uses_sequence_id"):
            attention.only(key, None, None, False)
        scale = attention.take("softmax_scale", float | None, None)
        attention.finish({"attn_impl"})
        return [{"position": "alibi", "window": None, "scale": scale}] * depth

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        scale = model.layers[0].scale
        return {"attn_config": {"alibi": True, "alibi_bias_max": SLOPES, "softmax_scale": scale}}
