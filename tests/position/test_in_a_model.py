"""Position schemes inside a small decoder: built on meta, decoded from a cache, packed, run past the length."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from minillm.attention.backends import attend
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.errors import MinillmError, PositionUndefined
from minillm.model.decoder import Decoder, build_model
from minillm.position import EmbeddingScheme, PositionScheme, TemperatureScheme, alibi_slopes, scheme_class
from minillm.position.alibi import ALiBi
from minillm.position.binary import Binary
from minillm.position.deberta import DeBERTa
from minillm.position.integer import Integer
from minillm.position.learned import Learned
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.scaling import YaRN
from minillm.position.scaling_by_length import DynamicNTK, LongRoPE
from minillm.position.shaw import Shaw
from minillm.position.sinusoidal import Sinusoidal
from minillm.position.t5 import T5
from minillm.position.temperature import Llama4, LogN, Ministral, Uniform
from minillm.position.temperature_learned import PerHead, SSMax
from minillm.position.transformer_xl import TransformerXL

LENGTH = 64


def config(
    *positions: PositionScheme | str,
    embedding: EmbeddingScheme | None = None,
    temperature: TemperatureScheme | None = None,
    length: int = LENGTH,
    window: int | None = None,
) -> ModelConfig:
    schemes = [scheme_class(p, "test")() if isinstance(p, str) else p for p in positions]
    layers = tuple(
        LayerSpec(i, "all", scheme, 4, 2, 16, window=window, temperature=temperature)
        for i, scheme in enumerate(schemes)
    )
    return ModelConfig(50, 32, 48, len(layers), length, layers, embedding_position=embedding)


def tokens(length: int, batch: int = 2) -> Tensor:
    return torch.randint(50, (batch, length), generator=torch.Generator().manual_seed(1))


def same_weights(*models: Decoder) -> None:
    for model in models[1:]:
        model.load_state_dict(models[0].state_dict())


SCHEMES: dict[str, Callable[[], ModelConfig]] = {
    "nope": lambda: config("nope", "nope"),
    "rope": lambda: config(RoPE(theta=500.0), RoPE(layout="interleaved", partial_rotary_factor=0.5)),
    "yarn": lambda: config(RoPE(scaling=YaRN(4.0, LENGTH)), NoPE()),
    "alibi": lambda: config("alibi", "alibi"),
    "sinusoidal": lambda: config(NoPE(), NoPE(), embedding=Sinusoidal()),
    "learned": lambda: config(NoPE(), NoPE(), embedding=Learned()),
    "integer": lambda: config(NoPE(), NoPE(), embedding=Integer(scale=0.02)),
    "integer_normalized": lambda: config(NoPE(), NoPE(), embedding=Integer(normalized=True)),
    "binary": lambda: config(NoPE(), NoPE(), embedding=Binary()),
    "p_rope": lambda: config(*[RoPE(partial_rotary_factor=0.75, rule="proportional")] * 2),
    "dynamic_ntk": lambda: config(RoPE(scaling=DynamicNTK(2.0, LENGTH)), RoPE()),
    "longrope": lambda: config(RoPE(scaling=LongRoPE(4.0, LENGTH, 1.0, 4.0)), NoPE()),
    "temperature": lambda: config(NoPE(), RoPE(), temperature=Llama4(floor=8.0)),
    "uniform": lambda: config(NoPE(), RoPE(), temperature=Uniform(scale=1.5)),
    "per_head": lambda: config(NoPE(), RoPE(), temperature=PerHead(init=1.6, minimum=1.0)),
    "ministral": lambda: config(RoPE(scaling=YaRN(4.0, 8)), NoPE(), temperature=Ministral(floor=8.0)),
    "ssmax": lambda: config(NoPE(), RoPE(), temperature=SSMax(), window=12),
    "alibi_learned": lambda: config(ALiBi(learned=True), ALiBi(learned=True)),
    "t5": lambda: config("t5", "t5"),
    "t5_per_layer": lambda: config(*[T5(num_buckets=6, max_distance=9, shared=False)] * 2, window=12),
    "shaw": lambda: config(Shaw(max_distance=5), Shaw(values=False)),
    "shaw_windowed": lambda: config(*[Shaw(max_distance=8)] * 2, window=6),
    "transformer_xl": lambda: config("transformer_xl", "transformer_xl"),
    "transformer_xl_windowed": lambda: config("transformer_xl", "transformer_xl", window=6),
    "deberta": lambda: config(DeBERTa(max_distance=6), DeBERTa(terms=("p2c",))),
    "deberta_v2": lambda: config(*[DeBERTa(max_distance=40, position_buckets=10, shared=True)] * 2, window=30),
}
"""A new scheme is tested by one line here."""


def build(name: str) -> Decoder:
    """With what a position scheme trains made large enough to matter."""
    model = build_model(SCHEMES[name](), seed=0).eval()
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if ".position." in parameter_name or parameter_name.startswith("shared_positions."):
                parameter.normal_(0, 0.5, generator=generator)
    return model


@pytest.fixture(params=SCHEMES)
def model(request: pytest.FixtureRequest) -> Decoder:
    return build(request.param)


@pytest.mark.bug("B030")
def test_built_on_meta_and_loaded_it_is_the_eagerly_built_model(model: Decoder) -> None:
    shell = build_model(model.config, device="meta").to_empty(device="cpu").eval()
    shell.load_state_dict(model.state_dict())
    assert torch.equal(shell(tokens(20)), model(tokens(20)))


def test_in_a_bf16_model_it_runs_and_is_close(model: Decoder) -> None:
    """What position computes stays float32; the weights and states around it are rounded to 8 bits."""
    exact = model(tokens(20))
    half = copy.deepcopy(model).bfloat16()
    assert (half(tokens(20)) - exact).abs().max() < 0.1 * exact.abs().max()
    placed = arrange(2, 20, "cpu")
    for layer in half.layers:
        if layer.attention.spec.position.place == "bias":
            assert layer.attention.position.bias(placed, placed).dtype == torch.float32


@pytest.mark.bug("B043")
def test_decoding_with_a_cache_gives_the_logits_of_the_full_pass(model: Decoder) -> None:
    ids = tokens(30)
    full, cache = model(ids), model.new_cache(2)
    pieces = [model(piece, cache=cache) for piece in ids.split([7, 1, 1, 16, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), full, atol=1e-5, rtol=0)


@pytest.mark.bug("B043")
@pytest.mark.parametrize(
    "scheme", [RoPE(), ALiBi(), T5(), Shaw(2), TransformerXL(), DeBERTa(3)], ids=lambda s: s.scheme
)
def test_every_layer_decodes_as_in_the_full_pass_with_windows_of_four(scheme: PositionScheme) -> None:
    model = build_model(config(*[scheme] * 4, window=4)).eval()
    states: list[list[Tensor]] = [[], [], [], []]
    for layer, seen in zip(model.layers, states, strict=True):
        layer.register_forward_hook(lambda _module, _inputs, out, seen=seen: seen.append(out))
    ids = tokens(15)
    model(ids)
    full = [seen.pop() for seen in states]
    cache = model.new_cache(2)
    for step in range(15):
        model(ids[:, step : step + 1], cache=cache)
    for layer_full, seen in zip(full, states, strict=True):
        torch.testing.assert_close(torch.cat(seen, dim=1), layer_full, atol=1e-5, rtol=0)


def test_a_packed_document_is_placed_as_if_it_stood_alone(model: Decoder) -> None:
    ids = tokens(24, batch=1)
    document_ids = torch.tensor([[0] * 9 + [1] * 15])
    packed = model(ids, document_ids=document_ids)
    torch.testing.assert_close(packed[:, 9:], model(ids[:, 9:]), atol=1e-5, rtol=0)


def test_packed_rows_come_in_pieces_as_they_come_at_once(model: Decoder) -> None:
    ids, document_ids = tokens(24), torch.tensor([[0] * 9 + [1] * 15, [-1] * 3 + [0] * 12 + [1] * 9])
    whole, cache = model(ids, document_ids=document_ids), model.new_cache(2)
    cut = [5, 8, 1, 10]
    pieces = [
        model(piece, document_ids=documents, cache=cache)
        for piece, documents in zip(ids.split(cut, dim=1), document_ids.split(cut, dim=1), strict=True)
    ]
    real = document_ids >= 0
    torch.testing.assert_close(torch.cat(pieces, dim=1)[real], whole[real], atol=1e-5, rtol=0)


BY_LENGTH = ("dynamic_ntk", "longrope")
"""A longer text changes the logits of its own beginning: see test_scaling_by_length.py."""


@pytest.mark.bug("B031")
@pytest.mark.parametrize("name", [n for n in SCHEMES if n not in ("learned", *BY_LENGTH)])
def test_it_runs_past_its_training_length_and_back(name: str) -> None:
    model, ids = build(name), tokens(1000)
    first, longer, again, longest = (model(ids[:, :n]) for n in (64, 300, 64, 1000))
    assert torch.equal(first, again)
    torch.testing.assert_close(longer[:, :64], first, atol=1e-5, rtol=0)
    torch.testing.assert_close(longest[:, :300], longer, atol=1e-5, rtol=0)


@pytest.mark.bug("B031")
def test_a_learned_table_ends_with_an_error_in_training_and_undefined_in_evaluation() -> None:
    model = build_model(SCHEMES["learned"]())
    model.train()
    with pytest.raises(MinillmError, match=r"65 tokens.*table of 64 positions") as error:
        model.loss(tokens(65), tokens(65))
    assert not isinstance(error.value, PositionUndefined)
    with pytest.raises(PositionUndefined):
        model.eval()(tokens(65))
    cache = model.new_cache(2)
    model(tokens(64), cache=cache)
    with pytest.raises(PositionUndefined):
        model(tokens(1), cache=cache)


@pytest.mark.bug("B032")
def test_swapping_the_bases_of_two_layers_changes_the_logits() -> None:
    one = build_model(config(RoPE(theta=1e4), RoPE(theta=1e6)))
    other = build_model(config(RoPE(theta=1e6), RoPE(theta=1e4)))
    same_weights(one, other)
    assert not torch.allclose(one(tokens(20)), other(tokens(20)), atol=1e-6)


@pytest.mark.bug("B039")
def test_a_share_of_one_is_plain_rope_and_of_zero_is_nope() -> None:
    whole, rope = (build_model(config(s, s)) for s in (RoPE(partial_rotary_factor=1.0), RoPE()))
    none, nope = (build_model(config(s, s)) for s in (RoPE(partial_rotary_factor=0.0), NoPE()))
    same_weights(whole, rope, none, nope)
    ids = tokens(20)
    assert torch.equal(whole(ids), rope(ids))
    assert torch.equal(none(ids), nope(ids))
    assert not torch.allclose(rope(ids), nope(ids), atol=1e-6)


@pytest.mark.parametrize(
    "name", ["rope", "yarn", "alibi", "alibi_learned", "t5", "shaw", "transformer_xl", "deberta", "deberta_v2"]
)
def test_only_distances_matter_to_relative_schemes(name: str) -> None:
    model, ids = build(name), tokens(20)
    far = model(ids, positions=torch.arange(100, 120).expand(2, 20))
    torch.testing.assert_close(far, model(ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: config(NoPE(), embedding=Sinusoidal(), length=200), id="sinusoidal"),
        pytest.param(lambda: config(NoPE(), embedding=Learned(), length=200), id="learned"),
        pytest.param(lambda: config(NoPE(), temperature=LogN(base=10.0)), id="log_n"),
    ],
)
def test_absolute_positions_matter_to_absolute_schemes(make: Callable[[], ModelConfig]) -> None:
    model, ids = build_model(make()), tokens(20)
    with torch.no_grad():  # weights large enough that attention is not uniform
        for parameter in model.layers.parameters():
            parameter.mul_(5)
    far = model(ids, positions=torch.arange(100, 120).expand(2, 20))
    assert not torch.allclose(far, model(ids), atol=1e-4)


def test_without_any_position_the_order_of_the_prefix_is_invisible_to_one_layer() -> None:
    """NoPE must really be none: only the causal mask tells tokens apart, and the last query sees the whole prefix."""
    ids = tokens(12, batch=1)
    shuffled = torch.cat((ids[:, :11].flip(1), ids[:, 11:]), dim=1)
    nope, rope, alibi = (build_model(config(s)) for s in (NoPE(), RoPE(), ALiBi()))
    torch.testing.assert_close(nope(ids)[:, -1], nope(shuffled)[:, -1], atol=1e-6, rtol=0)
    for model in (rope, alibi):
        assert not torch.allclose(model(ids)[:, -1], model(shuffled)[:, -1], atol=1e-6)


@pytest.mark.bug("B041")
@pytest.mark.parametrize("backend", ["reference", "sdpa"])
def test_alibi_in_a_bf16_model_tells_far_neighbours_apart(backend: str) -> None:
    """Queries and keys say nothing, so each key's weight is exp(-slope * distance): 3000 against 3001."""
    spec = LayerSpec(0, "all", ALiBi(), 4, 4, 2)
    everything = arrange(1, 4096, "cpu")
    query = Tokens(everything.index[:, -1:], everything.position[:, -1:], None)
    keys = Tokens(everything.index[:, 1094:1096], everything.position[:, 1094:1096], None)
    nothing = torch.zeros(1, 4, 2, 2, dtype=torch.bfloat16)
    values = torch.eye(2, dtype=torch.bfloat16).expand(1, 4, 2, 2)
    context = StepContext(query, contiguous=False)
    position = ALiBi().make(spec.shape)
    weights = attend(nothing[:, :, :1], nothing, values, spec, query, keys, context, position, backend=backend)[0, :, 0]
    expected = torch.exp(-alibi_slopes(4))
    torch.testing.assert_close(weights[:, 0].float() / weights[:, 1].float(), expected, atol=8e-3, rtol=0)


@pytest.mark.bug("B044")
def test_temperature_counts_inside_the_document() -> None:
    model = build_model(config(NoPE(), NoPE(), temperature=Llama4(scale=5.0, floor=8.0)))
    plain = build_model(config(NoPE(), NoPE()))
    same_weights(model, plain)
    ids = tokens(14, batch=1)
    packed = torch.tensor([[0] * 7 + [1] * 7])
    assert torch.equal(model(ids, document_ids=packed), plain(ids, document_ids=packed))
    hot, cold = model(ids), plain(ids)
    assert torch.equal(hot[:, :7], cold[:, :7])
    assert not torch.allclose(hot[:, 7:], cold[:, 7:], atol=1e-7)
