"""Token shards: what is written comes back, by document and as a stream."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minillm.data import TokenShards
from minillm.data.shards import ShardWriter, token_dtype


def test_documents_and_stream_come_back(make_shards: Callable[..., TokenShards]) -> None:
    shards = make_shards([3, 1, 5])
    assert [shards.document(i).tolist() for i in range(3)] == [[0, 1, 2], [3], [4, 5, 6, 7, 8]]
    assert (len(shards), shards.num_tokens, shards.num_bytes) == (3, 9, 90)
    assert shards.names == ["document 0", "document 1", "document 2"]


@pytest.mark.parametrize("start", range(9))
@pytest.mark.parametrize("stop", range(1, 10))
def test_every_token_knows_its_document(make_shards: Callable[..., TokenShards], start: int, stop: int) -> None:
    if start < stop:
        assert make_shards([3, 1, 5]).document_ids(start, stop).tolist() == [0, 0, 0, 1, 2, 2, 2, 2, 2][start:stop]


@pytest.mark.bug("B104")
def test_a_document_may_be_longer_than_16_bits_can_count(make_shards: Callable[..., TokenShards]) -> None:
    shards = make_shards([70_000, 5])
    assert len(shards.document(0)) == 70_000
    assert shards.document(1).tolist() == [70_000, 70_001, 70_002, 70_003, 70_004]


@pytest.mark.parametrize(
    ("vocab_size", "bytes_each"), [(257, 2), (2**16, 2), (2**16 + 1, 4)], ids=["small", "16 bits", "over 16 bits"]
)
def test_the_highest_id_survives_its_number_of_bits(tmp_path: Path, vocab_size: int, bytes_each: int) -> None:
    writer = ShardWriter(tmp_path / "shards", vocab_size)
    writer.add("one", np.array([0, vocab_size - 1]), num_bytes=1)
    writer.close()
    assert token_dtype(vocab_size).itemsize == bytes_each
    assert TokenShards.open(tmp_path / "shards").document(0).tolist() == [0, vocab_size - 1]


@pytest.mark.bug("B100")
def test_an_id_outside_the_vocabulary_is_refused(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "shards", vocab_size=300)
    with pytest.raises(ValueError, match="token 300 is outside a vocabulary of 300"):
        writer.add("one", np.array([5, 300]), num_bytes=1)


def test_shards_travel_to_a_worker_without_their_tokens(make_shards: Callable[..., TokenShards]) -> None:
    shards = make_shards([100_000])
    sent = pickle.dumps(shards)
    assert len(sent) < 2000
    assert pickle.loads(sent).document(0).tolist() == list(range(100_000))


@pytest.mark.parametrize("index", [-1, 3])
def test_a_document_that_is_not_there_is_an_error(make_shards: Callable[..., TokenShards], index: int) -> None:
    with pytest.raises(IndexError):
        make_shards([3, 1, 5]).document(index)
