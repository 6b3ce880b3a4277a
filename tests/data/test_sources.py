"""The embedded corpus is what its notice says; datasets of the hub are read, or refused by name."""

from __future__ import annotations

import hashlib
import importlib.resources
import json
import lzma
from itertools import pairwise
from pathlib import Path

import pytest

from minillm.config.schema import DataConfig
from minillm.data import Prepared
from minillm.data.sources import CORPUS, HELD_OUT, EmbeddedSource, HubSource, open_source
from minillm.errors import MinillmError


def test_the_corpus_is_the_one_its_notice_describes() -> None:
    raw = lzma.decompress(CORPUS.read_bytes())
    notice = (CORPUS.parent / "NOTICE.md").read_text()
    assert hashlib.sha256(raw).hexdigest().startswith("d2c9c7679ef16b42")
    assert "d2c9c7679ef16b42" in notice
    assert "public domain" in notice


def test_the_corpus_is_package_data() -> None:
    folder = importlib.resources.files("minillm.data.corpus")
    assert {"NOTICE.md", CORPUS.name} <= {entry.name for entry in folder.iterdir()}


def test_datasets_reads_what_the_file_holds() -> None:
    rows = [json.loads(line) for line in lzma.decompress(CORPUS.read_bytes()).splitlines()]
    documents = list(EmbeddedSource().documents())
    assert [(d.name, d.text) for d in documents] == [(row["id"], row["text"]) for row in rows]
    assert len(documents) == 63


def test_eight_documents_are_held_out_and_never_trained_on(embedded: Prepared) -> None:
    assert tuple(embedded.val.names) == HELD_OUT
    assert len(HELD_OUT) == len(set(HELD_OUT)) == 8
    assert not set(embedded.train.names) & set(HELD_OUT)
    assert len(embedded.train.names) == 55
    assert "austen-persuasion" in embedded.train.names


def test_at_least_three_held_out_documents_are_longer_than_8k_gpt2_tokens() -> None:
    # Counted once with GPT-2's BPE: 46,170 bytes of 1826 are 9,099 tokens, and all speeches have 5.1 to 5.2 bytes each.
    sizes = {d.name: len(d.text.encode()) for d in EmbeddedSource().documents()}
    assert sum(sizes[name] >= 46_170 for name in HELD_OUT) == 4


def test_held_out_documents_are_spread_over_the_years() -> None:
    years = [int(name[:4]) for name in HELD_OUT]
    assert years == sorted(years)
    assert max(b - a for a, b in pairwise(years)) <= 12


@pytest.fixture
def hub_folder(tmp_path: Path) -> Path:
    """A folder in the layout of a hub dataset, as `load_dataset` takes it without a network."""
    (tmp_path / "set").mkdir()
    rows = [{"text": f"document {i}", "id": i} for i in range(5)]
    (tmp_path / "set" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "set"


@pytest.fixture(autouse=True)
def _private_hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "hub_cache")


def test_a_dataset_is_read_in_order(hub_folder: Path) -> None:
    data = DataConfig("hub", seq_len=4, batch_size=2, hub_name=str(hub_folder), held_out=1)
    assert [d.text for d in open_source(data).documents()] == [f"document {i}" for i in range(5)]


@pytest.mark.bug("B108")
@pytest.mark.bug("B109")
def test_a_datasets_fingerprint_changes_with_its_content_only(hub_folder: Path) -> None:
    def fingerprint() -> str:
        return HubSource(str(hub_folder), None, "train", "text").fingerprint()

    first = fingerprint()
    assert fingerprint() == first
    (hub_folder / "train.jsonl").write_text('{"text": "another"}\n')
    assert fingerprint() != first


def test_a_dataset_without_the_field_names_those_it_has(hub_folder: Path) -> None:
    with pytest.raises(MinillmError, match=r"no field 'body'\. Allowed: .*text"):
        HubSource(str(hub_folder), None, "train", "body").fingerprint()


def test_a_dataset_that_is_not_there_is_named() -> None:
    with pytest.raises(MinillmError, match=r"data\.hub_name: cannot load the dataset nobody/nothing"):
        HubSource("nobody/nothing", None, "train", "text").fingerprint()
