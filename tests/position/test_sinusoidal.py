"""Sinusoidal embeddings: the paper's formula, at any position."""

from __future__ import annotations

import math

import pytest
import torch

from minillm.config.expand import embedding_scheme
from minillm.errors import ConfigError
from minillm.position.sinusoidal import Sinusoidal


def test_the_table_is_the_papers() -> None:
    out = Sinusoidal(scale=1.0).make_embedding(8, 64)(torch.tensor([[0, 1, 700]]))
    assert out.dtype == torch.float32
    assert out.shape == (1, 3, 8)
    for row, position in enumerate([0, 1, 700]):
        for i in range(4):
            angle = position / 10000 ** (2 * i / 8)
            assert float(out[0, row, 2 * i]) == pytest.approx(math.sin(angle), abs=1e-4)
            assert float(out[0, row, 2 * i + 1]) == pytest.approx(math.cos(angle), abs=1e-4)


@pytest.mark.bug("B031")
def test_every_position_is_defined_and_lengths_in_any_order_agree() -> None:
    module = Sinusoidal().make_embedding(16, 64)
    first, *others = (module(torch.arange(n)[None]) for n in (64, 300, 64, 100_000))
    for later in others:
        assert torch.equal(later[:, :64], first)
        assert later.isfinite().all()
    assert Sinusoidal().max_positions(64) is None


@pytest.mark.bug("B030")
def test_a_build_on_the_meta_device_in_half_precision_changes_nothing() -> None:
    with torch.device("meta"):
        module = Sinusoidal().make_embedding(8, 64)
    module = module.to_empty(device="cpu").to(torch.bfloat16)
    positions = torch.tensor([[256, 257]])
    assert torch.equal(module(positions), Sinusoidal().make_embedding(8, 64)(positions))


def test_scale_is_the_size_of_the_waves() -> None:
    positions = torch.arange(64)[None]
    unit = Sinusoidal().make_embedding(8, 64)(positions)
    torch.testing.assert_close(Sinusoidal(scale=0.05).make_embedding(8, 64)(positions), unit * 0.05)


def test_bad_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hidden_size = 7: .*even"):
        Sinusoidal().validate_embedding(7)
    with pytest.raises(ConfigError, match=r"model\.embedding\.position: scale = 0\.0: must be above 0"):
        embedding_scheme({"scheme": "sinusoidal", "scale": 0}, 8)
