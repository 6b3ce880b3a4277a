"""Binary embeddings: the digits of the position, and an end where the digits end."""

from __future__ import annotations

import pytest
import torch

from minillm.config.expand import embedding_scheme
from minillm.errors import ConfigError, MinillmError, PositionUndefined
from minillm.position.binary import Binary


def digits(row: torch.Tensor) -> str:
    """Lowest bit first, as the channels stand."""
    return "".join(str(int(value)) for value in row)


def test_channels_are_the_binary_digits_lowest_first() -> None:
    positions = [0, 1, 6, 13, 31, 700]
    out = Binary().make_embedding(12, 64)(torch.tensor([positions]))
    assert out.dtype == torch.float32
    assert out.shape == (1, 6, 12)
    for row, position in zip(out[0], positions, strict=True):
        assert digits(row) == f"{position:012b}"[::-1]


def test_channels_above_the_bits_are_left_alone() -> None:
    out = Binary(bits=3, scale=0.5).make_embedding(8, 64)(torch.tensor([[5, 7]]))
    assert out[0].tolist() == [[0.5, 0, 0.5, 0, 0, 0, 0, 0], [0.5, 0.5, 0.5, 0, 0, 0, 0, 0]]


def test_each_position_below_the_end_has_a_code_of_its_own() -> None:
    out = Binary(bits=9).make_embedding(16, 64)(torch.arange(512)[None])
    assert len(out[0].unique(dim=0)) == 512


def test_at_most_62_bits_are_taken_of_a_wide_model_and_very_late_positions_have_codes() -> None:
    late = 2**40 + 2**33 + 5
    out = Binary().make_embedding(100, 64)(torch.tensor([[late, late + 2**41]]))
    assert digits(out[0, 0]) == f"{late:0100b}"[::-1]
    assert out[0, :, 41].tolist() == [0, 1]


def test_beyond_its_bits_training_stops_and_an_evaluation_is_told_that_nothing_is_defined() -> None:
    module = Binary(bits=3).make_embedding(8, 64)
    with pytest.raises(MinillmError, match=r"Position 8 \(a document of 9 tokens\).*3 bits.*bits at least 4") as error:
        module(torch.tensor([[0, 8]]))
    assert not isinstance(error.value, PositionUndefined)
    with pytest.raises(PositionUndefined, match="end at position 7"):
        module.eval()(torch.tensor([[8]]))
    assert module(torch.tensor([[7]])).sum() == 3
    assert Binary(bits=3).max_positions(64) == 8
    assert Binary().max_positions(64) is None


@pytest.mark.bug("B030")
def test_a_build_on_the_meta_device_changes_nothing() -> None:
    with torch.device("meta"):
        module = Binary().make_embedding(8, 64)
        assert module(torch.arange(6)[None]).shape == (1, 6, 8)
    assert digits(module.to_empty(device="cpu")(torch.tensor([[200]]))[0, 0]) == "00010011"


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"bits": 9}, "bits = 9: each needs a channel, and hidden_size = 8"),
        ({"bits": 0}, "bits = 0: must be from 1 to 62"),
        ({"bits": 63}, "bits = 63: must be from 1 to 62"),
        ({"scale": -1}, r"scale = -1\.0: must be above 0"),
    ],
)
def test_bad_values_are_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.embedding\.position: {message}"):
        embedding_scheme({"scheme": "binary", **given}, 8)
