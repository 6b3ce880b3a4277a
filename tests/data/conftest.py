"""Small corpora: token shards with known numbers in them, text files, and the embedded corpus prepared once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.data import Prepared, TokenShards, prepare
from minillm.data.shards import ShardWriter

MakeShards = Callable[[Sequence[int]], TokenShards]
MakeData = Callable[..., DataConfig]


@pytest.fixture
def make_shards(tmp_path: Path) -> MakeShards:
    """Shards with documents of the given lengths, whose stream reads 0, 1, 2, ..."""

    def make(lengths: Sequence[int]) -> TokenShards:
        writer = ShardWriter(tmp_path / f"shards-{len(list(tmp_path.iterdir()))}", vocab_size=1 << 20)
        start = 0
        for i, length in enumerate(lengths):
            writer.add(f"document {i}", np.arange(start, start + length), num_bytes=10 * length)
            start += length
        writer.close()
        return TokenShards.open(writer.folder)

    return make


@pytest.fixture
def make_data(tmp_path: Path) -> MakeData:
    """A DataConfig for the files in tmp_path/text, which the test writes."""
    (tmp_path / "text").mkdir()

    def make(**changes: object) -> DataConfig:
        values: dict[str, object] = {
            "source": "files",
            "seq_len": 8,
            "batch_size": 2,
            "path": str(tmp_path / "text"),
            "held_out": 1,
            "cache_dir": str(tmp_path / "cache"),
        }
        return DataConfig(**{**values, **changes})  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="session")
def embedded(tmp_path_factory: pytest.TempPathFactory) -> Prepared:
    """The embedded corpus with a vocabulary of 512."""
    data = DataConfig("embedded", seq_len=256, batch_size=16, cache_dir=str(tmp_path_factory.mktemp("cache")))
    return prepare(data, TokenizerConfig("train", vocab_size=512))
