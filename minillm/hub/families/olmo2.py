"""OLMo 2: norms on the branches' outputs, and on q and k over all heads at once (models/olmo2)."""

from __future__ import annotations

from minillm.hub.family import register
from minillm.hub.llama_like import BRANCH_POST, LlamaLike
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope

QK_NORM = {"type": "rms", "over": "full"}
DEFAULTS = {
    "vocab_size": 50304, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": None, "max_position_embeddings": 2048, "hidden_act": "silu",
    "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
}  # fmt: skip


@register
class Olmo2(LlamaLike):
    name, rank, architecture = "olmo2", 3, "Olmo2ForCausalLM"
    block = {"norm": "rmsnorm", "norm_placement": "branch_post"}
    norms = BRANCH_POST
    defaults = DEFAULTS

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        rope = read_rope(config, 10000.0, max_positions)
        return [{"position": rope, "window": None, "qk_norm": QK_NORM}] * depth
