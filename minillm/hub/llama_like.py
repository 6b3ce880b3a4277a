"""What Llama and its kin share: the keys of their config.json and the names of their tensors.

A family says in class attributes what it has (`block`, `norms`, `defaults`) and in two methods what its layers do
(`layers`, from config.json; `extra`, into it).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.hub.family import Family, written_sizes
from minillm.hub.links import Link, joined, same
from minillm.hub.plan import Layer, Plan
from minillm.hub.reader import Reader
from minillm.hub.rope import LAYER_TYPES, write_rope

ACTIVATIONS = {"silu": "swiglu", "swish": "swiglu", "gelu_pytorch_tanh": "geglu", "gelu_new": "geglu"}
WRITTEN_ACTIVATION = {"swiglu": "silu", "geglu": "gelu_pytorch_tanh"}

PRE = {"input_layernorm": "input_layernorm", "pre_feedforward_layernorm": "post_attention_layernorm"}
BRANCH_POST = {
    "post_attention_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
}
SANDWICH = {
    "input_layernorm": "input_layernorm",
    "post_attention_layernorm": "post_attention_layernorm",
    "pre_feedforward_layernorm": "pre_feedforward_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
}
SHARED = {"input_layernorm": "input_layernorm"}
"""Where norms stand: our name of a layer's norm, and theirs."""


