"""Every task: samples fit and are right; splits share nothing; a sample depends on its key alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from minillm.data.tasks import TASKS, Sample, Task, task_from_plain
from minillm.data.tasks.stream import Stream
from minillm.errors import ConfigError

ALL = [{"name": name} for name in TASKS] + [
    {"name": "addition", "scratchpad": True},
    {"name": "lego", "shuffled": True},
]
VERBS = {"walk": "WALK", "run": "RUN", "jump": "JUMP", "look": "LOOK"}


def named(plain: dict[str, Any]) -> str:
    return "-".join(str(value) for value in plain.values())


@pytest.fixture(params=ALL, ids=named)
def task(request: pytest.FixtureRequest) -> Task:
    return task_from_plain(request.param)


def said(task: Task, sample: Sample) -> tuple[list[str], list[list[str]]]:
    """The words of a sample's inputs without the marker, and of each answer."""
    words = task.vocabulary
    asked = [[words[i] for i in sample.targets[a.at : a.at + a.length]] for a in sample.answers]
    return [words[i] for i in sample.tokens[1:]], asked


def test_the_promised_tasks_are_there() -> None:
    promised = "needle mqar copy reverse addition sorting summation parity polynomial lego scan_like pcfg_like"
    assert set(promised.split()) <= set(TASKS)


@pytest.mark.parametrize("split", ["train", "val", "test"])
def test_a_sample_fits_its_length_and_asks_where_its_answers_are(task: Task, split: Any) -> None:
    for length in (task.shortest(), task.shortest() + 1, 50, 97):
        for index in range(5):
            tokens, targets, answers = task.sample(3, split, length, index)
            assert len(tokens) == len(targets) <= length
            assert tokens[0] == 0
            assert 0 not in tokens[1:]
            assert 0 < tokens[1:].min() <= tokens.max() < len(task.vocabulary)
            asked = np.zeros(len(targets), dtype=bool)
            for answer in answers:
                asked[answer.at : answer.at + answer.length] = True
            assert np.array_equal(asked, targets != -100)
            assert sum(answer.length for answer in answers) == asked.sum() > 0
            follow = asked[:-1]
            assert np.array_equal(targets[:-1][follow], tokens[1:][follow]), "a target is the next token"


def test_a_sample_is_a_pure_function_of_its_key(task: Task) -> None:
    first = task.sample(1, "train", 60, 7)
    task.sample(1, "train", 60, 8)
    again = task.sample(1, "train", 60, 7)
    assert np.array_equal(first.tokens, again.tokens)
    assert first.answers == again.answers
    others = [task.sample(2, "train", 60, 7), task.sample(1, "train", 60, 6), task.sample(1, "val", 60, 7)]
    assert all(first.tokens.tolist() != other.tokens.tolist() for other in others)


def test_the_vocabulary_has_each_word_once(task: Task) -> None:
    assert len(set(task.vocabulary)) == len(task.vocabulary)
    assert all(word and not word.isspace() and " " not in word for word in task.vocabulary)


@pytest.mark.parametrize("plain", [{"name": "parity"}, {"name": "copy", "letters": 2}], ids=named)
def test_no_problem_is_in_two_splits(plain: dict[str, Any]) -> None:
    """Of ten bits there are 1,024 problems: chance alone would repeat nearly all of them."""
    task = task_from_plain(plain)
    length = 11 if plain["name"] == "parity" else 22
    seen = {
        split: {task.sample(seed, split, length, i).tokens.tobytes() for i in range(400) for seed in (0, 1)}
        for split in ("train", "val", "test")
    }
    assert not seen["train"] & seen["val"]
    assert not seen["train"] & seen["test"]
    assert not seen["val"] & seen["test"]


def test_training_sizes_vary_and_test_sizes_are_the_largest_that_fit() -> None:
    task = task_from_plain({"name": "copy"})
    sizes = [task.sample(0, "train", 43, i).answers[0].length - 1 for i in range(300)]
    assert set(sizes) == set(range(1, 21))
    assert {task.sample(0, "test", 43, i).answers[0].length - 1 for i in range(20)} == {20}
    assert {task.sample(0, "test", 86, i).answers[0].length - 1 for i in range(20)} == {42}


