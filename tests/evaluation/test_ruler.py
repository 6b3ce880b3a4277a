"""Samples of the suite `ruler`: exact lengths, answers where they are said to be, no place preferred, ends in sight."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from minillm.data.tokenizer import Tokenizer
from minillm.errors import MinillmError
from minillm.evaluation.ruler.counting import RATIO, CodedText, CommonWords, rank_counts
from minillm.evaluation.ruler.fit import TOLERANCE, Text, make
from minillm.evaluation.ruler.haystacks import Corpus, sentences
from minillm.evaluation.ruler.niah import SHAPES, NeedlePlan
from minillm.evaluation.ruler.qa import read_hotpotqa, read_squad
from minillm.evaluation.ruler.suite import TASKS
from minillm.evaluation.ruler.task import CANDIDATES, Draws, Materials, Unfit
from minillm.evaluation.ruler.tracking import ChainPlan
from minillm.evaluation.ruler.words import ADJECTIVES, COUNTED, NOUNS, PAIRS, key
from tests.evaluation.ruler_tools import (
    TEXT,
    byte_level,
    hotpotqa_file,
    solve,
    squad_file,
    with_spaces_as_marks,
    without_digits,
)

LENGTH = 1000


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    folder = tmp_path_factory.mktemp("questions")
    questions = {"qa_1": read_squad(str(squad_file(folder))), "qa_2": read_hotpotqa(str(hotpotqa_file(folder)))}
    return Materials(Corpus([TEXT, TEXT.replace("river", "hill")]), questions)


@pytest.fixture(scope="module")
def own() -> Text:
    return Text(byte_level())


@pytest.fixture(scope="module")
def other() -> Text:
    return Text(with_spaces_as_marks())


def length_of(task: str) -> int:
    return {"qa_1": 400, "qa_2": 700, "cwe": 1500}.get(task, LENGTH)  # the files hold no more than that


@pytest.mark.parametrize("tokenizer", ["own", "other"])
@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_the_length_asked_for_and_its_answers_where_it_says(
    task: str, tokenizer: str, materials: Materials, request: pytest.FixtureRequest
) -> None:
    text: Text = request.getfixturevalue(tokenizer)
    for length in (length_of(task), length_of(task) + 37):
        made = [make(TASKS[task], materials, text, length, seed=3, index=i) for i in range(3)]
        for sample in made:
            assert (1 - TOLERANCE) * length <= len(sample.ids) + sample.budget <= length
            assert text.decode(sample.ids[1:]) == sample.text
            assert sample.ids[1:] == text.tokenizer.encode(sample.text)
            assert len({*sample.wrong, *sample.references}) == CANDIDATES - 1 + len(sample.references) or task in (
                "niah_multiquery",  # its other answers are wrong in the first place
            )
            assert len(set(sample.wrong)) == CANDIDATES - 1
            assert sample.references[sample.gold] not in sample.wrong
            for reference, place, depth in zip(sample.references, sample.places, sample.depths, strict=True):
                if place is not None:
                    found = text.decode(sample.ids[place[0] : place[1]])
                    assert reference in found
                    assert len(found) <= len(reference) + 100
                    assert depth is not None
                    assert 0 <= depth < 1
            assert all(r in sample.text for r in sample.references)
        assert len({sample.text for sample in made}) == 3
        again = make(TASKS[task], materials, text, length, seed=3, index=1)
        assert again == made[1], "made alone, it is the same"
        assert make(TASKS[task], materials, text, length, seed=4, index=1).text != made[1].text


@pytest.mark.parametrize("task", TASKS)
def test_a_careful_reader_finds_just_what_is_asked(task: str, materials: Materials, own: Text) -> None:
    for index in range(3):
        sample = make(TASKS[task], materials, own, length_of(task), seed=0, index=index)
        found = solve(task, sample.text)
        if task == "qa_1":
            assert found[0] in sample.references
        else:
            assert sorted(found) == sorted(sample.references)


def chi_square(values: list[float], bins: int) -> float:
    counts, _ = np.histogram(values, bins=bins, range=(0, 1))
    expected = len(values) / bins
    return float(((counts - expected) ** 2 / expected).sum())


ONE_IN_A_THOUSAND = 27.88
"""Of chi-square with 9 degrees of freedom: tests draw from fixed seeds, so they cannot fail by chance later."""


@pytest.mark.parametrize("name", ["niah_single_1", "niah_multikey_1", "niah_multikey_2", "niah_multivalue"])
def test_needles_lie_anywhere(name: str, materials: Materials) -> None:
    asked, rest = [], []
    for index in range(600):
        plan = NeedlePlan(SHAPES[name], materials, Draws(0, name, 512, index))
        draft = plan.draft(199, [])
        sentences = [piece for piece in draft.pieces if piece.text != " "]
        for i, piece in enumerate(sentences):
            if "secret number" in piece.text:
                (asked if piece.mark == draft.gold else rest).append(i / len(sentences))
    assert len(asked) == 600
    assert chi_square(asked, 10) < ONE_IN_A_THOUSAND
    if SHAPES[name].haystack != "needle":
        assert len(rest) == {"niah_single_1": 0}.get(name, 1800)
        assert not rest or chi_square(rest, 10) < ONE_IN_A_THOUSAND


def test_assignments_keep_their_order_and_lie_anywhere() -> None:
    places = []
    for index in range(300):
        pieces = [p for p in ChainPlan(Draws(1, "vt", 512, index)).draft(495, []).pieces if p.text != " "]
        marks = [p.mark for p in pieces if p.mark is not None]
        assert marks == [0, 1, 2, 3, 4]
        places += [i / len(pieces) for i, p in enumerate(pieces) if p.mark is not None]
    assert chi_square(places, 10) < ONE_IN_A_THOUSAND


@pytest.mark.parametrize("plan", [CommonWords, CodedText])
def test_counted_words_stand_at_no_fixed_place(plan: Callable[[Draws], CommonWords | CodedText]) -> None:
    places, slots = [], Counter[int]()
    for index in range(150):
        made = plan(Draws(0, "cwe", 512, index))
        words = [w for w in made.draft(60, []).pieces[0].text.split() if not w[0].isdigit()]
        of_answers = [i for i, word in enumerate(words) if word in made.references]
        places += [i / len(words) for i in of_answers]
        slots.update(i for i in of_answers if words[i] == made.references[0])
    assert chi_square(places, 10) < ONE_IN_A_THOUSAND
    assert max(slots.values()) < 60, "no slot holds the same answer in most samples"


def test_common_words_are_ten_times_as_common_however_long_the_list() -> None:
    plan = CommonWords(Draws(0, "cwe", 512, 0))
    for units in (10, 500, len(COUNTED), 5000):
        words = Counter(w for w in plan.draft(units, []).pieces[0].text.split() if not w[0].isdigit())
        common = [words.pop(word) for word in plan.references]
        assert len(set(common)) == 1
        assert sum(words.values()) == units
        assert common[0] == pytest.approx(RATIO * units / len(words), abs=1)
        assert common[0] > 4 * max(words.values())


@pytest.mark.parametrize("units", [30, 42, 50, 100, 1001, 54321])
def test_the_three_words_asked_for_are_the_most_frequent_ones_without_a_tie(units: int) -> None:
    counts = rank_counts(units)
    noise = units - sum(counts)
    assert noise > counts[0] > counts[1] > counts[2] > max([0, *counts[3:]])
    assert counts[0] == pytest.approx(units / 1.6449340668 / 4, abs=2)


def test_the_tables_hold_no_word_twice_nor_inside_another() -> None:
    assert min(len(ADJECTIVES), len(NOUNS), len(COUNTED)) >= 350
    for table in (ADJECTIVES, NOUNS, COUNTED):
        assert len(set(table)) == len(table)
    joined = "|".join(COUNTED)
    assert all(joined.count(word) == 1 for word in COUNTED)
    assert len({key(n) for n in range(0, PAIRS, 97)}) == len(range(0, PAIRS, 97))
    assert key(PAIRS - 1) == f"{ADJECTIVES[-1]}-{NOUNS[-1]}"


def test_a_corpus_is_cut_at_sentence_marks_and_holds_nothing_like_a_needle() -> None:
    text = 'He came. "Did he?" Yes!\n\nA title\n\nCall 5551234 now. The secret number of a-b is 3. '
    found = sentences(text + "x" * 999)
    assert [s.strip('"') for s in found[:4]] == ["He came.", "Did he?", "Yes!", "A title"]
    assert not any("555" in s or "secret" in s for s in found)
    assert max(map(len, found)) <= 400
    corpus = Corpus(["One. Two. Three."])
    assert corpus.from_place(0.4, 5) == ["Two.", "Three.", "One.", "Two.", "Three."]


@pytest.mark.parametrize("task", [task for task in TASKS if not task.startswith("qa")])
def test_a_length_that_is_too_short_is_said_and_not_searched_for_ever(
    task: str, materials: Materials, own: Text
) -> None:
    with pytest.raises(Unfit, match="the shortest prompt takes"):
        make(TASKS[task], materials, own, 40, seed=0, index=0)


def test_questions_that_do_not_fit_and_files_that_end_are_said(materials: Materials, own: Text) -> None:
    with pytest.raises(Unfit, match=r"none of 20 questions fits; .* the shortest prompt takes"):
        make(TASKS["qa_2"], materials, own, 60, seed=0, index=0)
    with pytest.raises(Unfit, match=r"none of 20 questions fits; .* too little to fill it with"):
        make(TASKS["qa_1"], materials, own, 20_000, seed=0, index=0)
    with pytest.raises(Unfit, match=r"no file given \(suite.ruler.squad=PATH\)"):
        make(TASKS["qa_1"], Materials(), own, 400, seed=0, index=0)
    with pytest.raises(Unfit, match="there is no text"):
        make(TASKS["niah_single_2"], Materials(Corpus([])), own, 400, seed=0, index=0)


@pytest.mark.parametrize("task", ["niah_single_1", "niah_single_3", "vt", "cwe"])
def test_a_tokenizer_that_cannot_write_an_answer_is_said(task: str, materials: Materials) -> None:
    with pytest.raises(Unfit, match="the tokenizer cannot write"):
        make(TASKS[task], materials, Text(without_digits()), LENGTH, seed=0, index=0)


def test_a_tokenizer_of_bytes_alone_will_do(materials: Materials) -> None:
    text = Text(Tokenizer.train([""], 257))
    for task in ("niah_single_1", "niah_single_3", "niah_multikey_1", "fwe"):
        sample = make(TASKS[task], materials, text, 700, seed=0, index=0)
        assert 693 <= sample.tokens <= 700
        assert sample.budget >= len(sample.references[0])


@pytest.mark.parametrize(
    ("read", "content", "message"),
    [
        (read_squad, "{", "is no JSON"),
        (read_squad, "[]", "is not in SQuAD's form"),
        (read_squad, '{"data": []}', "holds no question"),
        (read_hotpotqa, '[{"question": "a"}]', "is not in HotpotQA's form"),
        (read_hotpotqa, "[]", "holds no question"),
    ],
)
def test_a_file_of_another_form_is_refused(
    read: Callable[[str], object], content: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "file.json").write_text(content)
    with pytest.raises(MinillmError, match=message):
        read(str(tmp_path / "file.json"))
    with pytest.raises(MinillmError, match="cannot be read"):
        read(str(tmp_path / "none.json"))
