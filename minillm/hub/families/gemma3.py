"""Gemma 3: QK-norm, five windowed layers to each full one, a base for each of the two (models/gemma3).

`gemma3_text` is the language model. `gemma3` holds one beside a vision tower: it is refused, or its text part is taken
when that is asked for. RoPE scaling (linear, factor 8 in the larger models) changes full layers alone. The class has
Gemma 2's soft-caps in its configuration: the logits' is applied (not beside a vision tower), the scores' is not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError
from minillm.hub.families.gemma2 import GemmaLike
from minillm.hub.family import register
from minillm.hub.llama_like import every, full_interval, layer_types, windows
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope_by_type, write_rope_by_type

THETAS = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}


@register
class Gemma3(GemmaLike):
    name, rank, architecture = "gemma3_text", 8, "Gemma3ForCausalLM"
    defaults = {
        "vocab_size": 262208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
        "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131072,
        "hidden_activation": "gelu_pytorch_tanh", "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        ropes = read_rope_by_type(config, THETAS, max_positions, local_theta_key="rope_local_base_freq")
        common = self.common(config)
        if config.take("attn_logit_softcapping", float | None, None) is not None:
            raise config.error(
                "attn_logit_softcapping",
                "transformers' class for Gemma 3 keeps this number and caps no scores with it, so what the file says "
                "and what it computes differ. Allowed: null",
            )
        types = layer_types(config, depth, every(depth, full_interval(config, 6)))
        spans = windows(config, types, config.take("sliding_window", int | None, 4096))
        return [
            {"position": ropes[name], "window": w, "qk_norm": "rms", **common}
            for name, w in zip(types, spans, strict=True)
        ]

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        return {**super().extra(model), "rope_parameters": write_rope_by_type(model)}


@register
class Gemma3WithVision(Gemma3):
    """The language model inside a `gemma3` folder; never written."""

    name, rank = "gemma3", 99
    exports = False
    ignored_tensors = rf"{Gemma3.ignored_tensors}|^(model\.)?(vision_tower|multi_modal_projector)\."

    def text_part(self, values: Mapping[str, Any], where: str, text_only: bool) -> Mapping[str, Any]:
        if not text_only:
            raise ConfigError(
                f"{where}: vision_config: gemma3 reads images, which this project does not. "
                f"Its language model alone is had with text_only=True (--text-only on the command line)."
            )
        text = dict(Reader(values, where).take("text_config", dict | None, None) or {})
        tie = values.get("tie_word_embeddings")
        return text if tie is None else {**text, "tie_word_embeddings": tie}

    def block_of(self, config: Reader) -> dict[str, Any]:
        if config.take("final_logit_softcapping", float | None, None) is not None:
            raise config.error(
                "final_logit_softcapping",
                "transformers' class with a vision tower caps no logits, so what the file says and what it computes "
                "differ. Allowed: null",
            )
        return super().block_of(config)

    def tensor_name(self, name: str) -> str | None:
        for theirs in ("language_model.model.", "model.language_model."):
            if name.startswith(theirs):
                return super().tensor_name(self.prefix + name.removeprefix(theirs))
        return super().tensor_name(name.removeprefix("language_model."))
