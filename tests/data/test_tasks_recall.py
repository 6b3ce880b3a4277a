"""Needle and MQAR: what is asked is written once before, and nothing but the key says where."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from minillm.data.tasks import Sample, Task, task_from_plain

NEEDLE = task_from_plain({"name": "needle"})
MQAR = task_from_plain({"name": "mqar"})


def samples(task: Task, length: int, count: int, split: str = "test") -> list[Sample]:
    return [task.sample(0, split, length, i) for i in range(count)]  # type: ignore[arg-type]


def uniform(counts: list[int] | np.ndarray, limit: float) -> bool:
    """Whether counts of equally likely things are: chi-square below `limit`."""
    observed = np.asarray(counts, dtype=float)
    expected = observed.sum() / len(observed)
    return bool(((observed - expected) ** 2 / expected).sum() < limit)


def kind(task: Task, token: int) -> str:
    return task.vocabulary[token][0]


@pytest.mark.parametrize("task", [NEEDLE, MQAR], ids=["needle", "mqar"])
@pytest.mark.parametrize("split", ["train", "test"])
def test_the_evidence_is_the_answer_behind_its_key(task: Task, split: str) -> None:
    for sample in samples(task, 96, 50, split):
        for at, length, evidence in sample.answers:
            assert evidence is not None
            assert evidence + length <= at
            assert sample.tokens[at] == sample.tokens[evidence - 1], "the question repeats the key"
            assert sample.targets[at : at + length].tolist() == sample.tokens[evidence : evidence + length].tolist()


@pytest.mark.parametrize("task", [NEEDLE, MQAR], ids=["needle", "mqar"])
def test_a_key_is_written_twice_and_values_are_only_in_pairs(task: Task) -> None:
    for sample in samples(task, 96, 50):
        whole = [*sample.tokens.tolist(), int(sample.targets[-1])]
        keys = Counter(token for token in whole if token >= 0 and kind(task, token) == "k")
        assert set(keys.values()) == {2}
        assert len(keys) == len(sample.answers)
        values = sum(kind(task, token) == "v" for token in whole if token >= 0)
        assert values == 2 * sum(answer.length for answer in sample.answers)


def test_a_needle_sample_has_exactly_the_length_asked() -> None:
    for length in (28, 96, 1536):
        assert {len(s.tokens) for s in samples(NEEDLE, length, 5)} == {length}


def test_training_mixes_one_to_six_needles_as_far_as_they_fit() -> None:
    counts = Counter(len(s.answers) for s in samples(NEEDLE, 96, 600, "train"))
    assert sorted(counts) == [1, 2, 3, 4, 5, 6]
    assert uniform(list(counts.values()), 25)
    assert {len(s.answers) for s in samples(NEEDLE, 32, 200, "train")} == {1, 2, 3, 4}
    assert {len(s.answers) for s in samples(NEEDLE, 96, 20)} == {4}


def test_needles_lie_anywhere() -> None:
    """Each of the 83 - 11 places that a needle can begin at is as likely: ten equal parts of them."""
    starts = [a.evidence - 1 for s in samples(NEEDLE, 101, 1500) for a in s.answers if a.evidence is not None]
    body = 101 - 4 * 4
    assert min(starts) == 1
    assert max(starts) == body - 2
    # A place at the edge has a neighbour on one side only, so the outermost ones are a little more likely.
    inner = [s for s in starts if 11 <= s < body - 12]
    parts = np.histogram(inner, bins=6, range=(11, 11 + (body - 23)))[0]
    assert parts.max() / parts.min() < 1.25


def test_the_order_of_questions_says_nothing_of_the_order_of_needles() -> None:
    counts: Counter[tuple[int, int]] = Counter()
    for sample in samples(NEEDLE, 96, 2000):
        places = sorted(a.evidence for a in sample.answers if a.evidence is not None)
        for number, answer in enumerate(sample.answers):
            assert answer.evidence is not None
            counts[number, places.index(answer.evidence)] += 1
    assert len(counts) == 16
    for number in range(4):
        assert uniform([counts[number, place] for place in range(4)], 21), "chi-square of 3 degrees, p = 0.0001"


@pytest.mark.parametrize("task", [NEEDLE, MQAR], ids=["needle", "mqar"])
def test_values_are_uniform_and_do_not_follow_from_their_keys(task: Task) -> None:
    first = [(int(s.tokens[a.at]), int(s.targets[a.at])) for s in samples(task, 96, 3000) for a in s.answers]
    by_value = Counter(value for _, value in first)
    degrees = len(by_value) - 1
    assert uniform(list(by_value.values()), degrees + 5 * (2 * degrees) ** 0.5)
    same = Counter((key % 2, value % 2) for key, value in first)
    assert uniform(list(same.values()), 25)


def test_what_is_said_before_does_not_give_an_answer_away() -> None:
    """Guesses without the key: the newest pair, the oldest, the value written most often. Each is a one in four."""
    hits = np.zeros(3)
    asked = 0
    for sample in samples(NEEDLE, 96, 1500):
        body = sample.tokens[: sample.answers[0].at - 1]
        pairs = [int(i) for i in np.flatnonzero((body >= 2) & (body < 34))]
        shown = [int(body[i + 1]) for i in pairs]
        often = Counter(shown).most_common(1)[0][0]
        answer = sample.answers[0]
        right = int(sample.targets[answer.at])
        hits += [shown[-1] == right, shown[0] == right, often == right]
        asked += 1
    # Values repeat by chance: 1/4 + 3/4 * 1/32. The most frequent value gains a little where one is written twice.
    assert np.all(hits[:2] / asked < 0.31)
    assert hits[2] / asked < 0.36


def test_mqar_asks_for_more_pairs_in_longer_samples() -> None:
    for length, pairs in ((16, 1), (64, 4), (128, 8), (512, 32), (4096, 128)):
        assert {len(s.answers) for s in samples(MQAR, length, 3)} == {pairs}
    assert {len(s.answers) for s in samples(MQAR, 128, 200, "train")} == set(range(1, 9))


def test_mqar_shows_in_the_first_half_and_asks_in_the_second() -> None:
    for sample in samples(MQAR, 128, 50):
        assert max(a.evidence for a in sample.answers if a.evidence is not None) < 64 <= min(sample.answers).at
