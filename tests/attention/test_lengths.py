"""Lengths of documents in a call: each token's own, whatever stands around it, with and without a cache."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minillm.attention.lengths import Length, Lengths, context_lengths, document_lengths
from minillm.attention.tokens import Past, StepContext, arrange, follow

NOTHING = Past(0, None, None)


def each(lengths: Lengths, rows: int, columns: int) -> list[list[tuple[int, int]]]:
    """(now, before) of every token."""
    which = torch.zeros(1, 1, dtype=torch.int64) if lengths.which is None else lengths.which
    return [[tuple(lengths.distinct[i]) for i in row] for row in which.expand(rows, columns).tolist()]  # type: ignore[misc]


def by_hand(document: list[int], piece: slice) -> list[tuple[int, int]]:
    """(now, before) of the tokens of `piece`: how many of each document there are up to its end, and its start."""
    return [(document[: piece.stop].count(d), document[: piece.start].count(d)) for d in document[piece]]


def real(pairs: list[tuple[int, int]], document: list[int]) -> list[tuple[int, int]]:
    """Without padding, of which nothing is asked."""
    return [pair for pair, d in zip(pairs, document, strict=True) if d >= 0]


ROWS = [
    [-1, -1, 3, 3, 3, 5, 5, 5, 5, 5, 2, 2],
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, -1, -1],
    [7, 7, -1, 7, 7, 8, -1, 8, 8, 8, 8, 8],
]


@pytest.mark.parametrize("cuts", [(12,), (5, 12), (1, 2, 3, 7, 11, 12), tuple(range(1, 13))])
def test_packed_documents_have_their_own_lengths_in_pieces_of_any_size(cuts: tuple[int, ...]) -> None:
    documents, past, start = torch.tensor(ROWS), NOTHING, 0
    for stop in cuts:
        piece = slice(start, stop)
        tokens = arrange(3, stop - start, "cpu", document_ids=documents[:, piece], past=past)
        found = each(document_lengths(tokens, past), 3, stop - start)
        for row, pairs in zip(ROWS, found, strict=True):
            assert real(pairs, row[piece]) == real(by_hand(row, piece), row[piece])
        past, start = follow(past, tokens), stop


def test_a_row_of_one_document_is_as_long_as_what_it_holds() -> None:
    tokens = arrange(2, 5, "cpu", past=Past(7, None, None))
    known = context_lengths(StepContext(tokens, contiguous=False, past=Past(7, None, None)))
    assert known == document_lengths(tokens, Past(7, None, None)) == Lengths((Length(12, 7),), None)


def test_rows_that_go_on_from_unequal_prompts_have_unequal_lengths() -> None:
    past = Past(9, torch.tensor([8, 3, -1]), torch.tensor([0, 0, -1]))
    lengths = document_lengths(arrange(3, 2, "cpu", past=past), past)
    assert each(lengths, 3, 2) == [[(11, 9)] * 2, [(6, 4)] * 2, [(2, 0)] * 2]


@pytest.mark.parametrize(
    ("positions", "past", "expected"),
    [
        pytest.param([[3, 900, 4]], NOTHING, [[(901, 0)] * 3], id="the largest position counts"),
        pytest.param([[20, 21]], Past(5, torch.tensor([9]), None), [[(22, 10)] * 2], id="a gap after the cache"),
        pytest.param([[0, 1]], Past(5, torch.tensor([99]), None), [[(100, 100)] * 2], id="back before the cache"),
        pytest.param([[4], [7]], Past(4, None, None), [[(5, 4)], [(8, 4)]], id="a row each"),
    ],
)
def test_positions_that_a_caller_gives_are_taken_as_they_are(
    positions: list[list[int]], past: Past, expected: list[list[tuple[int, int]]]
) -> None:
    given = torch.tensor(positions)
    tokens = arrange(len(given), given.shape[1], "cpu", positions=given, past=past)
    assert each(document_lengths(tokens, past), *given.shape) == expected


def test_no_tokens_and_no_values_have_no_length_but_a_shape() -> None:
    empty = arrange(2, 0, "cpu", positions=torch.empty(2, 0))
    assert document_lengths(empty, None) == Lengths((Length(0, 0),), None)
    on_meta = arrange(2, 4, "meta", document_ids=torch.zeros(2, 4, dtype=torch.int64, device="meta"))
    assert document_lengths(on_meta, None) == Lengths((Length(0, 0),), None)


def test_all_layers_of_a_call_get_the_same_object() -> None:
    document: Tensor = torch.tensor([[0, 0, 1]])
    context = StepContext(arrange(1, 3, "cpu", document_ids=document), contiguous=True)
    assert context_lengths(context) is context_lengths(context)
