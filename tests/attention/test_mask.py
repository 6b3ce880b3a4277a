"""What a query may see."""

from __future__ import annotations

import pytest
import torch

from minillm.attention.mask import MaskKey, additive, visible
from minillm.attention.tokens import Tokens, arrange


def seen_keys(mask_key: MaskKey, tokens: Tokens, row: int = 0) -> list[list[int]]:
    """For each query, the keys it sees."""
    return [torch.nonzero(keys).flatten().tolist() for keys in visible(mask_key, tokens, tokens)[row]]


@pytest.mark.parametrize(
    ("mask_key", "keys"),
    [
        pytest.param(MaskKey(), [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]], id="full"),
        pytest.param(MaskKey(3), [[0], [0, 1], [0, 1, 2], [1, 2, 3], [2, 3, 4]], id="window of 3"),
        pytest.param(MaskKey(2, sink_tokens=1), [[0], [0, 1], [0, 1, 2], [0, 2, 3], [0, 3, 4]], id="one token kept"),
        pytest.param(MaskKey(chunk=3), [[0], [0, 1], [0, 1, 2], [3], [3, 4]], id="chunk of 3"),
        pytest.param(MaskKey(9), [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 2, 3, 4]], id="wide window"),
    ],
)
def test_golden_masks(mask_key: MaskKey, keys: list[list[int]]) -> None:
    assert seen_keys(mask_key, arrange(1, 5, "cpu")) == keys


@pytest.mark.bug("B005")
@pytest.mark.parametrize("mask_key", [MaskKey(1), MaskKey(chunk=1)], ids=["window", "chunk"])
def test_a_window_or_chunk_of_one_sees_only_itself(mask_key: MaskKey) -> None:
    assert seen_keys(mask_key, arrange(1, 4, "cpu")) == [[0], [1], [2], [3]]


@pytest.mark.bug("B014")
def test_a_window_stops_at_the_boundary_of_a_document() -> None:
    ids = torch.arange(128)[None] // 64
    keys = seen_keys(MaskKey(8), arrange(1, 128, "cpu", ids))
    assert keys[64] == [64]
    assert keys[66] == [64, 65, 66]
    assert keys[63] == list(range(56, 64))


@pytest.mark.bug("B015")
def test_each_row_has_its_own_boundaries() -> None:
    tokens = arrange(2, 4, "cpu", torch.tensor([[0, 0, 1, 1], [0, 1, 1, 1]]))
    assert seen_keys(MaskKey(), tokens, row=0) == [[0], [0, 1], [2], [2, 3]]
    assert seen_keys(MaskKey(), tokens, row=1) == [[0], [1], [1, 2], [1, 2, 3]]


def test_chunks_begin_anew_with_each_document() -> None:
    tokens = arrange(1, 7, "cpu", torch.tensor([[0, 0, 1, 1, 1, 1, 1]]))
    assert seen_keys(MaskKey(chunk=3), tokens) == [[0], [0, 1], [2], [2, 3], [2, 3, 4], [5], [5, 6]]


def test_each_document_keeps_its_own_first_tokens() -> None:
    tokens = arrange(1, 8, "cpu", torch.tensor([[-1, 0, 0, 0, 1, 1, 1, 1]]))
    assert seen_keys(MaskKey(1, sink_tokens=1), tokens) == [[0], [1], [1, 2], [1, 3], [4], [4, 5], [4, 6], [4, 7]]


def test_windows_count_tokens_and_chunks_count_positions() -> None:
    tokens = arrange(1, 4, "cpu", positions=torch.tensor([5, 6, 7, 8]))
    assert seen_keys(MaskKey(2), tokens) == [[0], [0, 1], [1, 2], [2, 3]]
    assert seen_keys(MaskKey(chunk=3), tokens) == [[0], [1], [1, 2], [1, 2, 3]]


def test_a_chunk_reaches_no_farther_than_its_size_though_positions_stand_still() -> None:
    tokens = arrange(1, 5, "cpu", positions=torch.zeros(5, dtype=torch.long))
    assert seen_keys(MaskKey(chunk=2), tokens) == [[0], [0, 1], [1, 2], [2, 3], [3, 4]]


@pytest.mark.bug("B012")
@pytest.mark.parametrize("mask_key", [MaskKey(), MaskKey(2), MaskKey(chunk=2)], ids=["full", "window", "chunk"])
def test_padding_is_seen_by_no_other_token_and_no_row_is_empty(mask_key: MaskKey) -> None:
    tokens = arrange(1, 6, "cpu", torch.tensor([[-1, -1, 0, 0, -1, -1]]))
    assert seen_keys(mask_key, tokens) == [[0], [1], [2], [2, 3], [4], [5]]


@pytest.mark.bug("B041")
def test_a_bias_keeps_float32_beside_half_precision_queries() -> None:
    distance = torch.arange(4096, dtype=torch.float32)
    bias = (-distance / 256).reshape(1, 1, 1, -1)
    mask = additive(torch.ones(1, 1, 4096, dtype=torch.bool), bias, torch.bfloat16)
    assert mask.dtype == torch.float32
    assert (mask[..., 3000] - mask[..., 3001]).item() == 1 / 256


def test_a_mask_without_bias_has_the_precision_of_the_queries() -> None:
    mask = additive(torch.tensor([[[True, False]]]), None, torch.bfloat16)
    assert mask.dtype == torch.bfloat16
    assert mask.flatten().tolist() == [0.0, float("-inf")]
