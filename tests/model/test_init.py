"""Initial weights are a function of (seed, name): the same for every arm, device and way of building."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from torch import nn

from minillm.config.expand import Heads
from minillm.config.schema import ModelConfig
from minillm.model.decoder import Decoder, build_model
from minillm.position.base import LayerPosition
from tests.model.small import BLOCKS, config, ids

PLAN = ({"position": {"theta": 100.0}, "window": 4, "qk_norm": "rms"}, {"position": "nope"})


def wide(**changes: object) -> ModelConfig:
    """Matrices large enough that their standard deviation can be measured."""
    made = config(*PLAN, heads=Heads(4, 4, 32), hidden_size=128, **changes)  # type: ignore[arg-type]
    return dataclasses.replace(made, intermediate_size=256, vocab_size=512)


def same(one: Decoder, other: Decoder) -> bool:
    pairs = zip(one.named_parameters(), other.named_parameters(), strict=True)
    return all(a == b and torch.equal(x, y) for (a, x), (b, y) in pairs)


def test_the_same_seed_gives_the_same_weights_whatever_was_drawn_before() -> None:
    one = build_model(config(*PLAN), seed=7)
    torch.randn(5)
    assert same(one, build_model(config(*PLAN), seed=7))


@pytest.mark.parametrize(("one", "other"), [(0, 1), (1, 2), (0, 2**32 - 1), (3, 3 + 2**16)])
def test_another_seed_gives_other_weights_in_every_matrix(one: int, other: int) -> None:
    first, second = build_model(config(*PLAN), seed=one), build_model(config(*PLAN), seed=other)
    for (name, a), b in zip(first.named_parameters(), second.parameters(), strict=True):
        assert a.ndim == 1 or not torch.equal(a, b), name


def test_building_leaves_torchs_random_state_alone() -> None:
    before = torch.random.get_rng_state()
    build_model(config(*PLAN, embedding="learned"))
    assert torch.equal(torch.random.get_rng_state(), before)


def test_no_two_matrices_are_alike() -> None:
    model = build_model(wide())
    values = [tuple(p.flatten()[:8].tolist()) for p in model.parameters() if p.ndim > 1]
    assert len(set(values)) == len(values)


def test_arms_share_the_start_of_every_parameter_they_share() -> None:
    arms = [
        config({}, {}),
        config({"position": "nope", "window": 3}, {"position": "alibi"}),
        config({"qk_norm": "rms", "chunk": 4}, {"temperature": "log_n"}, embedding="learned"),
    ]
    first, *others = [dict(build_model(arm, seed=5).named_parameters()) for arm in arms]
    for other in others:
        shared = first.keys() & other.keys()
        assert len(shared) == len(first)
        assert all(torch.equal(first[name], other[name]) for name in shared)


@pytest.mark.bug("B030")
@pytest.mark.parametrize("name", BLOCKS)
def test_a_model_built_on_meta_and_materialised_equals_one_built_eagerly(name: str) -> None:
    made = config(*PLAN, {"position": {"scaling": {"type": "linear", "factor": 4.0}}}, name=name, embedding="learned")
    eager = build_model(made, seed=3)
    shell = build_model(made, seed=3, device="meta")
    assert all(p.is_meta for p in shell.parameters())
    shell = shell.to_empty(device="cpu")
    with torch.no_grad():
        for parameter in shell.parameters():
            parameter.fill_(float("nan"))
    shell.reset_parameters(3)
    assert same(eager, shell)
    assert torch.equal(eager(ids(1, 9)), shell(ids(1, 9)))
    firsts = [layer.attention.position.frequencies[0] for layer in (shell.layers[0], shell.layers[2])]
    assert firsts == [1.0, 0.25]


@pytest.mark.bug("B030")
def test_nothing_but_parameters_has_to_be_saved() -> None:
    model = build_model(config(*PLAN, embedding="sinusoidal"))
    assert dict(model.named_buffers()) == {}
    assert set(model.state_dict()) == {name for name, _ in model.named_parameters()}


@pytest.mark.parametrize("scaled", [False, True])
def test_matrices_have_the_declared_spread_and_those_into_the_residual_stream_less(scaled: bool) -> None:
    made = wide(initializer_range=0.05, depth_scaled_init=scaled, tie_word_embeddings=False)
    for name, parameter in build_model(made).named_parameters():
        if parameter.ndim == 1:
            continue
        into_stream = name.endswith(("o_proj.weight", "down_proj.weight"))
        expected = 0.05 / math.sqrt(2 * 2) if scaled and into_stream else 0.05
        assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
        assert abs(parameter.mean().item()) < 0.05 * expected, name


def test_without_a_declared_spread_it_follows_the_width() -> None:
    model = build_model(wide(initializer_range=None))
    assert model.embed_tokens.weight.std().item() == pytest.approx(0.5 / math.sqrt(128), rel=0.05)


@pytest.mark.parametrize("name", BLOCKS)
def test_biases_start_at_zero_and_norms_as_the_identity(name: str) -> None:
    model = build_model(config(*PLAN, name=name))
    for full_name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            continue
        one = full_name.endswith("norm.weight") and not model.config.block.norm_unit_offset
        assert torch.equal(parameter, torch.full_like(parameter, float(one))), full_name


@pytest.mark.bug("B070")
def test_every_vector_is_one_dimensional_so_that_weight_decay_can_tell() -> None:
    model = build_model(config(*PLAN, name="gpt2", embedding="learned"))
    for full_name, parameter in model.named_parameters():
        matrix = full_name.endswith("weight") and "norm" not in full_name
        assert parameter.ndim == (2 if matrix else 1), full_name
    assert len({id(p) for p in model.parameters()}) == len(list(model.parameters()))


def test_a_position_scheme_has_the_last_word_on_the_matrices_inside_it() -> None:
    class Own(LayerPosition):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 2)

        def reset_parameters(self) -> None:
            nn.init.constant_(self.inner.weight, 7.0)
            nn.init.constant_(self.inner.bias, 3.0)

    model = build_model(config({"position": "nope"}))
    model.layers[0].attention.position = Own()
    model.reset_parameters(0)
    inner = model.layers[0].attention.position.inner
    assert (inner.weight == 7).all()
    assert (inner.bias == 3).all()
