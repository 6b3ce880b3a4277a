"""Query temperatures: golden factors, counted within the document."""

from __future__ import annotations

import pickle

import pytest
import torch

from minillm.errors import ConfigError
from minillm.position import LayerShape, TemperatureScheme, temperature_class
from minillm.position.temperature import Llama4, LogN, as_mapping

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
    assert as_mapping(LogN(base=10.0)) == {"type": "log_n", "base": 10.0}


def test_bad_values_and_names_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"temperature.floor = 0.0: must be above 0"):
        Llama4(floor=0.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"temperature.base = 1.0: must be above 1"):
        LogN(base=1.0).validate(SHAPE)
    with pytest.raises(ConfigError, match=r"here: unknown temperature 'llama'. Did you mean 'llama4'"):
        temperature_class("llama", "here")
