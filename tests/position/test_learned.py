"""Learned embeddings: a table, and two different answers beyond it."""

from __future__ import annotations

import pytest
import torch

from minillm.errors import MinillmError, PositionUndefined
from minillm.position import interpolate_table
from minillm.position.learned import Learned


def test_each_position_has_its_row_and_only_rows_used_are_trained() -> None:
    module = Learned().make_embedding(4, 8)
    (weight,) = module.parameters()
    assert weight.shape == (8, 4)
    out = module(torch.tensor([[0, 7, 7], [1, 0, 3]]))
    assert torch.equal(out[0], weight[[0, 7, 7]])
    assert torch.equal(out[1], weight[[1, 0, 3]])
    out.sum().backward()
    assert weight.grad is not None
    assert weight.grad[:, 0].tolist() == [2, 1, 0, 1, 0, 0, 0, 2]


@pytest.mark.bug("B031")
def test_beyond_its_table_training_stops_with_both_numbers() -> None:
    module = Learned().make_embedding(4, 8)
    with pytest.raises(MinillmError, match=r"9 tokens\) is beyond the learned table of 8 positions.*seq_len") as error:
        module(torch.arange(9)[None])
    assert not isinstance(error.value, PositionUndefined)


@pytest.mark.bug("B031")
def test_beyond_its_table_an_evaluation_is_told_that_nothing_is_defined() -> None:
    module = Learned().make_embedding(4, 8).eval()
    inside = module(torch.arange(8)[None])
    with pytest.raises(PositionUndefined, match="table of 8 positions"):
        module(torch.tensor([[8]]))
    assert torch.equal(module(torch.arange(8)[None]), inside)
    assert Learned().max_positions(8) == 8


def test_it_is_built_on_the_meta_device() -> None:
    with torch.device("meta"):
        module = Learned().make_embedding(4, 8)
        assert module(torch.arange(6)[None]).shape == (1, 6, 4)


@pytest.mark.parametrize("factor", [1, 2, 3, 7])
def test_a_stretched_table_meets_every_old_row_exactly(factor: int) -> None:
    table = torch.randn(13, 5)
    longer = interpolate_table(table, 12 * factor + 1)
    assert longer.shape == (12 * factor + 1, 5)
    assert torch.equal(longer[::factor], table)


def test_between_old_rows_a_stretched_table_is_linear() -> None:
    table = torch.randn(6, 4)
    for length in (6, 7, 20, 64):
        expected = torch.nn.functional.interpolate(
            table.T[None], size=length, mode="linear", align_corners=True
        )[0].T  # fmt: skip
        torch.testing.assert_close(interpolate_table(table, length), expected, atol=1e-5, rtol=0)
        assert torch.equal(interpolate_table(table, length)[[0, -1]], table[[0, -1]])


def test_a_stretched_table_keeps_its_dtype_and_is_interpolated_in_float32() -> None:
    table = torch.randn(5, 3).to(torch.bfloat16)
    longer = interpolate_table(table, 12)
    assert longer.dtype == torch.bfloat16
    assert torch.equal(longer, interpolate_table(table.float(), 12).to(torch.bfloat16))


def test_a_table_is_not_shortened_nor_made_of_a_single_row() -> None:
    with pytest.raises(MinillmError, match="length = 4 is below the 5 positions"):
        interpolate_table(torch.zeros(5, 2), 4)
    with pytest.raises(MinillmError, match="a table of 1 positions"):
        interpolate_table(torch.zeros(1, 2), 4)
