"""RoPE: golden frequencies, partial rotation, layouts, precision, and nothing that a table or a buffer could break."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from minillm.attention.tokens import StepContext, Tokens
from minillm.errors import ConfigError
from minillm.position import LayerPosition, LayerShape, rope_frequencies
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.scaling import Linear, YaRN

At = Callable[..., Tokens]


def rotation(scheme: RoPE, head_dim: int) -> LayerPosition:
    scheme.validate(LayerShape(0, 2, 2, head_dim))
    module = scheme.make(LayerShape(0, 2, 2, head_dim))
    assert module is not None
    return module


def rotated(scheme: RoPE, x: Tensor, tokens: Tokens) -> Tensor:
    module = rotation(scheme, x.shape[-1])
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    return module.rotate(x, tables)


def in_complex_float64(x: Tensor, positions: Tensor, frequencies: Tensor, layout: str) -> Tensor:
    """The textbook rotation: each pair as a complex number times exp(i * position * frequency)."""
    half = len(frequencies)
    wide = x.double()
    pairs = (wide[..., 0::2], wide[..., 1::2]) if layout == "interleaved" else (wide[..., :half], wide[..., half:])
    turned = torch.complex(*pairs) * torch.polar(torch.ones(()).double(), positions.double()[:, None] * frequencies)
    if layout == "interleaved":
        return torch.view_as_real(turned).flatten(-2)
    return torch.cat((turned.real, turned.imag), dim=-1)


@pytest.mark.parametrize("layout", ["half", "interleaved"])
def test_rotation_is_the_textbook_one(layout: str, at: At) -> None:
    positions = [0, 1, 50, 300, 32768]
    x = torch.randn(2, 3, 5, 16)
    frequencies = 500.0 ** (-torch.arange(8).double() / 8)
    exact = in_complex_float64(x, torch.tensor(positions), frequencies, layout)
    out = rotated(RoPE(theta=500.0, layout=layout), x, at(positions))  # type: ignore[arg-type]
    # An fp32 angle is off by about position * 2**-24, so 0.002 at 32k.
    torch.testing.assert_close(out[:, :, :4].double(), exact[:, :, :4], atol=2e-4, rtol=0)
    torch.testing.assert_close(out[:, :, 4].double(), exact[:, :, 4], atol=1e-2, rtol=0)


@pytest.mark.bug("B042")
def test_layouts_are_one_rotation_up_to_a_permutation_of_channels(at: At) -> None:
    x = torch.randn(1, 2, 4, 16)
    half_to_interleaved = torch.arange(16).view(2, 8).T.flatten()
    tokens = at([0, 1, 50, 300])
    half = rotated(RoPE(layout="half"), x, tokens)
    interleaved = rotated(RoPE(layout="interleaved"), x[..., half_to_interleaved], tokens)
    torch.testing.assert_close(interleaved, half[..., half_to_interleaved], atol=0, rtol=0)
    assert not torch.allclose(rotated(RoPE(layout="interleaved"), x, tokens)[:, :, 1:], half[:, :, 1:], atol=1e-2)


def test_position_zero_is_left_alone_and_lengths_are_kept(at: At) -> None:
    x = torch.randn(1, 2, 3, 8)
    out = rotated(RoPE(), x, at([0, 7, 4000]))
    torch.testing.assert_close(out[:, :, 0], x[:, :, 0], atol=0, rtol=0)
    torch.testing.assert_close(out.norm(dim=-1), x.norm(dim=-1))


def test_scores_depend_on_the_difference_of_positions_only(at: At) -> None:
    q, k = torch.randn(1, 1, 1, 16), torch.randn(1, 1, 1, 16)

    def score(query: int, key: int) -> float:
        return float((rotated(RoPE(), q, at([query])) * rotated(RoPE(), k, at([key]))).sum())

    assert score(5, 2) == pytest.approx(score(1005, 1002), abs=1e-3)
    assert score(5, 2) != pytest.approx(score(5, 3), abs=1e-3)


@pytest.mark.bug("B032")
def test_theta_is_used_even_when_nobody_hard_codes_it() -> None:
    frequencies, factor = rope_frequencies(RoPE(theta=12345.0), 64, 128)
    assert frequencies.dtype == torch.float32
    assert frequencies.shape == (32,)
    assert float(frequencies[0]) == 1.0
    assert float(frequencies[1]) == pytest.approx(0.7450, abs=5e-5)
    assert factor == 1.0


def test_the_longest_wavelength_grows_with_theta_and_the_shortest_stays() -> None:
    for theta, longest in [(1e4, 47_117), (1e6, 4.08e6)]:
        frequencies, _ = rope_frequencies(RoPE(theta=theta), 64, 128)
        assert float(2 * math.pi / frequencies[-1]) == pytest.approx(longest, rel=1e-3)
        assert float(frequencies[0]) == 1.0


@pytest.mark.bug("B039")
def test_partial_rotation_spreads_frequencies_over_the_rotated_width(at: At) -> None:
    scheme = RoPE(partial_rotary_factor=0.5)
    frequencies, _ = rope_frequencies(scheme, 16, 128)
    torch.testing.assert_close(frequencies, torch.tensor([1, 0.1, 0.01, 0.001]))
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(2, 3, 6, 16).to(dtype)
        out = rotated(scheme, x, at(6))
        assert out.dtype == dtype
        assert torch.equal(out[..., 8:], x[..., 8:])
        assert torch.equal(out[..., :8], rotated(RoPE(), x[..., :8], at(6)))
        assert torch.equal(rotated(RoPE(partial_rotary_factor=1.0), x, at(6)), rotated(RoPE(), x, at(6)))


@pytest.mark.bug("B039")
@pytest.mark.parametrize("rule", ["neox", "proportional"])
def test_rotating_nothing_is_nope(rule: str) -> None:
    shape = LayerShape(0, 2, 2, 16)
    scheme = RoPE(partial_rotary_factor=0.0, rule=rule)  # type: ignore[arg-type]
    scheme.validate(shape)
    assert scheme.make(shape) is None
    assert NoPE().make(shape) is None


def test_the_two_partial_rules_differ_as_published() -> None:
    neox, _ = rope_frequencies(RoPE(partial_rotary_factor=0.5), 8, 128)
    proportional, _ = rope_frequencies(RoPE(partial_rotary_factor=0.5, rule="proportional"), 8, 128)
    torch.testing.assert_close(neox, torch.tensor([1, 0.01]))
    torch.testing.assert_close(proportional, torch.tensor([1, 0.1, 0, 0]))


def test_the_proportional_rule_passes_slow_pairs_through_bit_for_bit(at: At) -> None:
    x = torch.randn(1, 2, 5, 8)
    out = rotated(RoPE(partial_rotary_factor=0.5, rule="proportional"), x, at([0, 1, 2, 500, 9999]))
    assert torch.equal(out[..., [2, 3, 6, 7]], x[..., [2, 3, 6, 7]])
    assert not torch.equal(out[..., [0, 1, 4, 5]], x[..., [0, 1, 4, 5]])


def test_the_yarn_factor_scales_rotated_channels_only(at: At) -> None:
    scaling = YaRN(factor=4.0, original_max_position_embeddings=256)
    scheme = RoPE(scaling=scaling, partial_rotary_factor=0.5)
    x = torch.randn(1, 2, 4, 16)
    out = rotated(scheme, x, at(4))
    ratio = out[..., :8].norm(dim=-1) / x[..., :8].norm(dim=-1)
    torch.testing.assert_close(ratio, torch.full_like(ratio, 1.138629436))
    assert torch.equal(out[..., 8:], x[..., 8:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_a_model_cast_to_half_still_rotates_in_float32(dtype: torch.dtype, at: At) -> None:
    """257 is no bf16 number: a rotation with bf16 angles could not tell it from 256."""
    module = copy.deepcopy(rotation(RoPE(), 8)).to(dtype)
    tokens = at([256, 257])
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    assert tables.cos.dtype == tables.sin.dtype == torch.float32
    exact = torch.tensor([256.0, 257.0]).double()[:, None] * 1e4 ** (-torch.arange(4).double() / 4)
    torch.testing.assert_close(tables.cos[0].double(), exact.cos(), atol=2e-5, rtol=0)
    x = torch.randn(1, 1, 2, 8).to(dtype)
    out = module.rotate(x, tables)
    assert out.dtype == dtype
    torch.testing.assert_close(out, module.rotate(x.float(), tables).to(dtype), atol=0, rtol=0)


def test_autocast_does_not_lower_the_angles(at: At) -> None:
    module, tokens = rotation(RoPE(), 8), at([256, 257, 3001])
    plain = module.rotary(StepContext(tokens, True), tokens)
    with torch.autocast("cpu", torch.bfloat16):
        cast = module.rotary(StepContext(tokens, True), tokens)
    assert plain is not None
    assert cast is not None
    assert torch.equal(plain.cos, cast.cos)
    assert torch.equal(plain.sin, cast.sin)


@pytest.mark.bug("B030")
def test_a_module_built_on_the_meta_device_rotates_as_one_built_in_memory(at: At) -> None:
    with torch.device("meta"):
        module = rotation(RoPE(scaling=Linear(factor=2.0)), 8)
    module.to_empty(device="cpu")
    assert not module.state_dict()
    assert not list(module.buffers())
    tokens = at([1])
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    assert float(tables.sin[0, 0, 0]) == pytest.approx(math.sin(0.5))
    x = torch.randn(1, 2, 1, 8)
    assert torch.equal(module.rotate(x, tables), rotated(RoPE(scaling=Linear(factor=2.0)), x, tokens))


@pytest.mark.bug("B031")
def test_lengths_in_any_order_give_the_same_tables(at: At) -> None:
    module = rotation(RoPE(), 16)
    first, *others = (module.rotary(StepContext(at(n), True), at(n)) for n in (64, 300, 64, 1000))
    assert first is not None
    for later in others:
        assert later is not None
        assert torch.equal(later.cos[:, :64], first.cos)
        assert torch.equal(later.sin[:, :64], first.sin)


def test_each_row_may_have_its_own_positions(at: At) -> None:
    x = torch.randn(2, 1, 2, 8)
    out = rotated(RoPE(), x, at([[0, 1], [7, 0]]))
    assert torch.equal(out[0], rotated(RoPE(), x[:1], at([0, 1]))[0])
    assert torch.equal(out[1], rotated(RoPE(), x[1:], at([7, 0]))[0])


def test_layers_share_tables_exactly_when_their_frequencies_agree(at: At) -> None:
    tokens = at(4)
    context = StepContext(tokens, True)

    def tables(scheme: RoPE) -> object:
        return rotation(scheme, 8).rotary(context, tokens)

    assert tables(RoPE()) is tables(RoPE(layout="interleaved"))
    yarn = YaRN(factor=2.0, original_max_position_embeddings=64)
    silent = YaRN(factor=2.0, original_max_position_embeddings=64, attention_factor=1.0)
    others = [RoPE(theta=500.0), RoPE(partial_rotary_factor=0.5), RoPE(scaling=yarn), RoPE(scaling=silent)]
    assert len({id(tables(s)) for s in [RoPE(), *others]}) == 5


def test_tables_for_other_tokens_than_the_queries_are_not_shared(at: At) -> None:
    queries, keys = at([5]), at([0, 1, 2])
    context = StepContext(queries, False)
    module = rotation(RoPE(), 8)
    for_queries, for_keys = module.rotary(context, queries), module.rotary(context, keys)
    assert for_queries is not None
    assert for_keys is not None
    assert for_queries.cos.shape == (1, 1, 4)
    assert for_keys.cos.shape == (1, 3, 4)


def test_gradients_flow_through_the_rotation(at: At) -> None:
    tokens, module = at([0, 3]), rotation(RoPE(partial_rotary_factor=0.5), 8)
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    x = torch.randn(1, 2, 2, 8, dtype=torch.float64, requires_grad=True)
    wide = type(tables)(tables.cos.double(), tables.sin.double())
    assert torch.autograd.gradcheck(lambda x: module.rotate(x, wide), (x,))


@pytest.mark.parametrize(
    ("scheme", "head_dim", "message"),
    [
        pytest.param(RoPE(theta=0.0), 8, "position.theta = 0.0: must be above 1.*position: nope", id="theta zero"),
        pytest.param(
            RoPE(partial_rotary_factor=1.5), 8, "partial_rotary_factor = 1.5: .*from 0 to 1", id="share over 1"
        ),
        pytest.param(RoPE(partial_rotary_factor=0.5), 6, "rotates 3 channels.*even", id="odd rotary width"),
        pytest.param(RoPE(), 7, "rotates 7 channels.*even", id="odd head"),
        pytest.param(RoPE(rule="proportional"), 7, "rotates 7 channels.*even", id="odd head, proportional"),
        pytest.param(
            RoPE(partial_rotary_factor=0.1), 8, "rotates no channel: give at least 0.25", id="share too small"
        ),
    ],
)
def test_what_cannot_be_rotated_is_refused(scheme: RoPE, head_dim: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        scheme.validate(LayerShape(0, 2, 2, head_dim))


def test_frequencies_of_another_scheme_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="the scheme is 'nope', only 'rope'"):
        rope_frequencies(NoPE(), 8, 128)


def test_the_table_shows_what_is_set() -> None:
    assert RoPE().summary() == {"theta": 10000.0, "scaling": None, "detail": None}
    scheme = RoPE(theta=5e5, scaling=Linear(factor=8.0), partial_rotary_factor=0.25, layout="interleaved")
    assert scheme.summary() == {"theta": 5e5, "scaling": "linear x8", "detail": "partial 0.25, interleaved"}
