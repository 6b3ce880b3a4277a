"""Every block with every kind of layer equals the decoder of tests/model/reference.py, whole and from a cache."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.config.expand import Heads
from minillm.model.decoder import Decoder
from tests.model import reference
from tests.model.small import BLOCKS, LENGTH, WIDTH, config, ids, large

LOCAL = {"position": {"scheme": "rope", "theta": 100.0}, "window": 5}
PLANS: dict[str, tuple[Any, list[dict[str, Any]]]] = {
    "rope": (None, [{"position": {"scheme": "rope", "theta": 50.0}}] * 2),
    "rnope_swa": (None, [LOCAL, LOCAL, {"position": "nope"}]),
    "swan": (None, [{"position": "nope", "temperature": {"type": "log_n", "base": 3.0}}, LOCAL]),
    "llama4": (
        None,
        [
            {
                "position": {"layout": "interleaved", "theta": 30.0},
                "chunk": 6,
                "qk_norm": {"type": "l2", "order": "after_rope"},
            },
            {"position": "nope", "temperature": {"type": "llama4", "scale": 0.7, "floor": 4}},
        ],
    ),
    "gemma3": (None, [{**LOCAL, "qk_norm": "rms"}, {"position": {"theta": 1e4}, "qk_norm": "rms"}]),
    "olmo3": (
        None,
        [{**LOCAL, "qk_norm": {"type": "rms", "over": "full"}}, {"qk_norm": {"type": "rms", "over": "full"}}],
    ),
    "norms": (
        None,
        [
            {**LOCAL, "qk_norm": {"type": "rms", "order": "after_rope"}},
            {"qk_norm": {"type": "layernorm", "over": "full"}},
            {"position": "nope", "qk_norm": "layernorm"},
        ],
    ),
    "alibi": (None, [{"position": "alibi", "window": 4}, {"position": "alibi"}, {"position": "alibi", "chunk": 7}]),
    "partial": (
        None,
        [
            {"position": {"partial_rotary_factor": 0.5, "theta": 20.0}},
            {"position": {"partial_rotary_factor": 0.75, "rule": "proportional", "theta": 20.0}, "window": 1},
            {"position": {"scaling": {"type": "linear", "factor": 3.0}, "theta": 20.0}},
        ],
    ),
    "scores": (None, [{**LOCAL, "softcap": 0.7}, {"scale": 0.9}, {"position": "nope", "num_key_value_heads": 1}]),
    "sinks": (
        None,
        [
            {**LOCAL, "sink_logits": True, "qkv_bias": True},
            {"sink_logits": True, "num_key_value_heads": 1},
            {**LOCAL, "sink_tokens": 2, "sink_logits": True},
            {"position": "nope", "window": 3, "sink_tokens": 7},
        ],
    ),
    "gau": (None, [{"shared_qk": True, "gate": True}, {**LOCAL, "gate": True}, {"shared_qk": True, "qk_norm": "rms"}]),
    "learned": ("learned", [{"position": "nope"}, {"position": "nope", "window": 3}]),
    "sinusoidal": ({"scheme": "sinusoidal", "scale": 0.6}, [{"position": "nope"}, LOCAL]),
}


def length(plan: str) -> int:
    """Past every window and twice the training length; a learned table ends at it."""
    return LENGTH if plan == "learned" else 2 * LENGTH + 3


def error(ours: Tensor, theirs: Tensor) -> float:
    assert theirs.std() > 0.1, "these weights are too small to test anything"
    return (ours.double() - theirs).abs().max().item()


def make(plan: str, name: str) -> Decoder:
    embedding, layers = PLANS[plan]
    return large(config(*layers, name=name, embedding=embedding))


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("plan", PLANS)
@torch.no_grad()
def test_a_block_with_a_plan_equals_the_reference_whole_and_in_pieces(plan: str, name: str) -> None:
    model, tokens = make(plan, name), ids(1, length(plan))
    expected = reference.logits(model, tokens)
    assert error(model(tokens), expected) < 1e-4
    cache = model.new_cache(1)
    pieces = [model(piece, cache=cache) for piece in tokens.split([3, 1, 4, 1, 1, length(plan) - 10], dim=1)]
    assert error(torch.cat(pieces, dim=1), expected) < 1e-4


@pytest.mark.parametrize("plan", ["rnope_swa", "alibi", "llama4"])
@torch.no_grad()
def test_a_text_of_many_windows_equals_the_reference(plan: str) -> None:
    """150 tokens: the backends cut what is longer than 128 into parts."""
    model, tokens = make(plan, "standard"), ids(1, 150)
    assert error(model(tokens), reference.logits(model, tokens)) < 1e-4


@pytest.mark.bug("B014")
@pytest.mark.bug("B015")
@pytest.mark.parametrize("plan", PLANS)
@torch.no_grad()
def test_packed_documents_and_padding_equal_the_reference(plan: str) -> None:
    model = make(plan, "standard")
    n = length(plan)
    tokens = ids(2, n)
    documents = torch.tensor([[0] * 5 + [1] * 1 + [2] * (n - 6), [-1] * 3 + [7] * (n - 5) + [3] * 2])
    real = documents >= 0
    expected = reference.logits(model, tokens, documents)
    assert error(model(tokens, document_ids=documents)[real], expected[real]) < 1e-4
    cache = model.new_cache(2)
    cuts = [2, 4, 1, n - 7]
    parts = zip(tokens.split(cuts, dim=1), documents.split(cuts, dim=1), strict=True)
    pieces = torch.cat([model(part, document_ids=ids_, cache=cache) for part, ids_ in parts], dim=1)
    assert error(pieces[real], expected[real]) < 1e-4


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        pytest.param("standard", {"residual_scale": 0.3}, id="a scaled residual"),
        pytest.param("cohere2", {"residual_scale": 0.3}, id="a scaled residual, in parallel"),
        pytest.param("standard", {"embedding_norm": True}, id="normed embeddings"),
        pytest.param("gpt2", {"embedding_norm": True}, id="normed embeddings with a bias, as in BLOOM"),
    ],
)
@torch.no_grad()
def test_a_change_to_a_block_equals_the_reference(name: str, changes: dict[str, Any]) -> None:
    model, tokens = large(config(LOCAL, {"position": "nope"}, name=name, **changes)), ids(1, 20)
    expected = reference.logits(model, tokens)
    assert error(model(tokens), expected) < 1e-4
    unchanged = large(config(LOCAL, {"position": "nope"}, name=name))
    unchanged.load_state_dict({n: w for n, w in model.state_dict().items() if "embed_norm" not in n})
    assert error(unchanged(tokens), expected) > 1e-2


@pytest.mark.bug("B017")
@pytest.mark.parametrize("backend", ["reference", "sdpa", "banded"])
@torch.no_grad()
def test_query_heads_share_key_value_heads_in_runs(backend: str) -> None:
    """Query heads 0 and 1 read key-value head 0, heads 2 and 3 read head 1; tiled heads give something else."""
    made = dataclasses.replace(config(LOCAL, LOCAL), backend=backend)
    model, tokens = large(made), ids(1, 35)
    assert error(model(tokens), reference.logits(model, tokens)) < 1e-4
    tiled = large(made)
    for layer in tiled.layers:
        k, v = (rows.view(2, 8, -1) for rows in layer.attention.qkv_proj.weight[32:].split(16))
        layer.attention.qkv_proj.weight[32:] = torch.cat([k.flip(0).flatten(0, 1), v.flip(0).flatten(0, 1)])
    assert error(tiled(tokens), model(tokens).double()) > 1e-3


@pytest.mark.bug("B018")
@torch.no_grad()
def test_heads_need_not_fill_the_width() -> None:
    made = config(LOCAL, {"position": "nope"}, heads=Heads(4, 2, 16), hidden_size=48)
    model, tokens = large(made), ids(1, 20)
    assert len(model.layers[0].attention.position.frequencies) == 8
    assert error(model(tokens), reference.logits(model, tokens)) < 1e-4
    narrow = large(config(LOCAL, heads=Heads(2, 1, 4), hidden_size=WIDTH))
    assert error(narrow(tokens), reference.logits(narrow, tokens)) < 1e-4


@pytest.mark.bug("B020")
@pytest.mark.parametrize("order", ["before_rope", "after_rope"])
@torch.no_grad()
def test_the_order_of_norm_and_rotation_matters_once_the_norms_weight_is_not_uniform(order: str) -> None:
    layer = {"position": {"theta": 20.0}, "qk_norm": {"type": "rms", "order": order}}
    model, tokens = large(config(layer, layer)), ids(1, 20)
    assert error(model(tokens), reference.logits(model, tokens)) < 1e-5
    other = {**layer, "qk_norm": {"type": "rms", "order": "after_rope" if order == "before_rope" else "before_rope"}}
    swapped = large(config(other, other))
    assert error(swapped(tokens), model(tokens).double()) > 1e-3
    for decoder in (model, swapped):
        for layer_ in decoder.layers:
            layer_.attention.q_norm.norm.weight.fill_(0.9)
            layer_.attention.k_norm.norm.weight.fill_(1.1)
    assert error(swapped(tokens), model(tokens).double()) < 1e-4
