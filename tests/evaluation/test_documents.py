"""The text that is read: held-out documents as training saw their kind, or files given by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minillm.errors import MinillmError
from minillm.evaluation.documents import from_files, held_out
from minillm.evaluation.runs import OpenRun, find_runs, open_run


@pytest.fixture
def opened(make_run: Callable[..., Path], tmp_path: Path) -> OpenRun:
    return open_run(find_runs([str(make_run(tmp_path / "run", "model=rope"))])[0])


@pytest.mark.bug("B115")
def test_held_out_documents_have_one_start_marker_in_front(opened: OpenRun, corpus: Path) -> None:
    documents = held_out(opened)
    assert len(documents.ids) == len(documents.names) == 3
    for name, ids in zip(documents.names, documents.ids, strict=True):
        assert ids[0] == opened.tokenizer.bos_id
        assert opened.tokenizer.bos_id not in ids[1:]
        assert opened.tokenizer.decode(ids[1:]) == (corpus / name).read_text()


def test_text_prepared_by_another_tokenizer_is_cut_as_the_model_knows_it(opened: OpenRun) -> None:
    other_config = dataclasses.replace(opened.config.tokenizer, vocab_size=264)
    other = dataclasses.replace(opened, config=dataclasses.replace(opened.config, tokenizer=other_config))
    for ids, expected in zip(held_out(other).ids, held_out(opened).ids, strict=True):
        np.testing.assert_array_equal(ids, expected)


@pytest.mark.bug("B115")
def test_documents_of_files_are_cut_like_held_out_ones(opened: OpenRun, corpus: Path, tmp_path: Path) -> None:
    own = held_out(opened)
    given = from_files(str(corpus / own.names[0]), opened.tokenizer, "text")
    assert given.names == [own.names[0]]
    np.testing.assert_array_equal(given.ids[0], own.ids[0])


def test_missing_and_empty_files_are_named_by_the_key_that_was_given(opened: OpenRun, tmp_path: Path) -> None:
    with pytest.raises(MinillmError, match=r"documents: .*nowhere does not exist"):
        from_files(str(tmp_path / "nowhere"), opened.tokenizer, "text")
    (tmp_path / "empty.txt").write_text(" \n")
    with pytest.raises(MinillmError, match=r"documents: .*empty\.txt holds no text"):
        from_files(str(tmp_path / "empty.txt"), opened.tokenizer, "text")


def test_the_digest_is_of_the_documents_asked_for(opened: OpenRun) -> None:
    documents = held_out(opened)
    assert documents.digest([0, 1]) == documents.digest([0, 1])
    assert len({documents.digest(which) for which in ([0], [1], [0, 1], [1, 0])}) == 4
