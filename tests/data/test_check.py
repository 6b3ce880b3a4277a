"""Data settings that are missing, out of range, or could not take effect are refused by name."""

from __future__ import annotations

import dataclasses

import pytest

from minillm.config import fields
from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.data.check import check
from minillm.errors import ConfigError

EMBEDDED = DataConfig("embedded", seq_len=8, batch_size=2)
FILES = DataConfig("files", seq_len=8, batch_size=2, path="text", held_out=0.1)
HUB = DataConfig("hub", seq_len=8, batch_size=2, hub_name="owner/name", held_out=3)
TRAIN = TokenizerConfig("train", vocab_size=300)
FILE = TokenizerConfig("file", path="tokenizer.json")


@pytest.mark.parametrize("tokenizer", [TRAIN, FILE], ids=["train", "file"])
@pytest.mark.parametrize("data", [EMBEDDED, FILES, HUB], ids=["embedded", "files", "hub"])
def test_good_settings_pass(data: DataConfig, tokenizer: TokenizerConfig) -> None:
    check(data, tokenizer)


@pytest.mark.parametrize(
    ("data", "key", "value"),
    [
        (EMBEDDED, "path", "text"),
        (EMBEDDED, "hub_name", "owner/name"),
        (EMBEDDED, "held_out", 0.1),
        (FILES, "hub_name", "owner/name"),
        (FILES, "hub_config", "en"),
        (HUB, "path", "text"),
        (FILES, "path", None),
        (FILES, "path", "???"),
        (FILES, "held_out", None),
        (HUB, "hub_name", None),
        (FILES, "held_out", 0),
        (FILES, "held_out", -1),
        (FILES, "held_out", 1.0),
        (EMBEDDED, "seq_len", 0),
        (EMBEDDED, "batch_size", 0),
        (EMBEDDED, "num_workers", -1),
    ],
)
def test_bad_data_settings_are_named(data: DataConfig, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^data\.{key}: "):
        check(dataclasses.replace(data, **{key: value}), TRAIN)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("tokenizer", "key", "value"),
    [
        (TRAIN, "vocab_size", None),
        (TRAIN, "vocab_size", 256),
        (TRAIN, "path", "tokenizer.json"),
        (FILE, "path", None),
        (FILE, "path", "???"),
        (FILE, "vocab_size", 300),
        (TRAIN, "bos_token", ""),
    ],
)
def test_bad_tokenizer_settings_are_named(tokenizer: TokenizerConfig, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"^tokenizer\.{key}: "):
        check(EMBEDDED, dataclasses.replace(tokenizer, **{key: value}))  # type: ignore[arg-type]


@pytest.mark.parametrize(("given", "kind"), [(1, int), (1.0, float), (0.02, float)])
def test_a_count_of_held_out_documents_is_told_from_a_share(given: float, kind: type) -> None:
    plain = {"source": "files", "seq_len": 8, "batch_size": 2, "held_out": given}
    assert type(fields.build(DataConfig, plain, "data").held_out) is kind
