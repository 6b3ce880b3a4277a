"""Held-out documents: chosen by content, never trained on, not even as a copy."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minillm.data.sources import Document
from minillm.data.split import Role, plan_split
from minillm.errors import MinillmError


class Texts:
    """A source of given texts."""

    description = "the texts"
    held_out: frozenset[str] | None = None

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    def fingerprint(self) -> str:
        return ""

    def documents(self) -> Iterator[Document]:
        return (Document(str(i), text) for i, text in enumerate(self.texts))


def roles(texts: list[str], held_out: int | float) -> dict[Role, list[str]]:
    found: dict[Role, list[str]] = {role: [] for role in Role}
    for document, role in plan_split(Texts(texts), held_out).documents():
        found[role].append(document.text)
    return found


HUNDRED = [f"text {i}" for i in range(100)]


@pytest.mark.parametrize(
    ("held_out", "count"), [(1, 1), (7, 7), (0.02, 2), (0.001, 1), (0.5, 50)], ids=lambda value: repr(value)
)
def test_a_count_or_a_share_of_the_documents_is_held_out(held_out: int | float, count: int) -> None:
    found = roles(HUNDRED, held_out)
    assert len(found[Role.VAL]) == count
    assert sorted(found[Role.VAL] + found[Role.TRAIN]) == sorted(HUNDRED)


def test_the_choice_does_not_depend_on_the_order() -> None:
    assert set(roles(HUNDRED, 5)[Role.VAL]) == set(roles(HUNDRED[::-1], 5)[Role.VAL])


def test_the_choice_hardly_changes_when_documents_are_added() -> None:
    before, after = (set(roles(HUNDRED + new, 10)[Role.VAL]) for new in ([], ["a new one"]))
    assert len(before & after) >= 9


def test_copies_of_a_held_out_document_are_dropped() -> None:
    found = roles(HUNDRED * 3, 10)
    assert len(set(found[Role.VAL])) == len(found[Role.VAL]) == 10
    assert not set(found[Role.VAL]) & set(found[Role.TRAIN])
    assert len(found[Role.COPY]) == 20
    assert len(found[Role.TRAIN]) == 270, "copies of training documents stay"


def test_white_space_alone_is_no_document() -> None:
    assert roles(["one", "", "two", " \n\t"], 1)[Role.EMPTY] == ["", " \n\t"]


@pytest.mark.parametrize("texts", [[], [""], [" ", "\n"]])
def test_a_corpus_of_nothing_is_refused(texts: list[str]) -> None:
    with pytest.raises(MinillmError, match="the texts is empty"):
        plan_split(Texts(texts), 1)


@pytest.mark.parametrize(("texts", "held_out"), [(["a", "b"], 2), (["a", "b"], 5), (["a"], 1), (["a", "a"], 0.5)])
def test_something_must_be_left_to_train_on(texts: list[str], held_out: int | float) -> None:
    with pytest.raises(MinillmError, match=rf"data\.held_out: {held_out} leaves nothing to train on"):
        plan_split(Texts(texts), held_out)


def test_a_lone_document_gives_its_tail() -> None:
    text = "".join(f"line {i}\n" for i in range(1000))
    found = roles([text, ""], 0.1)
    assert found[Role.TRAIN][0] + found[Role.VAL][0] == text
    assert found[Role.VAL][0].startswith("line ")
    assert 0.09 < len(found[Role.VAL][0]) / len(text) < 0.1


def test_a_lone_document_without_line_ends_is_cut_at_a_space_or_where_it_falls() -> None:
    assert roles(["word " * 100], 0.5)[Role.VAL][0].startswith("word")
    assert roles(["x" * 100], 0.25)[Role.VAL] == ["x" * 25]


def test_a_lone_document_too_short_to_cut_is_refused() -> None:
    with pytest.raises(MinillmError, match="too short to hold out its tail"):
        roles(["a\n"], 0.5)


@pytest.mark.parametrize("change", [["extra"], None], ids=["grown", "shrunk"])
def test_a_source_that_changes_while_read_is_noticed(change: list[str] | None) -> None:
    source = Texts(list(HUNDRED))
    split = plan_split(source, 5)
    source.texts = source.texts + change if change else source.texts[:-1]
    with pytest.raises(MinillmError, match="changed while it was being read"):
        list(split.documents())