class LlamaLike(Family):
    """Decoder with separate q, k, v, gate and up matrices and a rotary position."""

    defaults: ClassVar[Mapping[str, Any]]
    """The class's defaults in transformers 5.24 of keys that a config.json may leave out."""
    block: ClassVar[Mapping[str, Any]] = {"norm": "rmsnorm", "norm_placement": "pre"}
    """What is the same in every model of the family."""
    norms: ClassVar[Mapping[str, str]] = PRE
    eps: ClassVar[str] = "rms_norm_eps"
    activation: ClassVar[str] = "hidden_act"
    attention_bias: ClassVar[bool] = True
    """Whether the class has the key `attention_bias`: biases of q, k, v and the output projection."""
    mlp_bias: ClassVar[bool] = False
    """Whether the class has the key `mlp_bias`."""

    # ---- what a family adds --------------------------------------------------------------------------------------

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        """Each layer's position, window and whatever else differs from family to family."""
        raise NotImplementedError

    def block_of(self, config: Reader) -> dict[str, Any]:
        """Block fields that a config.json of this family may change, beyond the common ones."""
        return {}

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        """Keys beyond the common ones; by default the rotary position of the first rotated layer."""
        return {"rope_parameters": write_rope(first_rotated(model))}

    # ---- config.json ---------------------------------------------------------------------------------------------

    def plan(self, config: Reader) -> Plan:
        def number(name: str) -> int:
            return int(config.size(name, self.defaults[name]))

        names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
        size = {name: number(name) for name in names}
        heads = size["num_attention_heads"]
        # Null means as many as there are heads; left out, it is the class's default.
        null = "num_key_value_heads" in config.values
        groups = heads if null else self.defaults["num_key_value_heads"] or heads
        size["num_key_value_heads"] = config.size("num_key_value_heads", groups)
        size["head_dim"] = self.head_dim(config)
        longest = number("max_position_embeddings")
        bias = self.attention_bias and config.take("attention_bias", bool, False)
        layers = self.layers(config, size["num_hidden_layers"], longest)
        if bias:
            layers = [{**layer, "qkv_bias": True} for layer in layers]
        act = config.only(self.activation, self.defaults[self.activation], *ACTIVATIONS)
        block = {
            **self.block,
            "norm_eps": config.take(self.eps, float, self.defaults[self.eps]),
            "mlp": ACTIVATIONS[act],
            "attention_bias": bias,
            "mlp_bias": self.mlp_bias and config.take("mlp_bias", bool, False),
            "tie_word_embeddings": config.take("tie_word_embeddings", bool, self.defaults["tie_word_embeddings"]),
            "initializer_range": config.take("initializer_range", float, 0.02),
            **self.block_of(config),
        }
        return Plan(size, block, layers, number("vocab_size"), longest)

    def head_dim(self, config: Reader) -> int:
        """Width of a head: given, the class's own, or what the heads leave of the model's width."""
        hidden = config.size("hidden_size", self.defaults["hidden_size"])
        heads = config.size("num_attention_heads", self.defaults["num_attention_heads"])
        width = int(config.size("head_dim", self.defaults.get("head_dim") or hidden // heads))
        if width < 1:
            raise config.error("hidden_size", f"narrower than the {heads} heads, and head_dim is missing")
        return width

    def config(self, model: ModelConfig) -> dict[str, Any]:
        block = model.block
        out: dict[str, Any] = {
            **written_sizes(model),
            self.activation: WRITTEN_ACTIVATION.get(block.mlp, self.defaults[self.activation]),
            self.eps: block.norm_eps,
            "tie_word_embeddings": block.tie_word_embeddings,
            "initializer_range": model.initializer_range,
        }
        if self.attention_bias:
            out["attention_bias"] = block.attention_bias
        if self.mlp_bias:
            out["mlp_bias"] = block.mlp_bias
        return {**out, **self.extra(model)}

    # ---- tensors -------------------------------------------------------------------------------------------------

    def links(self, model: ModelConfig) -> list[Link]:
        out = [
            same("embed_tokens.weight", f"{self.prefix}embed_tokens.weight"),
            same("norm.weight", f"{self.prefix}norm.weight"),
        ]
        if not model.block.tie_word_embeddings:
            out.append(same("lm_head.weight", self.head))
        for spec in model.layers:
            out += self.layer_links(spec, model)
        return out

    def layer_links(self, spec: LayerSpec, model: ModelConfig) -> list[Link]:
        """Links of one layer."""
        ours, theirs = f"layers.{spec.index}.", f"{self.prefix}layers.{spec.index}."
        block, width = model.block, model.intermediate_size
        q, kv = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        out = [same(f"{ours}{mine}.weight", f"{theirs}{other}.weight") for mine, other in self.norms.items()]
        for kind in ("weight", "bias") if spec.qkv_bias else ("weight",):
            names = [f"{theirs}self_attn.{part}_proj.{kind}" for part in "qkv"]
            out.append(joined(f"{ours}attention.qkv_proj.{kind}", names, (q, kv, kv)))
        out += [
            same(f"{ours}attention.o_proj.{kind}", f"{theirs}self_attn.o_proj.{kind}")
            for kind in (("weight", "bias") if block.attention_bias else ("weight",))
        ]
        if spec.qk_norm is not None:
            out += [
                same(f"{ours}attention.{part}.norm.weight", f"{theirs}self_attn.{part}.weight")
                for part in ("q_norm", "k_norm")
            ]
        for kind in ("weight", "bias") if block.mlp_bias else ("weight",):
            names = [f"{theirs}mlp.{part}_proj.{kind}" for part in ("gate", "up")]
            out.append(joined(f"{ours}mlp.up_proj.{kind}", names, (width, width)))
            out.append(same(f"{ours}mlp.down_proj.{kind}", f"{theirs}mlp.down_proj.{kind}"))
        return out


def first_rotated(model: ModelConfig) -> LayerSpec:
    """The first layer with a rotary position, else the first layer."""
    return next((spec for spec in model.layers if spec.position.scheme == "rope"), model.layers[0])


# ---- values that need not be said, and windows --------------------------------------------------------------------


def said_scale(scale: float, head_dim: int) -> float | None:
    """`scale` of a layer as a person would write it: null where it is what a head's width gives anyway."""
    return None if math.isclose(scale, head_dim**-0.5, rel_tol=1e-12) else scale


def said_factor(factor: float) -> float | None:
    """A factor as a person would write it: null where it changes nothing."""
    return None if factor == 1 else factor


def layer_types(config: Reader, depth: int, default: Sequence[str]) -> list[str]:
    """`layer_types`, one entry per layer, or `default` where the file has none."""
    given = config.take("layer_types", tuple[str, ...], None)
    types = list(default if given is None else given)
    if len(types) != depth:
        raise config.error("layer_types", f"it has {len(types)} entries, num_hidden_layers = {depth}")
    for index, name in enumerate(types):
        if name not in LAYER_TYPES:
            what = (
                "linear attention or a state-space layer"
                if re.search("linear|mamba|conv|recurrent", name)
                else "unknown"
            )
            raise config.error("layer_types", f"layer {index} is {name!r}, {what}. Allowed: {', '.join(LAYER_TYPES)}")
    return types


def full_interval(config: Reader, default: int) -> int:
    """`sliding_window_pattern`: each so many-th layer is full, where there are no `layer_types`.

    transformers 4 also saved it as `_sliding_window_pattern`, beside `layer_types`; transformers 5 does not read that.
    """
    interval = int(config.take("sliding_window_pattern", int, default))
    private = config.take("_sliding_window_pattern", int, interval)
    if private != interval and not config.has("layer_types"):
        raise config.error(
            "_sliding_window_pattern",
            f"transformers does not read this name, and has every {interval}th layer full. Give layer_types, or "
            f"sliding_window_pattern",
        )
    return interval


def every(depth: int, interval: int) -> list[str]:
    """Sliding layers with a full one at interval - 1, 2 * interval - 1, ...; 0 has none."""
    return ["full_attention" if interval and (i + 1) % interval == 0 else "sliding_attention" for i in range(depth)]


def windows(config: Reader, types: Sequence[str], window: int | None) -> list[int | None]:
    """Each layer's window; a sliding layer without one is an error, as it is in transformers."""
    if window is None and "sliding_attention" in types:
        index = types.index("sliding_attention")
        raise config.error("sliding_window", f"layer {index} is sliding_attention, so there must be a window in effect")
    return [window if name == "sliding_attention" else None for name in types]


def written_window(model: ModelConfig) -> int | None:
    """The window that most windowed layers have: the nearest that one key can say."""
    counts = Counter(spec.window for spec in model.layers if spec.window is not None)
    return counts.most_common(1)[0][0] if counts else None


def written_types(model: ModelConfig) -> list[str]:
    """`layer_types` of a plan."""
    return ["full_attention" if spec.window is None else "sliding_attention" for spec in model.layers]
