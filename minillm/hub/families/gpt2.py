"""GPT-2: a learned table of positions added to the embeddings, biases everywhere (models/gpt2).

Matrices are stored input first (Conv1D). Old files also hold each layer's causal mask as `attn.bias` and the number
it masks with as `attn.masked_bias`, which are no weights; `attn.c_attn.bias` is one.
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.gpt_like import ACTIVATIONS, WRITTEN_ACTIVATION, GPTLike
from minillm.hub.links import Step, Transpose
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader


@register
class GPT2(GPTLike):
    name, rank, architecture = "gpt2", 11, "GPT2LMHeadModel"
    prefix, embedding = "transformer.", "transformer.wte.weight"
    ignored_tensors = r"(^|\.)(cross)?attn\.(masked_)?bias$"
    inert = frozenset(
        {
            "n_ctx", "reorder_and_upcast_attn", "summary_type", "summary_use_proj", "summary_activation",
            "summary_proj_to_labels", "summary_first_dropout",
        }
    )  # fmt: skip
    keys = {
        "vocab_size": ("vocab_size",),
        "hidden_size": ("n_embd", "hidden_size"),
        "intermediate_size": ("n_inner",),
        "num_hidden_layers": ("n_layer", "num_hidden_layers"),
        "num_attention_heads": ("n_head", "num_attention_heads"),
        "max_position_embeddings": ("n_positions", "max_position_embeddings"),
    }
    defaults = {
        "vocab_size": 50257, "hidden_size": 768, "intermediate_size": None, "num_hidden_layers": 12,
        "num_attention_heads": 12, "max_position_embeddings": 1024, "tie_word_embeddings": True,
    }  # fmt: skip
    block = {"norm_bias": True, "attention_bias": True, "mlp_bias": True}
    outside = {"embed_tokens": "wte", "embed_positions.table": "wpe", "norm": "ln_f"}
    inside = {
        "input_layernorm": "ln_1",
        "attention.qkv_proj": "attn.c_attn",
        "attention.o_proj": "attn.c_proj",
        "pre_feedforward_layernorm": "ln_2",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
    }

    def layers(self, config: Reader, depth: int, head_dim: int, max_positions: int) -> list[Layer]:
        config.only("add_cross_attention", False, False)
        scale = head_dim**-0.5 if config.take("scale_attn_weights", bool, True) else 1.0
        falling = config.take("scale_attn_by_inverse_layer_idx", bool, False)
        return [
            {"position": "nope", "window": None, "scale": scale / (index + 1) if falling else scale}
            for index in range(depth)
        ]

    def block_of(self, config: Reader) -> dict[str, Any]:
        return {"mlp": ACTIVATIONS[config.only("activation_function", "gelu_new", *ACTIVATIONS)]}

    def embedding_of(self) -> dict[str, Any]:
        return {"position": "learned"}

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        first, second = model.layers[0], model.layers[min(1, model.num_hidden_layers - 1)]
        return {
            "activation_function": WRITTEN_ACTIVATION.get(model.block.mlp, "gelu_new"),
            "scale_attn_weights": first.score_scale != 1.0,
            "scale_attn_by_inverse_layer_idx": first.score_scale != second.score_scale,
        }

    def steps(self, module: str, model: ModelConfig) -> tuple[Step, ...]:
        return (Transpose(),) if "_proj" in module else ()
