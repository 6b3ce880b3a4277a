"""What GPT-2 and its kin share: layernorms, one matrix for q, k and v, a plain MLP, no key-value groups.

A family says in class attributes how its keys and tensors are called, and in `layers` what its layers do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from minillm.config.schema import ModelConfig
from minillm.hub.family import Family
from minillm.hub.links import Link, Step, same
from minillm.hub.plan import Layer, Plan
from minillm.hub.reader import Reader

ACTIVATIONS = {
    "gelu": "gelu_erf", "gelu_python": "gelu_erf",
    "gelu_new": "gelu", "gelu_pytorch_tanh": "gelu", "gelu_fast": "gelu",
}  # fmt: skip
WRITTEN_ACTIVATION = {"gelu_erf": "gelu", "gelu": "gelu_new"}


class GPTLike(Family):
    """Decoder with `qkv_proj` in one tensor. Heads divide the width; there are as many key-value heads as heads."""

    keys: ClassVar[Mapping[str, Sequence[str]]]
    """Their names of our sizes, the one that is written first; transformers takes the others as well."""
    defaults: ClassVar[Mapping[str, Any]]
    """The class's defaults in transformers 5.24, under our names."""
    block: ClassVar[Mapping[str, Any]]
    """What is the same in every model of the family."""
    eps: ClassVar[str] = "layer_norm_epsilon"
    stack: ClassVar[str] = "h."
    """Stands before a layer's number."""
    outside: ClassVar[Mapping[str, str]]
    """Our module outside of the layers, and theirs."""
    inside: ClassVar[Mapping[str, str]]
    """Our module inside a layer, and theirs."""
    wide: ClassVar[int | None] = None
    """The MLP is this many times as wide as the model, where the class says so and no key does."""

    # ---- what a family adds --------------------------------------------------------------------------------------

    def layers(self, config: Reader, depth: int, head_dim: int, max_positions: int) -> list[Layer]:
        """Each layer's position and whatever else differs from family to family."""
        raise NotImplementedError

    def block_of(self, config: Reader) -> dict[str, Any]:
        """Block fields that a config.json of this family may change, beyond the common ones."""
        return {}

    def embedding_of(self) -> dict[str, Any]:
        """`model.embedding`."""
        return {}

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        """Keys beyond the common ones."""
        return {}

    def steps(self, module: str, model: ModelConfig) -> tuple[Step, ...]:
        """How their tensors of our `module` are laid out otherwise."""
        return ()

    # ---- config.json ---------------------------------------------------------------------------------------------

    def plan(self, config: Reader) -> Plan:
        sizes = {name: self._number(config, name) for name in self.keys}
        width, heads = sizes["hidden_size"], sizes["num_attention_heads"]
        if width % heads:
            raise config.error(self.keys["hidden_size"][0], f"{self.name} asks for a multiple of the {heads} heads")
        if self.wide is not None:
            sizes["intermediate_size"] = self.wide * width
        longest, vocab = sizes.pop("max_position_embeddings"), sizes.pop("vocab_size")
        size = {**sizes, "num_key_value_heads": heads, "head_dim": width // heads}
        block = {
            "norm": "layernorm",
            "norm_placement": "pre",
            **self.block,
            "norm_eps": config.take(self.eps, float, 1e-5),
            "tie_word_embeddings": config.take("tie_word_embeddings", bool, self.defaults["tie_word_embeddings"]),
            "initializer_range": config.take("initializer_range", float, 0.02),
            **self.block_of(config),
        }
        layers = self.layers(config, size["num_hidden_layers"], size["head_dim"], longest)
        return Plan(size, block, layers, vocab, longest, self.embedding_of())

    def _number(self, config: Reader, name: str) -> int:
        """A size under any of its names; two that differ are an error."""
        given = {key: config.size(key, None) for key in self.keys[name]}
        values = {value for value in given.values() if value is not None}
        if len(values) > 1:
            raise config.error(self.keys[name][0], f"{' and '.join(self.keys[name])} are one setting, and differ here")
        if values:
            return int(values.pop())
        fallback = self.defaults[name]
        return int(4 * self._number(config, "hidden_size") if fallback is None else fallback)

    def config(self, model: ModelConfig) -> dict[str, Any]:
        ours = {"num_attention_heads": model.layers[0].num_attention_heads}
        sizes = {theirs[0]: ours.get(name) or getattr(model, name) for name, theirs in self.keys.items()}
        return {
            **sizes,
            self.eps: model.block.norm_eps,
            "tie_word_embeddings": model.block.tie_word_embeddings,
            "initializer_range": model.initializer_range,
            **self.extra(model),
        }

    def demands(self, model: ModelConfig) -> list[str]:
        heads = model.layers[0].num_attention_heads
        if model.hidden_size % heads == 0:
            return []
        return [f"hidden_size is {model.hidden_size}, {self.name} asks for a multiple of the {heads} heads"]

    # ---- tensors -------------------------------------------------------------------------------------------------

    def links(self, model: ModelConfig) -> list[Link]:
        out = []
        for ours, theirs in self.outside.items():
            out += self._module(ours, f"{self.prefix}{theirs}", ours, model)
        for index in range(model.num_hidden_layers):
            for ours, theirs in self.inside.items():
                out += self._module(f"layers.{index}.{ours}", f"{self.prefix}{self.stack}{index}.{theirs}", ours, model)
        if not model.block.tie_word_embeddings:
            out.append(same("lm_head.weight", self.head))
        return out

    def _module(self, ours: str, theirs: str, module: str, model: ModelConfig) -> list[Link]:
        steps = self.steps(module, model)
        kinds = ("weight", "bias") if _has_bias(module, model) else ("weight",)
        return [same(f"{ours}.{kind}", f"{theirs}.{kind}", *steps) for kind in kinds]


def _has_bias(module: str, model: ModelConfig) -> bool:
    if module.endswith("norm"):
        return model.block.norm_bias
    if module.startswith("mlp"):
        return model.block.mlp_bias
    if module == "attention.qkv_proj":
        return model.layers[0].qkv_bias
    return module == "attention.o_proj" and model.block.attention_bias
