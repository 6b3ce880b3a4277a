"""What a plan costs: parameters, FLOPs, KV bytes and activation bytes, counted from the layer specs.

Conventions. A multiply-add is 2 FLOPs. Training is three times the forward pass. Attention is charged for the
query-key pairs that the mask lets through (windows and causality counted), 4 * head_dim FLOPs a pair and query head;
many published MFU figures charge the full square instead, twice as much for causal attention. The embedding look-up is
free, the head is a matrix product. Bytes of keys and values are for one sequence.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from minillm.attention.cache_settings import CacheSettings
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.model.decoder import build_model
from minillm.model.mlp import gated

TRAINING_PASSES = 3
"""Forward, and a backward of twice its size."""


@dataclass(frozen=True)
class LayerCost:
    """One layer's part."""

    forward_flops_per_token: float
    kv_bytes_per_token: int
    kv_bytes: int
    flops_share: float
    """Share of the model's FLOPs, embedding and head included."""


@dataclass(frozen=True)
class Cost:
    """Of one model at one length. FLOPs are per token of training; `kv_bytes` is the cache after `seq_len` tokens."""

    seq_len: int
    parameters: int
    embedding_parameters: int
    flops_per_token: float
    forward_flops_per_token: float
    attention_flops_share: float
    kv_bytes_per_token: int
    """One more token on every layer, before any window is full."""
    kv_bytes: int
    layers: tuple[LayerCost, ...]


def cost(
    config: ModelConfig,
    seq_len: int,
    bytes_per_value: int = 4,
    cache: CacheSettings = CacheSettings(),  # noqa: B008  # frozen
) -> Cost:
    """Count `config` at `seq_len` tokens.

    Args:
        bytes_per_value: of the cache: 4 in float32, 2 in bfloat16.
        cache: what `kv_bytes` counts; all else is counted as trained.
    """
    model = build_model(config, device="meta")
    parameters = sum(p.numel() for p in model.parameters())
    embedding = model.embed_tokens.weight.numel()
    head_flops = 2.0 * model.head_weight.numel()
    matrices = [2.0 * _matrix_weights(layer) for layer in model.layers]
    scores = [score_flops_per_token(spec, seq_len) for spec in config.layers]
    forward = head_flops + sum(matrices) + sum(scores)
    layers = tuple(
        LayerCost(
            forward_flops_per_token=dense + pairs,
            kv_bytes_per_token=spec.kv_bytes_per_token(bytes_per_value),
            kv_bytes=kv_bytes(spec, seq_len, bytes_per_value, cache),
            flops_share=(dense + pairs) / forward,
        )
        for spec, dense, pairs in zip(config.layers, matrices, scores, strict=True)
    )
    return Cost(
        seq_len=seq_len,
        parameters=parameters,
        embedding_parameters=embedding,
        flops_per_token=TRAINING_PASSES * forward,
        forward_flops_per_token=forward,
        attention_flops_share=sum(scores) / forward,
        kv_bytes_per_token=sum(layer.kv_bytes_per_token for layer in layers),
        kv_bytes=sum(layer.kv_bytes for layer in layers),
        layers=layers,
    )


def score_flops_per_token(spec: LayerSpec, seq_len: int) -> float:
    """Forward FLOPs of q.k, of the weighted sum of values, and of what position adds, averaged over one document."""
    pairs = 4.0 * spec.num_attention_heads * spec.head_dim * spec.visible_pairs(seq_len) / seq_len
    return pairs + spec.position.flops_per_token(spec.shape, seq_len)


def _matrix_weights(layer: nn.Module) -> int:
    """Weights that every token is multiplied with; a position scheme's own are in its `flops_per_token`."""
    return sum(
        module.weight.numel()
        for name, module in layer.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith("attention.position.")
    )


def kv_bytes(
    spec: LayerSpec,
    length: int,
    bytes_per_value: int = 4,
    cache: CacheSettings = CacheSettings(),  # noqa: B008  # frozen
) -> int:
    """Bytes of keys and values that one sequence of `length` tokens keeps in this layer's cache."""
    return cache.kv_bytes(spec, length, bytes_per_value)


def training_memory_bytes(config: ModelConfig, tokens: int, seq_len: int, activation_bytes: int = 4) -> int:
    """Estimate of a training step's peak: weights, gradients, AdamW's two moments, and activations kept for backward.

    Args:
        tokens: tokens of one micro-batch on one device.
        activation_bytes: bytes per activation value: 4, or 2 under bfloat16.

    Per token a block keeps about: inputs and statistics of its norms and the residual stream (6 widths), q, k, v and
    the attention output (2 query widths, 2 key-value widths), and the MLP's up product, activation and gate. Logits are
    sliced, so they are not in it. Fused attention keeps no scores; the `reference` backend would add them.
    """
    parameters = cost(config, seq_len).parameters
    per_token = 0
    for spec in config.layers:
        query_width = spec.num_attention_heads * spec.head_dim
        kv_width = spec.num_key_value_heads * spec.head_dim
        mlp = (5 if gated(config.block) else 2) * config.intermediate_size
        per_token += 6 * config.hidden_size + 3 * query_width + 2 * kv_width + mlp
    per_token += 3 * config.hidden_size
    return 16 * parameters + tokens * per_token * activation_bytes
