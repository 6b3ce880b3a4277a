"""Query temperatures: golden factors, counted within the document; one learned number per head."""

from __future__ import annotations

import math
import pickle

import pytest
import torch

from minillm.errors import ConfigError
from minillm.position import LayerShape, TemperatureScheme, temperature_class
from minillm.position.temperature import Llama4, LogN, Ministral, Uniform, as_mapping
from minillm.position.temperature_learned import PerHead, SSMax

SHAPE = LayerShape(0, 2, 2, 8)


def factors(scheme: TemperatureScheme, positions: list[int]) -> torch.Tensor:
    scheme.validate(SHAPE)
    out = scheme.make(SHAPE)(torch.tensor([positions]))
    assert out.shape == (1, 1, len(positions), 1)
    assert out.dtype == torch.float32
    return out.flatten()


@pytest.mark.bug("B044")
def test_llama4_steps_at_the_position_before_each_multiple_of_its_floor() -> None:
    out = factors(Llama4(scale=0.1, floor=8.0), [6, 7, 8])
    torch.testing.assert_close(out, torch.tensor([1.0, 1.069315, 1.069315]))


def test_llama4_defaults_give_the_published_values() -> None:
    out = factors(Llama4(), [0, 8190, 8191, 16382, 16383, 32767, 131071])
    expected = [1, 1, 1.0693147, 1.0693147, 1.1098612, 1.1609438, 1.2833213]
    torch.testing.assert_close(out, torch.tensor(expected))


def test_ministral_steps_at_each_multiple_of_its_floor_a_position_after_llama4() -> None:
    out = factors(Ministral(scale=0.1, floor=8192.0), [0, 8191, 8192, 16383, 16384, 32768, 131072])
    expected = [1, 1, 1.0693147, 1.0693147, 1.1098612, 1.1609438, 1.2833213]
    torch.testing.assert_close(out, torch.tensor(expected))
    positions = list(range(40))
    later = factors(Ministral(floor=8.0), [p + 1 for p in positions])
    assert torch.equal(later, factors(Llama4(floor=8.0), positions))


def test_uniform_is_one_number_everywhere() -> None:
    assert factors(Uniform(scale=1.5), [0, 7, 100_000]).tolist() == [1.5, 1.5, 1.5]


def test_per_head_starts_at_one_number_and_learns_one_for_each_query_head() -> None:
    module = PerHead(init=1.6).make(LayerShape(0, 6, 2, 8))
    assert [(name, p.shape) for name, p in module.named_parameters()] == [("scale", (6,))]
    out = module(torch.tensor([[0, 5, 900]]))
    assert out.shape == (1, 6, 1, 1)
    torch.testing.assert_close(out.flatten(), torch.full((6,), 1.6))
    (out.flatten() * torch.arange(6.0)).sum().backward()
    assert module.scale.grad is not None
    assert module.scale.grad.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_head_below_the_minimum_acts_at_it_and_can_rise_again() -> None:
    module = PerHead(init=1.6, minimum=1.0).make(LayerShape(0, 4, 4, 8))
    with torch.no_grad():
        module.scale.copy_(torch.tensor([0.5, 0.5, 1.2, 1.2]))
    out = module(torch.tensor([[3]])).flatten()
    torch.testing.assert_close(out, torch.tensor([1.0, 1.0, 1.2, 1.2]), atol=0, rtol=1e-6)
    (out * torch.tensor([1.0, -1.0, 1.0, -1.0])).sum().backward()
    assert module.scale.grad is not None
    # A step goes against the gradient: of the two at the bound only the one that rises may move.
    assert module.scale.grad.tolist() == [0, -1, 1, -1]


def test_ssmax_multiplies_by_the_logarithm_of_the_tokens_so_far() -> None:
    module = SSMax(init=0.43).make(LayerShape(0, 3, 1, 8))
    out = module(torch.tensor([[0, 1, 1023], [4, 5, 6]]))
    assert out.shape == (2, 3, 3, 1)
    for row, counts in zip(out, [(1, 2, 1024), (5, 6, 7)], strict=True):
        expected = torch.tensor([0.43 * math.log(n) for n in counts])
        torch.testing.assert_close(row[..., 0], expected.expand(3, 3))


