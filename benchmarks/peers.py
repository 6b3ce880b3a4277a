"""Models of one shape from this project and from those beside it, each with the loss that its users would call.

    build = BUILDERS["litgpt"]
    model = build(Shape(), 512, 64)          # length and window; (tokens, targets) -> loss, an nn.Module

Shapes are equal where the other project lets them be: width, depth, heads, key-value heads, head width, the width of
the MLP, vocabulary, tied embeddings. litgpt, which cannot tie them, has a head of its own: the product is the same one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class Shape:
    """Of every contestant."""

    vocab_size: int = 4096
    hidden_size: int = 256
    num_hidden_layers: int = 8
    num_attention_heads: int = 4
    num_key_value_heads: int = 2
    head_dim: int = 64
    intermediate_size: int = 768


class WithLoss(nn.Module):
    """A model and how its loss is had from (tokens, targets), both (B, T) int64."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.model, self._loss = model, loss

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return self._loss(self.model, tokens, targets)


def ours(arm: str) -> Callable[[Shape, int, int], nn.Module]:
    """This project's `arm`; layers with windows read `window` tokens."""

    def build(shape: Shape, length: int, window: int) -> nn.Module:
        import minillm

        sizes = [f"size.{k}={v}" for k, v in vars(shape).items() if k != "vocab_size"]
        plan = [
            f"model={arm}",
            f"model.vocab_size={shape.vocab_size}",
            f"size.seq_len={length}",
            f"size.window={window}",
        ]
        model = minillm.build_model(minillm.compose([*plan, *sizes], warn=False).model, seed=0)
        return WithLoss(model, lambda m, tokens, targets: m.loss(tokens, targets))

    return build


def transformers_model(family: str) -> Callable[[Shape, int, int], nn.Module]:
    """A model of transformers with its default attention (sdpa) and its own loss."""

    def build(shape: Shape, length: int, window: int) -> nn.Module:
        import transformers

        plan = [*["sliding_attention"] * 3, "full_attention"]
        layers = {"sliding_window": window, "layer_types": (plan * shape.num_hidden_layers)[: shape.num_hidden_layers]}
        classes: dict[str, tuple[str, dict[str, Any]]] = {
            "llama": ("Llama", {}),
            "cohere2": ("Cohere2", layers),
            "gemma3": ("Gemma3", layers),
        }
        name, own = classes[family]
        config_class = getattr(transformers, f"{name}TextConfig" if family == "gemma3" else f"{name}Config")
        config = config_class(
            **vars(shape), **own, max_position_embeddings=length, tie_word_embeddings=True, use_cache=False,
            attn_implementation="sdpa", bos_token_id=0, eos_token_id=0, pad_token_id=0,
        )  # fmt: skip
        # Targets are shifted already: transformers would shift `labels` itself, and takes them so as `shift_labels`.
        return WithLoss(
            getattr(transformers, f"{name}ForCausalLM")(config),
            lambda m, tokens, targets: m(input_ids=tokens, labels=targets, shift_labels=targets).loss,
        )

    return build


def litgpt(shape: Shape, length: int, window: int) -> nn.Module:
    """litgpt's GPT as a Llama; its training loop's loss is `chunked_cross_entropy` with its default chunks."""
    from litgpt.config import Config
    from litgpt.model import GPT
    from litgpt.utils import chunked_cross_entropy

    config = Config(
        n_embd=shape.hidden_size, n_layer=shape.num_hidden_layers, n_head=shape.num_attention_heads,
        n_query_groups=shape.num_key_value_heads, head_size=shape.head_dim, intermediate_size=shape.intermediate_size,
        padded_vocab_size=shape.vocab_size, block_size=length, norm_class_name="RMSNorm", mlp_class_name="LLaMAMLP",
        bias=False, parallel_residual=False, rotary_percentage=1.0,
    )  # fmt: skip
    return WithLoss(GPT(config), lambda m, tokens, targets: chunked_cross_entropy(m(tokens), targets))


def x_transformers(shape: Shape, length: int, window: int) -> nn.Module:
    """x-transformers with its flash attention, rotary positions and a gated MLP."""
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(
        dim=shape.hidden_size, depth=shape.num_hidden_layers, heads=shape.num_attention_heads,
        attn_dim_head=shape.head_dim, attn_kv_heads=shape.num_key_value_heads, attn_flash=True, rotary_pos_emb=True,
        rotary_emb_dim=shape.head_dim, use_rmsnorm=True, ff_glu=True, ff_swish=True, ff_no_bias=True,
        ff_mult=shape.intermediate_size / shape.hidden_size,
    )  # fmt: skip
    model = TransformerWrapper(
        num_tokens=shape.vocab_size, max_seq_len=length, attn_layers=layers, use_abs_pos_emb=False, tie_embedding=True
    )
    return WithLoss(model, lambda m, tokens, targets: F.cross_entropy(m(tokens).flatten(0, 1), targets.flatten()))


BUILDERS: dict[str, Callable[[Shape, int, int], nn.Module]] = {
    "ours full": ours("rope"),
    "ours 1:3 windows": ours("rnope_swa"),
    "transformers Llama": transformers_model("llama"),
    "transformers Cohere2, 1:3 windows": transformers_model("cohere2"),
    "transformers Gemma3, 1:3 windows": transformers_model("gemma3"),
    "litgpt": litgpt,
    "x-transformers": x_transformers,
}
PACKAGES = ("transformers", "litgpt", "x-transformers")


def compiled(name: str, model: nn.Module) -> nn.Module:
    """`model` as its project compiles it for training: ours block by block, the others as a whole."""
    assert isinstance(model, WithLoss)
    if name.startswith("ours"):
        from minillm.model.compiled import compile_blocks

        compile_blocks(model.model)  # type: ignore[arg-type]
        return model
    model.model = torch.compile(model.model)  # type: ignore[assignment]
    return model