def solve(name: str, question: list[str]) -> str:
    """The answer by another way than the task's own, as text."""
    text = "".join(question)
    if name == "copy":
        return text
    if name == "reverse":
        return "".join(reversed(text))
    if name == "addition":
        return str(eval(text))
    if name == "sorting":
        return ",".join(sorted(text.split(",")))
    if name == "summation":
        return str(sum(map(int, question)) % 10)
    if name == "parity":
        return str(question.count("1") & 1)
    if name == "polynomial":
        x, _, terms = text.partition(":")
        return str(eval(terms.replace("^", f"*{x[1:]}**")) % 10)
    if name == "lego":
        clauses, _, asked = text.partition("?")
        given = dict(clause.split(":=") for clause in clauses.strip(",").split(","))
        sign = 1
        while asked != "1":
            sign *= -1 if given[asked][0] == "-" else 1
            asked = given[asked][1:]
        return "+" if sign > 0 else "-"
    if name == "scan_like":
        actions: list[str] = []
        for joint, clause in clauses_of(question):
            times = 3 if "thrice" in clause else 2 if "twice" in clause else 1
            turns = [word.upper() for word in ("left", "right") if word in clause]
            done = [*turns, VERBS[clause[0]]] * times
            actions = [*done, *actions] if joint == "after" else [*actions, *done]
        return "".join(actions)
    assert name == "pcfg_like"
    start = question.index("(")
    string = "".join(question[start + 1 :])
    for function in question[:start][::-1]:
        string = {
            "copy": string,
            "reverse": string[::-1],
            "shift": string[1:] + string[0],
            "swap": string[-1] + string[1:-1] + string[0],
            "echo": string + string[-1],
        }[function]
    return string


def clauses_of(question: list[str]) -> list[tuple[str, list[str]]]:
    found: list[tuple[str, list[str]]] = [("", [])]
    for word in question:
        if word in ("and", "after"):
            found.append((word, []))
        else:
            found[-1][1].append(word)
    return found


@pytest.mark.parametrize("plain", [p for p in ALL if p["name"] not in ("needle", "mqar")], ids=named)
def test_the_answer_is_right(plain: dict[str, Any]) -> None:
    task = task_from_plain(plain)
    for index in range(40):
        words, (answer,) = said(task, task.sample(5, "train", 80, index))
        question = words[: words.index("=")]
        if answer[-1] == ";":
            answer = answer[:-1]
        whole = "".join(answer)
        given = whole.rpartition(",")[2] if plain.get("scratchpad") else whole
        assert given == solve(plain["name"], question), question


def test_a_scratchpad_says_each_column_with_its_carry() -> None:
    task = task_from_plain({"name": "addition", "scratchpad": True})
    for index in range(20):
        words, (answer,) = said(task, task.sample(5, "train", 80, index))
        first, second = "".join(words[: words.index("=")]).split("+")
        columns = "".join(answer).rpartition(",")[0].split(",")
        carry = 0
        for a, b, column in zip(reversed(first), reversed(second), columns, strict=True):
            total = int(a) + int(b) + carry
            assert column == f"{a}{b}{carry}{total % 10}"
            carry = total // 10


@pytest.mark.parametrize("name", ["parity", "summation", "lego"])
def test_one_word_answers_are_as_likely_each_whatever_the_size(name: str) -> None:
    task = task_from_plain({"name": name})
    for length in (30, 60):
        answers = [said(task, task.sample(0, "train", length, i))[1][0][0] for i in range(1000)]
        counts = np.array([answers.count(word) for word in set(answers)])
        expected = 1000 / len(counts)
        assert len(counts) == (10 if name == "summation" else 2)
        assert ((counts - expected) ** 2 / expected).sum() < 30, "chi-square of at most 9 degrees, p = 0.0004"


@pytest.mark.parametrize(
    ("plain", "message"),
    [
        (None, "names no task"),
        ({"keys": 3}, "names no task"),
        ({"name": "neddle"}, "Did you mean 'needle'"),
        ({"name": "needle", "depth": 3}, "'needle' has no such field"),
        ({"name": "needle", "keys": 3}, "data.task.keys = 3: must be at least the most needles, 6"),
        ({"name": "needle", "train_needles": []}, "train_needles"),
        ({"name": "needle", "lengths": [0.5]}, "largest of them 1"),
        ({"name": "mqar", "tokens_per_pair": 4}, "tokens_per_pair = 4"),
        ({"name": "copy", "letters": 27}, "from 2 to 26"),
    ],
)
def test_what_cannot_be_honoured_is_refused(plain: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        task_from_plain(plain)


def test_a_stream_is_the_same_on_every_machine() -> None:
    """Golden values: a change of them would change every task's data."""
    stream = Stream(1, 2, 3)
    assert stream.integers(1000, 5).tolist() == GOLDEN
    assert [Stream(1, 2, 3).integer(1000) for _ in range(2)] == GOLDEN[:1] * 2


def test_a_stream_goes_on_past_a_block_and_repeats_nothing() -> None:
    one, two = Stream(4), Stream(4)
    whole = one.bits(1000)
    assert len(np.unique(whole)) == 1000
    assert np.array_equal(np.concatenate([two.bits(n) for n in (1, 255, 256, 488)]), whole)


def test_choices_are_different_and_uniform() -> None:
    stream = Stream(9)
    chosen = np.stack([stream.choose(6, 3) for _ in range(3000)])
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    for column in chosen.T:
        counts = np.bincount(column, minlength=6)
        assert ((counts - 500) ** 2 / 500).sum() < 25, "chi-square of 5 degrees, p = 0.0001"


GOLDEN = [580, 301, 504, 406, 234]
