"""Random layer plans inside a small decoder: causality, reach, documents that do not leak, cached equals uncached.

A thousand plans in all, a quarter of them for each property.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minillm.config.layers import LayerSpec, QKNorm
from minillm.config.schema import BlockConfig, ModelConfig
from minillm.model.decoder import Decoder, build_model
from minillm.position.alibi import ALiBi
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.temperature import Llama4, LogN

VOCABULARY = 10
a_quarter_thousand = settings(max_examples=260)

WINDOWS = st.builds(dict, window=st.integers(1, 9))
ANY_REACH = st.one_of(st.just({}), WINDOWS, st.builds(dict, chunk=st.integers(1, 9)))


@st.composite
def plans(draw: st.DrawFn, reach: st.SearchStrategy[dict[str, int]] = ANY_REACH, most_layers: int = 3) -> ModelConfig:
    """A tiny model with a random plan and a random backend among those that can compute it."""
    kv_heads = draw(st.sampled_from([1, 2]))
    layers = tuple(
        LayerSpec(
            index,
            "any",
            draw(st.sampled_from([NoPE(), ALiBi(), RoPE(), RoPE(theta=100.0, partial_rotary_factor=0.5)])),
            num_attention_heads=2,
            num_key_value_heads=kv_heads,
            head_dim=4,
            qk_norm=draw(st.sampled_from([None, QKNorm("rms"), QKNorm("l2", order="after_rope")])),
            temperature=draw(st.sampled_from([None, Llama4(floor=4.0), LogN(base=8.0)])),
            **draw(reach),
        )
        for index in range(draw(st.integers(1, most_layers)))
    )
    backends = ["auto", "reference", "sdpa"]
    if all(spec.reach is not None for spec in layers):
        backends += ["banded"] * 2
    return ModelConfig(
        VOCABULARY,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=len(layers),
        max_position_embeddings=64,
        layers=layers,
        # Large weights: what one token does to another must not drown in rounding.
        block=BlockConfig(initializer_range=0.5, depth_scaled_init=False),
        backend=draw(st.sampled_from(backends)),
    )


def some_tokens(batch: int, length: int) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def other_token(tokens: Tensor, at: Any) -> Tensor:
    changed = tokens.clone()
    changed[at] = (changed[at] + 1) % VOCABULARY
    return changed


@given(config=plans(), length=st.integers(2, 45), data=st.data())
@a_quarter_thousand
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_logit(config: ModelConfig, length: int, data: st.DataObject) -> None:
    model, tokens = build_model(config).eval(), some_tokens(1, length)
    at = data.draw(st.integers(1, length - 1))
    before = model(tokens)
    after = model(other_token(tokens, (0, slice(at, None))))
    assert torch.equal(before[:, :at], after[:, :at])
    assert not torch.equal(before[:, at], after[:, at])


@given(config=plans(reach=WINDOWS), data=st.data())
@a_quarter_thousand
@torch.no_grad()
def test_stacked_windows_reach_exactly_as_far_as_their_sum(config: ModelConfig, data: st.DataObject) -> None:
    model = build_model(config).eval()
    reach = sum(spec.window - 1 for spec in config.layers if spec.window is not None)
    query = reach + data.draw(st.integers(1, 20))
    tokens = some_tokens(1, query + 1)
    logits = model(tokens)[0, query]
    beyond = other_token(tokens, (0, slice(0, query - reach)))
    assert torch.equal(model(beyond)[0, query], logits)
    farthest = other_token(tokens, (0, query - reach))
    assert not torch.equal(model(farthest)[0, query], logits)


@given(config=plans(), length=st.integers(2, 45), data=st.data())
@a_quarter_thousand
def test_no_gradient_goes_from_one_document_to_another(config: ModelConfig, length: int, data: st.DataObject) -> None:
    model = build_model(config)
    boundary = data.draw(st.integers(1, length - 1))
    second = torch.arange(length) >= boundary
    # Even ids in the first document, odd ids in the second.
    tokens = some_tokens(1, length) // 2 * 2 + second.long()
    hidden = model.hidden(tokens, document_ids=second[None].long())
    for document in (0, 1):
        model.zero_grad()
        hidden[:, second == bool(document)].square().sum().backward(retain_graph=True)
        gradient = model.embed_tokens.weight.grad
        assert gradient is not None
        assert (gradient[1 - document :: 2] == 0.0).all()
        assert (gradient[document::2] != 0.0).any()


@given(config=plans(), batch=st.integers(1, 2), length=st.integers(1, 45), data=st.data())
@a_quarter_thousand
@torch.no_grad()
def test_cached_equals_uncached(config: ModelConfig, batch: int, length: int, data: st.DataObject) -> None:
    # float64: these weights blow rounding up.
    model, tokens = build_model(config).double().eval(), some_tokens(batch, length)
    ids = None
    if data.draw(st.booleans()):
        ids = torch.tensor([data.draw(st.lists(st.integers(-1, 2), min_size=length, max_size=length))] * batch)
        ids = ids.sort(dim=1).values
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, length - 1)), max_size=6)))
    torch.testing.assert_close(in_pieces(model, tokens, ids, cuts), model(tokens, ids), atol=1e-6, rtol=1e-6)


def in_pieces(model: Decoder, tokens: Tensor, ids: Tensor | None, cuts: list[int]) -> Tensor:
    cache = model.new_cache(tokens.shape[0])
    bounds = [0, *cuts, tokens.shape[1]]
    logits = [
        model(tokens[:, start:stop], None if ids is None else ids[:, start:stop], cache=cache)
        for start, stop in pairwise(bounds)
        if start < stop
    ]
    assert len(cache) == tokens.shape[1]
    return torch.cat(logits, dim=1)
