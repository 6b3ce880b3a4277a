"""Dynamic NTK and LongRoPE: golden frequencies at any length, no trace of a length, and caches exact or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.attention.tokens import StepContext, Tokens
from minillm.config.fields import build
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.errors import CacheNotExact, ConfigError
from minillm.generation import generate
from minillm.model.decoder import Decoder, build_model
from minillm.position import LayerShape, rope_frequencies
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.scaling import Scaling, YaRN
from minillm.position.scaling_by_length import DynamicNTK, LongRoPE

At = Callable[..., Tokens]
TRAINED = 16
LISTS = {"short_factor": (1.0, 1.1, 1.2, 1.3), "long_factor": (1.0, 2.0, 3.5, 4.0)}
SCALINGS: dict[str, Scaling] = {
    "dynamic_ntk": DynamicNTK(4.0, TRAINED),
    "longrope": LongRoPE(4.0, TRAINED, **LISTS),  # type: ignore[arg-type]
}

by_scaling = pytest.mark.parametrize("name", SCALINGS)


def decoder(*scalings: Scaling, window: int | None = None) -> Decoder:
    """A layer per scaling and a NoPE layer; weights large enough that attention is not uniform."""
    schemes = [*(RoPE(theta=100.0, scaling=s) for s in scalings), NoPE()]
    layers = tuple(LayerSpec(i, "all", s, 6, 2, 8, window=window) for i, s in enumerate(schemes))
    model = build_model(ModelConfig(50, 20, 48, len(layers), TRAINED, layers)).eval()
    with torch.no_grad():
        for parameter in model.layers.parameters():
            parameter.mul_(3)
    return model


def ids(batch: int, length: int) -> Tensor:
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(1))


# ---- frequencies ------------------------------------------------------------------------------------------------


def test_the_base_of_dynamic_ntk_is_the_published_one() -> None:
    scaling = DynamicNTK(2.0, 1024)
    assert scaling.base(1e4, 64, 4096) == pytest.approx(74534.83, abs=0.01)
    frequencies, factor = rope_frequencies(RoPE(scaling=scaling), 64, 4096)
    torch.testing.assert_close(frequencies, 74534.83 ** (-torch.arange(32).double() / 32).float(), rtol=1e-5, atol=0)
    assert factor == 1.0


@by_scaling
def test_up_to_the_trained_length_nothing_changes_with_the_length(name: str) -> None:
    scheme = RoPE(theta=100.0, scaling=SCALINGS[name])
    short = [rope_frequencies(scheme, 8, n)[0] for n in (0, 1, TRAINED - 1, TRAINED)]
    assert all(torch.equal(s, short[0]) for s in short)
    assert not torch.equal(rope_frequencies(scheme, 8, TRAINED + 1)[0], short[0])
    if name == "dynamic_ntk":
        assert torch.equal(short[0], rope_frequencies(RoPE(theta=100.0), 8, 1)[0])


def test_with_a_factor_of_one_dynamic_ntk_divides_the_slowest_pair_by_the_growth_of_the_length() -> None:
    plain, _ = rope_frequencies(RoPE(), 64, 1)
    grown, _ = rope_frequencies(RoPE(scaling=DynamicNTK(1.0, 100)), 64, 350)
    assert float(grown[0]) == float(plain[0]) == 1.0
    assert float(plain[-1] / grown[-1]) == pytest.approx(3.5)


def test_longrope_divides_each_pair_by_its_number() -> None:
    plain, _ = rope_frequencies(RoPE(), 8, 1)
    for length, numbers in ((TRAINED, LISTS["short_factor"]), (TRAINED + 1, LISTS["long_factor"])):
        frequencies, factor = rope_frequencies(RoPE(scaling=SCALINGS["longrope"]), 8, length)
        torch.testing.assert_close(frequencies, plain / torch.tensor(numbers))
        assert factor == pytest.approx(math.sqrt(1 + math.log(4) / math.log(TRAINED)))


def test_one_number_stands_for_a_list_of_it() -> None:
    one = LongRoPE(4.0, TRAINED, short_factor=1.0, long_factor=2.5)
    many = LongRoPE(4.0, TRAINED, short_factor=(1.0,) * 4, long_factor=(2.5,) * 4)
    for length in (5, 50):
        assert RoPE(scaling=one).frequencies(8, length) == RoPE(scaling=many).frequencies(8, length)
    assert RoPE(scaling=one).frequencies(32, 5) == RoPE().frequencies(32, 5)


def test_the_factor_of_phi_3_follows_from_its_lengths() -> None:
    assert LongRoPE(32.0, 4096, 1.0, 1.0).amplitude == pytest.approx(1.1902380714)
    assert LongRoPE(1.0, 4096, 1.0, 1.0).amplitude == 1.0
    assert LongRoPE(32.0, 4096, 1.0, 1.0, attention_factor=1.3).amplitude == 1.3


# ---- tables -----------------------------------------------------------------------------------------------------


@by_scaling
def test_each_row_turns_by_the_length_of_its_own_document(name: str, at: At) -> None:
    tokens = at([[0, 1, 2], [5, 40, 6], [14, 15, 16]])
    module = RoPE(theta=100.0, scaling=SCALINGS[name]).make(LayerShape(0, 2, 2, 8))
    assert module is not None
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    for row, length in enumerate((3, 41, 17)):
        frequencies, factor = rope_frequencies(RoPE(theta=100.0, scaling=SCALINGS[name]), 8, length)
        angle = tokens.position[row].float()[:, None] * frequencies
        torch.testing.assert_close(tables.cos[row], angle.cos() * factor, atol=1e-6, rtol=0)
        torch.testing.assert_close(tables.sin[row], angle.sin() * factor, atol=1e-6, rtol=0)


@by_scaling
def test_layers_of_equal_scalings_share_tables_and_both_layouts_read_them(name: str, at: At) -> None:
    tokens = at([[0, 1], [5, 40]])
    context = StepContext(tokens, True)

    def tables(scheme: RoPE, head_dim: int = 8) -> object:
        module = scheme.make(LayerShape(0, 2, 2, head_dim))
        assert module is not None
        return module.rotary(context, tokens)

    scheme = RoPE(scaling=SCALINGS[name])
    assert tables(scheme) is tables(RoPE(scaling=SCALINGS[name], layout="interleaved"))
    assert tables(scheme) is not tables(RoPE(theta=500.0, scaling=SCALINGS[name]))
    assert tables(scheme) is not tables(RoPE())


# ---- no trace, no neighbours ------------------------------------------------------------------------------------


@pytest.mark.bug("B031")
@by_scaling
def test_a_long_text_leaves_no_trace_in_a_short_one(name: str) -> None:
    model = decoder(SCALINGS[name])
    short, long = ids(2, TRAINED - 3), ids(2, 50)
    alone = model(short)
    first_long = model(long)
    assert torch.equal(model(short), alone)
    assert torch.equal(decoder(SCALINGS[name])(long), first_long)
    assert not torch.allclose(model(long[:, :TRAINED]), first_long[:, :TRAINED], atol=1e-3)


@by_scaling
def test_neighbours_in_the_batch_in_the_row_and_padding_change_nothing(name: str) -> None:
    model = decoder(SCALINGS[name])
    text = {n: ids(1, 60)[:, :n] for n in (9, 16, 17, 40)}
    alone = {n: model(t)[0] for n, t in text.items()}
    row = torch.cat([text[n] for n in (40, 9, 17)], dim=1)
    documents = torch.tensor([[0] * 40 + [1] * 9 + [2] * 17])
    packed = model(row, document_ids=documents)[0].split([40, 9, 17])
    for n, found in zip((40, 9, 17), packed, strict=True):
        torch.testing.assert_close(found, alone[n], atol=1e-4, rtol=0)
    padded = torch.cat([torch.cat([text[n].new_zeros(1, 40 - n), text[n]], dim=1) for n in text])
    documents = torch.cat([torch.tensor([[-1] * (40 - n) + [0] * n]) for n in text])
    for n, found in zip(text, model(padded, document_ids=documents), strict=True):
        torch.testing.assert_close(found[40 - n :], alone[n], atol=1e-4, rtol=0)


# ---- caches -----------------------------------------------------------------------------------------------------


@pytest.mark.bug("B043")
@pytest.mark.parametrize("window", [None, 5])
@by_scaling
def test_within_the_trained_length_a_cache_is_exact(name: str, window: int | None) -> None:
    model, text = decoder(SCALINGS[name], window=window), ids(2, TRAINED)
    cache = model.new_cache(2)
    pieces = [model(piece, cache=cache) for piece in text.split([7, 1, 1, 4, 3], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(text), atol=1e-4, rtol=0)


@by_scaling
def test_a_call_that_passes_the_trained_length_with_a_filled_cache_is_refused_by_name(name: str) -> None:
    model = decoder(YaRN(4.0, 64), SCALINGS[name])
    cache = model.new_cache(1)
    model(ids(1, TRAINED - 2), cache=cache)
    with pytest.raises(CacheNotExact, match=rf"^layer 1: .*'{name}'.* 19 tokens than for the 14 .*= 16\).*yarn, ntk"):
        model(ids(1, 5), cache=cache)


def test_dynamic_ntk_refuses_to_go_on_from_a_prompt_beyond_its_length() -> None:
    model, text = decoder(SCALINGS["dynamic_ntk"]), ids(1, 40)
    cache = model.new_cache(1)
    assert torch.equal(model(text, cache=cache), model(text))
    with pytest.raises(CacheNotExact, match="41 tokens than for the 40"):
        model(text[:, :1], cache=cache)


def test_longrope_goes_on_exactly_from_a_prompt_beyond_its_length() -> None:
    """Its frequencies are the long ones then and ever after."""
    model, text = decoder(SCALINGS["longrope"]), ids(2, 40)
    cache = model.new_cache(2)
    pieces = [model(piece, cache=cache) for piece in text.split([TRAINED + 1, 1, 1, 16, 5], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(text), atol=1e-4, rtol=0)


@by_scaling
def test_a_packed_document_that_ends_in_one_piece_does_not_bind_the_next(name: str) -> None:
    model, text = decoder(SCALINGS[name]), ids(1, 34)
    documents = torch.tensor([[0] * 20 + [1] * 14])
    cache = model.new_cache(1)
    pieces = [
        model(text[:, a:b], document_ids=documents[:, a:b], cache=cache) for a, b in ((0, 20), (20, 27), (27, 34))
    ]
    torch.testing.assert_close(torch.cat(pieces, dim=1), model(text, document_ids=documents), atol=1e-4, rtol=0)
    with pytest.raises(CacheNotExact, match="17 tokens than for the 14"):
        model(text[:, :3], document_ids=documents[:, -3:], cache=cache)


@pytest.mark.parametrize("length", [3, TRAINED - 2, TRAINED + 9])
@by_scaling
def test_generation_is_that_of_whole_texts_within_and_beyond_the_trained_length(name: str, length: int) -> None:
    model, prompts = decoder(SCALINGS[name]), [ids(1, length)[0].tolist(), ids(1, 4)[0].tolist()]
    expected = []
    for prompt in prompts:
        text = list(prompt)
        for _ in range(10):
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
        expected.append(text[len(prompt) :])
    assert generate(model, prompts, max_new_tokens=10) == expected
    assert generate(model, prompts[:1], max_new_tokens=10) == expected[:1]


def test_generation_uses_a_cache_as_far_as_it_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model, made = decoder(SCALINGS["dynamic_ntk"]), []
    new_cache = model.new_cache
    monkeypatch.setattr(model, "new_cache", lambda batch, *how: made.append(batch) or new_cache(batch, *how))
    prompt = ids(1, TRAINED - 4)[0].tolist()
    generate(model, [prompt], max_new_tokens=5)  # the fifth is never fed back, so 16 tokens are seen
    assert made == [1]
    generate(model, [prompt], max_new_tokens=6)
    assert made == [1]


def test_only_a_scaling_by_length_limits_a_cache() -> None:
    assert [s.cache_limit for s in (NoPE(), RoPE(), RoPE(scaling=YaRN(4.0, 64)))] == [None] * 3
    assert RoPE(scaling=SCALINGS["dynamic_ntk"]).cache_limit == TRAINED
    assert RoPE(scaling=SCALINGS["longrope"], partial_rotary_factor=0.0).cache_limit is None


# ---- errors -----------------------------------------------------------------------------------------------------

LONG: dict[str, Any] = {"type": "longrope", "factor": 4, "original_max_position_embeddings": 16}
DYNAMIC: dict[str, Any] = {"type": "dynamic_ntk", "factor": 4, "original_max_position_embeddings": 16}


@pytest.mark.bug("B038")
@pytest.mark.parametrize(
    ("block", "message"),
    [
        (
            {**DYNAMIC, "original_max_position_embeddings": 0},
            "original_max_position_embeddings = 0: must be at least 1",
        ),
        ({**DYNAMIC, "factor": 0.5}, "factor = 0.5: must be at least 1"),
        ({**LONG, "short_factor": [1, 2, 3], "long_factor": 1}, "short_factor has 3 numbers: .* 8 channels, so give 4"),
        ({**LONG, "short_factor": 1, "long_factor": [1, 2, 3, 0]}, "long_factor = .*: must be above 0"),
        ({**LONG, "short_factor": 0, "long_factor": 1}, "short_factor = 0.0: must be above 0"),
        ({**LONG, "short_factor": "x", "long_factor": 1}, "short_factor: expected a list or a number, got 'x'"),
        (
            {**LONG, "short_factor": 1, "long_factor": 1, "original_max_position_embeddings": 1},
            "original_max_position_embeddings = 1: must be at least 2",
        ),
        ({**LONG, "short_factor": 1, "long_factor": 1, "attention_factor": 0}, "attention_factor = 0.0: must be above"),
    ],
)
def test_a_block_that_makes_no_sense_is_refused(block: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        build(RoPE, {"scaling": block}, "layer.position").validate(LayerShape(0, 2, 2, 8))


def test_dynamic_ntk_needs_more_than_one_pair() -> None:
    with pytest.raises(ConfigError, match="at least 4 rotated channels, this layer has 2"):
        RoPE(scaling=SCALINGS["dynamic_ntk"]).validate(LayerShape(0, 1, 1, 2))