def test_ssmax_weights_are_powers_of_the_number_of_keys() -> None:
    """Softmax of the factor times z is n ** (s z) over its sum, which is the paper's definition."""
    z = torch.randn(7)
    factor = SSMax(init=0.43).make(SHAPE)(torch.tensor([[6]]))[0, 0, 0, 0]
    expected = 7 ** (0.43 * z)
    torch.testing.assert_close(torch.softmax(factor * z, dim=0), expected / expected.sum())


def test_ssmax_starts_so_that_its_mean_factor_over_1024_tokens_is_one() -> None:
    out = SSMax().make(SHAPE)(torch.arange(1024)[None])
    assert float(out.detach().mean()) == pytest.approx(1.0, abs=3e-3)


@pytest.mark.parametrize("scheme", [PerHead(init=1.3, minimum=1.0), SSMax(init=0.3)], ids=lambda s: s.type)
def test_a_learned_temperature_survives_a_build_on_the_meta_device_and_a_cast_to_half(
    scheme: TemperatureScheme,
) -> None:
    with torch.device("meta"):
        module = scheme.make(SHAPE)
    module.to_empty(device="cpu").reset_parameters()  # type: ignore[operator]
    positions = torch.tensor([[0, 256, 257]])
    assert torch.equal(module(positions), scheme.make(SHAPE)(positions))
    half = module.to(torch.bfloat16)(positions)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half, scheme.make(SHAPE)(positions), atol=0, rtol=4e-3)  # the parameter is rounded once


def test_log_n_grows_as_swan_says_and_never_falls_below_one() -> None:
    out = factors(LogN(base=362.0), [0, 1024, 4096, 16384, 32768])
    torch.testing.assert_close(out, torch.tensor([1, 1.228, 1.426, 1.651, 1.767]), atol=1e-3, rtol=0)
    assert (factors(LogN(base=10.0), list(range(50))) >= 1).all()


@pytest.mark.bug("B044")
def test_each_row_counts_its_own_positions() -> None:
    out = Llama4(floor=2.0).make(SHAPE)(torch.tensor([[0, 1], [1, 0]]))
    assert out.shape == (2, 1, 2, 1)
    assert torch.equal(out[0, 0, :, 0], out[1, 0, :, 0].flip(0))
    assert float(out[0, 0, 0, 0]) == 1 < float(out[0, 0, 1, 0])


def test_positions_beyond_the_numbers_of_half_precision_stay_apart() -> None:
    module = LogN().make(SHAPE).to(torch.bfloat16)
    out = module(torch.arange(256, 264)[None]).flatten()
    assert (out.diff() > 0).all()


def test_modules_travel_to_other_processes() -> None:
    module = pickle.loads(pickle.dumps(Llama4(floor=2.0).make(SHAPE)))
    assert float(module(torch.tensor([[1]]))) > 1


def test_the_table_and_the_saved_layers_name_the_fields() -> None:
    assert Llama4().summary() == "llama4(scale=0.1, floor=8192)"
    assert PerHead().summary() == "per_head(init=1)"
    assert PerHead(init=1.6, minimum=1.0).summary() == "per_head(init=1.6, minimum=1)"
    assert as_mapping(LogN(base=10.0)) == {"type": "log_n", "base": 10.0}


def test_bad_values_and_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"temperature.floor = 0.0: must be above 0"):
        Llama4(floor=0.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"temperature.base = 1.0: must be above 1"):
        LogN(base=1.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"temperature.floor = -1.0: must be above 0"):
        Ministral(floor=-1.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"temperature.scale = 0.0: must be above 0"):
        Uniform(scale=0.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"temperature.init = 0.0: must be above 0"):
        PerHead(init=0.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"temperature.minimum = 1.5: must be above 0 and at most init = 1, or null"):
        PerHead(minimum=1.5).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"temperature.init = -1.0: must be above 0"):
        SSMax(init=-1.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"here: unknown temperature 'llama'. Did you mean 'llama4'"):
        temperature_class("llama", "here")
