"""What a plan is said to cost is what it costs: parameters by counting, FLOPs by hand, bytes by a real cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from minillm.attention.stores import GROWTH
from minillm.config.expand import Heads
from minillm.model.cost import cost, kv_bytes, score_flops_per_token, training_memory_bytes
from minillm.model.decoder import build_model
from tests.model.small import BLOCKS, VOCAB, config, ids

PLANS: dict[str, list[dict[str, Any]]] = {
    "full": [{}, {}],
    "rnope_swa": [{"window": 40}, {"window": 40}, {"window": 40}, {"position": "nope"}],
    "chunks": [{"chunk": 40}, {"num_key_value_heads": 4}],
    "narrow": [{"window": 1, "num_key_value_heads": 1}],
}


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("tied", [False, True])
def test_parameters_are_those_of_the_model(name: str, tied: bool) -> None:
    made = config({"qk_norm": "rms"}, {"position": "nope"}, name=name, embedding="learned", tie_word_embeddings=tied)
    model = build_model(made)
    counted = cost(made, 16)
    assert counted.parameters == sum(p.numel() for p in model.parameters())
    assert counted.embedding_parameters == VOCAB * 24
    untied = cost(dataclasses.replace(made, block=dataclasses.replace(made.block, tie_word_embeddings=False)), 16)
    assert untied.parameters - counted.parameters == (VOCAB * 24 if tied else 0)


def test_flops_are_those_counted_by_hand() -> None:
    """2 layers over 4 tokens: width 10, 2 query heads and 1 key-value head of 3, MLP of 7, 37 tokens."""
    made = config({"window": 2, "qk_norm": "rms"}, {"position": "nope"}, heads=Heads(2, 1, 3 + 1), hidden_size=10)
    made = dataclasses.replace(made, intermediate_size=7)
    projections = 10 * (8 + 4 + 4) + 8 * 10  # qkv and out
    mlp = 10 * 14 + 7 * 10  # gate and up, down
    dense = 2 * (projections + mlp)
    window_pairs = 1 + 2 + 2 + 2
    full_pairs = 1 + 2 + 3 + 4
    per_pair = 2 * (2 * 4) * 2  # q.k and weights times v, 2 heads of 4, a multiply-add is 2
    layers = [dense + window_pairs * per_pair / 4, dense + full_pairs * per_pair / 4]
    head = 2 * 10 * 37
    counted = cost(made, 4)
    assert [layer.forward_flops_per_token for layer in counted.layers] == layers
    assert counted.forward_flops_per_token == sum(layers) + head
    assert counted.flops_per_token == 3 * (sum(layers) + head)
    assert counted.attention_flops_share == pytest.approx(
        (window_pairs + full_pairs) * per_pair / 4 / (sum(layers) + head)
    )
    assert [layer.flops_share for layer in counted.layers] == pytest.approx([x / (sum(layers) + head) for x in layers])


@pytest.mark.parametrize("tied", [False, True])
def test_dense_flops_are_those_torch_counts(tied: bool) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    made = config({"window": 3}, {}, name="gemma3", tie_word_embeddings=tied)
    made = dataclasses.replace(made, backend="reference")
    model = build_model(made)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(ids(1, 8))
    counted = cost(made, 8)
    scores = sum(score_flops_per_token(spec, 8) for spec in made.layers)
    everything = sum(4 * 4 * 8 * 8 for _ in made.layers)  # the oracle computes the whole square
    assert counter.get_total_flops() == 8 * (counted.forward_flops_per_token - scores + everything)


def test_a_window_makes_scores_cheaper_and_never_dearer() -> None:
    full, window, wide = (config({"window": w}).layers[0] for w in (None, 4, 100))
    assert score_flops_per_token(window, 64) < score_flops_per_token(full, 64) / 7
    assert score_flops_per_token(wide, 64) == score_flops_per_token(full, 64)


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("length", [1, 31, 39, 40, 41, 100, 333])
def test_cached_bytes_are_those_of_a_real_cache(plan: str, length: int) -> None:
    made = config(*PLANS[plan])
    model = build_model(made)
    counted = cost(made, length)
    with torch.no_grad():
        for cuts in ([length], [1] * min(length, 3) + [length - 3] * (length > 3)):
            cache = model.new_cache(2)
            for piece in ids(2, length).split(cuts, dim=1):
                model.hidden(piece, cache=cache)
            block = 2 * GROWTH * counted.kv_bytes_per_token
            assert len(cache) == length
            assert (
                2 * counted.kv_bytes <= cache.nbytes() <= max(2 * counted.kv_bytes * 1.02, 2 * counted.kv_bytes + block)
            )


def test_a_window_bounds_the_cache_and_a_full_layer_does_not() -> None:
    local, full = config({"window": 40}, {}).layers
    assert [kv_bytes(local, n, 2) for n in (10, 40, 4000)] == [n * 2 * 2 * 8 * 2 for n in (10, 40, 40)]
    assert kv_bytes(full, 4000, 2) == 4000 * 2 * 2 * 8 * 2
    total = cost(config({"window": 40}, {}), 4000, bytes_per_value=2)
    assert total.kv_bytes == kv_bytes(local, 4000, 2) + kv_bytes(full, 4000, 2)
    assert total.kv_bytes_per_token == 2 * (2 * 2 * 8 * 2)
    assert [layer.kv_bytes for layer in total.layers] == [kv_bytes(local, 4000, 2), kv_bytes(full, 4000, 2)]


def test_the_memory_estimate_grows_with_tokens_from_the_state_of_training() -> None:
    made = config({}, {})
    state = training_memory_bytes(made, 0, 16)
    assert state == 16 * cost(made, 16).parameters
    one = training_memory_bytes(made, 1, 16) - state
    assert one > 0
    assert training_memory_bytes(made, 1000, 16) == state + 1000 * one
    assert training_memory_bytes(made, 1, 16, activation_bytes=2) == state + one // 2
