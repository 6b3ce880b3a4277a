"""Every family against transformers' own model of the same weights: logits, cached decoding, and back bit for bit.

Texts are ten times the trained length and forty windows long; cached decoding crosses both.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch

import minillm
from minillm.model.decoder import Decoder
from tests.hub.models import COMMON, DEPTH, MODELS, TRAINED, WINDOW, cached_difference, difference, ids, theirs

transformers = pytest.importorskip("transformers")

LENGTH = 301
NEW = 64


class Pair(NamedTuple):
    """Their model, ours of its weights, and theirs again of ours."""

    name: str
    theirs: Any
    ours: Decoder
    back: Any


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> Pair:
    model = theirs(request.param)
    ours = minillm.hub.from_transformers(model)
    return Pair(request.param, model, ours, minillm.hub.to_transformers(ours, MODELS[request.param][0]))


@pytest.mark.bug("B042")
@torch.no_grad()
def test_logits_are_theirs_far_past_the_window_and_the_trained_length(pair: Pair) -> None:
    tokens = ids(2, LENGTH)
    assert min(LENGTH / TRAINED, LENGTH / WINDOW) > 9
    expected = pair.theirs(tokens).logits
    assert expected.std() > 0.2, "these weights are too small to test anything"
    logits = pair.ours(tokens)
    for position in (0, 1, 50, 300):
        assert difference(logits[:, position], expected[:, position]) < 1e-4, f"at position {position}"
    assert difference(logits, expected) < 1e-4


def test_cached_greedy_decoding_gives_their_cached_logits(pair: Pair) -> None:
    assert cached_difference(pair.theirs, pair.ours, NEW) < 1e-4


def test_out_again_gives_identical_bits_and_the_same_class(pair: Pair) -> None:
    assert type(pair.back) is type(pair.theirs)
    before, after = pair.theirs.state_dict(), pair.back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_out_again_gives_the_same_configuration(pair: Pair) -> None:
    before, after = pair.theirs.config.to_dict(), pair.back.config.to_dict()
    # How a plan is abbreviated where layer_types does not spell it out, and a base that no layer has.
    aside = {"architectures", "dtype", "_sliding_window_pattern", "max_window_layers"}
    if "layer_rope_theta" in before:
        aside.add("rope_parameters")
    assert {k: v for k, v in after.items() if k not in aside} == {k: v for k, v in before.items() if k not in aside}


@torch.no_grad()
def test_their_new_model_computes_what_ours_does(pair: Pair) -> None:
    tokens = ids(1, 90, seed=5)
    assert difference(pair.back(tokens).logits, pair.ours(tokens)) < 1e-4


def test_in_again_gives_identical_bits_and_the_same_plan(pair: Pair) -> None:
    again = minillm.hub.from_transformers(pair.back)
    assert again.config == pair.ours.config
    mine, other = pair.ours.state_dict(), again.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_ours_has_its_own_weights(pair: Pair) -> None:
    mine = {p.untyped_storage().data_ptr() for p in pair.ours.parameters()}
    others = {p.untyped_storage().data_ptr() for m in (pair.theirs, pair.back) for p in m.parameters()}
    assert not mine & others
    assert not pair.ours.training


def test_sizes_are_odd_enough(pair: Pair) -> None:
    spec = pair.ours.layer_specs[0]
    assert spec.num_attention_heads // spec.num_key_value_heads == 3
    assert spec.head_dim != COMMON["hidden_size"] // spec.num_attention_heads
    assert len(pair.ours.layer_specs) == DEPTH
