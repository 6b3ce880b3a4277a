"""Small models for the tests: any plan, the blocks of conf/block, weights large enough that every part matters."""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

import torch
import yaml
from torch import Tensor

from minillm.config import fields
from minillm.config.expand import Heads, embedding_scheme, expand
from minillm.config.paths import conf_dir
from minillm.config.schema import BlockConfig, ModelConfig
from minillm.model.decoder import Decoder, build_model

BLOCKS = ("standard", "cohere2", "gemma3", "olmo2", "gpt2", "gpt_neox")
VOCAB = 37
WIDTH = 24
LENGTH = 12
"""Training length."""


@cache
def block(name: str) -> BlockConfig:
    text = (conf_dir() / "block" / f"{name}.yaml").read_text(encoding="utf-8")
    return fields.build(BlockConfig, yaml.safe_load(text), "block")


def config(
    *layers: dict[str, Any],
    name: str = "standard",
    embedding: Any = None,
    heads: Heads = Heads(4, 2, 8),  # noqa: B008  # frozen
    hidden_size: int = WIDTH,
    **block_changes: Any,
) -> ModelConfig:
    """A model of the given layers, in order. heads * head_dim is not hidden_size, on purpose."""
    plan = {
        "kinds": {f"k{i}": layer for i, layer in enumerate(layers)},
        "pattern": [f"k{i}" for i in range(len(layers))],
    }
    chosen = dataclasses.replace(block(name), **block_changes)
    specs, _ = expand(plan, {}, len(layers), heads, LENGTH, base={"qkv_bias": chosen.attention_bias})
    return ModelConfig(
        vocab_size=VOCAB,
        hidden_size=hidden_size,
        intermediate_size=40,
        num_hidden_layers=len(layers),
        max_position_embeddings=LENGTH,
        layers=specs,
        block=chosen,
        embedding_position=embedding_scheme(embedding, hidden_size),
    )


@torch.no_grad()
def enlarge(model: Decoder, std: float = 0.2, seed: int = 0) -> Decoder:
    """Weights of standard deviation `std`, biases and norm weights far from 0 and 1, no two alike."""
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        parameter.normal_(0.0, std if parameter.ndim > 1 else 0.3, generator=generator)
        if parameter.ndim == 1 and name.endswith("norm.weight") and not model.config.block.norm_unit_offset:
            parameter.add_(1.0)
    return model.eval()


def large(made: ModelConfig, std: float = 0.2) -> Decoder:
    return enlarge(build_model(made), std)


def ids(batch: int, length: int, seed: int = 1, vocab: int = VOCAB) -> Tensor:
    return torch.randint(vocab, (batch, length), generator=torch.Generator().manual_seed(seed))
