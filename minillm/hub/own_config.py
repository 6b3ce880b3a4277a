"""`MinillmConfig`: config.json of this project's own form, as transformers holds it."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedConfig

from minillm.config.schema import ModelConfig
from minillm.hub.families.own import FORMAT
from minillm.hub.family import family


class MinillmConfig(PreTrainedConfig):
    """Plain values of a `ModelConfig`; `families/own.py` says what they are, and is the only reader of them.

    The defaults are no model: transformers makes an empty configuration to compare others with.
    """

    model_type = "minillm"
    keys_to_ignore_at_inference = ["cache"]

    def __init__(
        self,
        vocab_size: int | None = None,
        hidden_size: int | None = None,
        intermediate_size: int | None = None,
        num_hidden_layers: int | None = None,
        num_attention_heads: int | None = None,
        num_key_value_heads: int | None = None,
        head_dim: int | None = None,
        max_position_embeddings: int | None = None,
        block: dict[str, Any] | None = None,
        embedding: dict[str, Any] | None = None,
        layers: list[dict[str, Any]] | None = None,
        tie_word_embeddings: bool = True,
        use_cache: bool = True,
        minillm_format: int = FORMAT,
        **kwargs: Any,
    ) -> None:
        self.vocab_size, self.hidden_size, self.intermediate_size = vocab_size, hidden_size, intermediate_size
        self.num_hidden_layers, self.num_attention_heads = num_hidden_layers, num_attention_heads
        self.num_key_value_heads, self.head_dim = num_key_value_heads, head_dim
        self.max_position_embeddings = max_position_embeddings
        self.block, self.embedding, self.layers = block, embedding, layers
        self.use_cache = use_cache
        self.minillm_format = minillm_format
        super().__init__(**{"tie_word_embeddings": tie_word_embeddings, **kwargs})

    def model_config(self) -> ModelConfig:
        """The checked configuration. ConfigError names a key that cannot be honoured."""
        model, _ = family(self.model_type).read(self.to_dict())
        return model
