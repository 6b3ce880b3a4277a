"""Where tokens stand: index, position, document, also when a text comes in pieces."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minillm.attention.tokens import Past, StepContext, Tokens, arrange, follow
from minillm.errors import MinillmError

NEW = Past(0, None, None)


def positions(document_ids: list[list[int]], past: Past | None = None) -> list[list[int]]:
    ids = torch.tensor(document_ids)
    return arrange(*ids.shape, "cpu", ids, past=past).position.tolist()


def test_positions_count_from_zero() -> None:
    tokens = arrange(3, 4, "cpu")
    assert tokens.position.tolist() == [[0, 1, 2, 3]]
    assert tokens.document is None


def test_positions_equal_to_indices_are_known_to_be_so_without_a_look() -> None:
    first = arrange(1, 4, "cpu", past=NEW)
    assert first.position is first.index
    second = arrange(1, 4, "cpu", past=follow(NEW, first))
    assert second.position is second.index
    assert second.index.tolist() == [[4, 5, 6, 7]]


@pytest.mark.bug("B015")
def test_positions_restart_with_each_document_of_each_row() -> None:
    assert positions([[0, 0, 0, 1, 1, 2], [7, 7, 3, 3, 3, 3]]) == [[0, 1, 2, 0, 1, 0], [0, 1, 0, 1, 2, 3]]


def test_padding_is_not_counted_and_stands_at_zero() -> None:
    assert positions([[-1, -1, 0, 0, 1], [0, 0, -1, -1, 0]]) == [[0, 0, 0, 1, 0], [0, 1, 0, 0, 2]]


@pytest.mark.bug("B015")
def test_given_positions_are_taken_as_they_are_and_the_next_piece_goes_on_from_them() -> None:
    given_positions = torch.tensor([[100, 101], [7, 8]])
    tokens = arrange(2, 2, "cpu", positions=given_positions)
    assert tokens.position.tolist() == given_positions.tolist()
    assert tokens.index.tolist() == [[0, 1]]
    following = arrange(2, 2, "cpu", past=follow(NEW, tokens))
    assert following.position.tolist() == [[102, 103], [9, 10]]
    assert following.index.tolist() == [[2, 3]]


def test_one_row_of_positions_serves_all_rows() -> None:
    assert arrange(3, 2, "cpu", positions=torch.tensor([4, 5])).position.tolist() == [[4, 5]]


def test_a_piece_without_ids_goes_on_with_the_last_document_of_each_row() -> None:
    ids = torch.tensor([[0, 0, 1], [0, -1, -1], [-1, -1, -1]])
    past = follow(NEW, arrange(3, 3, "cpu", ids))
    tokens = arrange(3, 2, "cpu", past=past)
    assert tokens.document is not None
    assert tokens.document.tolist() == [[1, 1], [0, 0], [0, 0]]
    assert tokens.position.tolist() == [[1, 2], [1, 2], [0, 1]]
    assert tokens.index.tolist() == [[3, 4]]


def test_tokens_cached_without_ids_count_as_document_zero() -> None:
    past = follow(NEW, arrange(2, 3, "cpu"))
    assert positions([[0, 1], [0, 0]], past) == [[3, 0], [3, 4]]


@given(
    rows=st.lists(st.lists(st.integers(-1, 2), min_size=12, max_size=12), min_size=1, max_size=3),
    cuts=st.sets(st.integers(1, 11)),
)
@settings(max_examples=200)
def test_documents_and_positions_do_not_depend_on_how_a_text_is_cut(rows: list[list[int]], cuts: set[int]) -> None:
    ids = torch.tensor(rows)
    whole = arrange(len(rows), 12, "cpu", ids)
    past, pieces = NEW, []
    for piece in ids.tensor_split(sorted(cuts), dim=1):
        pieces.append(arrange(*piece.shape, "cpu", piece, past=past))
        past = follow(past, pieces[-1])
    assert torch.equal(torch.cat([piece.position for piece in pieces], dim=1), whole.position)
    assert torch.equal(torch.cat([piece.index for piece in pieces], dim=1), whole.index)
    ends = follow(NEW, whole)
    assert past.seen == ends.seen == 12
    assert torch.equal(_given(past.document), _given(ends.document))
    assert torch.equal(_given(past.position), _given(ends.position))


def _given(tensor: Tensor | None) -> Tensor:
    assert tensor is not None
    return tensor


@pytest.mark.parametrize(
    ("ids", "places", "message"),
    [
        pytest.param(torch.zeros(2, 3, dtype=torch.long), None, "document_ids: expected shape", id="too few ids"),
        pytest.param(torch.zeros(4, dtype=torch.long), None, "document_ids: expected shape", id="ids without rows"),
        pytest.param(None, torch.zeros(3, 4, dtype=torch.long), "positions: expected shape", id="too many rows"),
        pytest.param(None, torch.zeros(2, 5, dtype=torch.long), "positions: expected shape", id="too many positions"),
    ],
)
def test_a_wrong_shape_is_refused_by_name(ids: Tensor | None, places: Tensor | None, message: str) -> None:
    with pytest.raises(MinillmError, match=message):
        arrange(2, 4, "cpu", ids, places)


def test_what_layers_share_is_made_once() -> None:
    context = StepContext(Tokens(*[torch.zeros(1, 1, dtype=torch.long)] * 2, None), contiguous=True)
    made = [context.once("key", object) for _ in range(3)]
    assert made[0] is made[1] is made[2]
    assert context.once("other", object) is not made[0]
