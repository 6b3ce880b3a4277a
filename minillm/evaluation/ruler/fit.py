"""From a plan to a prompt of exactly so many tokens, with the places of its needles.

    sample = make(TASKS["niah_single_1"], materials, Text(tokenizer), length=1024, seed=0, index=3)
    len(sample.ids) + sample.budget          # 1014 to 1024: the start marker and the answer's tokens included

First the most units of haystack that fit, then words of one more, then single small words. Every search has an end: a
length that cannot be had raises Unfit with the reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from minillm.evaluation.ruler.task import Draft, Draws, Materials, Plan, RulerTask, Unfit

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer

TOLERANCE = 0.01
"""A prompt may be so much shorter than asked, as a share; it is never longer."""
SLACK = 16
"""Tokens that a generated answer may be longer than the gold one, as far as RULER's own cap allows."""
SHOWN = 120
"""Characters of a text that a reason quotes."""
MOST_STEPS = 60
"""Of each search, whatever the tokenizer does."""


class Text:
    """A tokenizer as the suite uses it: text as a whole, with the places of characters."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.bos_id = tokenizer.bos_id

    def ids(self, text: str) -> list[int]:
        return list(self.tokenizer.raw.encode_batch_fast([text], add_special_tokens=False)[0].ids)

    def with_places(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids and the characters [start, end) that each stands for."""
        encoding = self.tokenizer.raw.encode(text, add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def decode(self, ids: list[int]) -> str:
        return self.tokenizer.decode(ids)

    def check(self, text: str) -> None:
        """Raise Unfit where `text` does not come back as it was."""
        back = self.decode(self.ids(text))
        if back.strip() != text.strip():
            raise Unfit(f"the tokenizer cannot write {_short(text)!r}: it comes back as {_short(back)!r}")


def _short(text: str) -> str:
    """The beginning of a long text."""
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Sample:
    """One prompt and what is asked of it."""

    task: str
    index: int
    length: int
    """Asked for: prompt and generation budget together."""
    text: str
    """The prompt without its start marker."""
    ids: list[int]
    """The prompt with it."""
    budget: int
    """Tokens to generate at most."""
    references: tuple[str, ...]
    places: tuple[tuple[int, int] | None, ...]
    """Of each reference: first token of its needle and the one after its last; None where no one place holds it."""
    depths: tuple[float | None, ...]
    """Of each reference: where its needle begins, 0 at the haystack's first token, below 1 at its last."""
    gold: int
    wrong: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """What `length` asks for, as it came out."""
        return len(self.ids) + self.budget


def make(
    task: RulerTask,
    materials: Materials,
    text: Text,
    length: int,
    seed: int,
    index: int,
    to_generate: int | None = None,
) -> Sample:
    """Sample `index` of a task: a pure function of the arguments. Raises Unfit with the reason.

    Its budget is `to_generate`, where that is given.
    """
    draws = Draws(seed, task.name, length, index)
    for attempt in range(task.attempts):
        plan = task.plan(materials, draws, attempt)
        try:
            return _fit(task, plan, text, length, index, to_generate)
        except Unfit as error:
            reason = error
    if task.attempts > 1:
        raise Unfit(f"none of {task.attempts} questions fits; the last: {reason}")
    raise reason


def budget(task: RulerTask, references: tuple[str, ...], text: Text) -> int:
    """Tokens to generate: those of the gold answer and SLACK more, up to RULER's cap; never fewer than the answer's."""
    needed = _needed(task, references, text)
    return max(needed, min(needed + SLACK, task.cap))


def _needed(task: RulerTask, references: tuple[str, ...], text: Text) -> int:
    """Tokens of the longest right answer."""
    written = references if task.any_reference else (", ".join(references),)
    return max(len(text.ids(f" {answer}.")) for answer in written)


def _fit(task: RulerTask, plan: Plan, text: Text, length: int, index: int, to_generate: int | None = None) -> Sample:
    shortest = plan.draft(plan.least, [])
    if not task.any_reference:  # paragraphs of a file may hold anything
        for piece in shortest.pieces:
            if piece.mark is not None:
                text.check(piece.text)
    for words in (*(f"It is {reference}." for reference in plan.references), shortest.question):
        text.check(words)
    if to_generate is None:
        to_generate = budget(task, plan.references, text)
    elif (needed := _needed(task, plan.references, text)) > to_generate:
        raise Unfit(f"the answer takes {needed} tokens, and {to_generate} are generated")
    room = length - to_generate - 1
    enough = room - int(length * TOLERANCE)

    def count(units: int, padding: list[str]) -> int:
        return len(text.ids(_written(plan.draft(units, padding))))

    least = count(plan.least, [])
    if least > room:
        raise Unfit(f"the shortest prompt takes {least + 1 + to_generate} tokens")
    units, tokens = _most_units(plan, count, least, room)
    padding: list[str] = [] if tokens >= enough else _padding(plan, lambda words: count(units, words), room, enough)
    return _sample(task, plan, text, plan.draft(units, padding), length, index, to_generate)


def _written(draft: Draft) -> str:
    return draft.instruction + "".join(piece.text for piece in draft.pieces) + draft.question


def _most_units(plan: Plan, count: Callable[[int, list[str]], int], least: int, room: int) -> tuple[int, int]:
    """The most units that leave the text at `room` tokens or below, and its tokens.

    Secant steps from the last count, in turn with bisection once there is an upper end; each count is exact, so what is
    returned fits whatever the steps assumed.
    """
    low, low_tokens = plan.least, least
    high: int | None = None
    per_unit = 10.0
    for step in range(MOST_STEPS):
        if (high is not None and high - low <= 1) or low == plan.most:
            break
        guess = low + max(1, int((room - low_tokens) / per_unit))
        if high is not None:
            guess = (low + high) // 2 if step % 3 == 2 else min(guess, high - 1)
        if plan.most is not None:
            guess = min(guess, plan.most)
        tokens = count(guess, [])
        if tokens > low_tokens:
            per_unit = (tokens - low_tokens) / (guess - low)
        if tokens <= room:
            low, low_tokens = guess, tokens
        else:
            high = guess
    return low, low_tokens


def _padding(plan: Plan, count: Callable[[list[str]], int], room: int, enough: int) -> list[str]:
    """Words that bring the text to between `enough` and `room` tokens."""
    words = plan.filling()
    low, high, tokens = 0, len(words) + 1, 0
    while high - low > 1:
        middle = (low + high) // 2
        found = count(words[:middle])
        if found <= room:
            low, tokens = middle, found
        else:
            high = middle
    padding = words[:low]
    by_size = sorted(dict.fromkeys(words), key=len, reverse=True)
    for _ in range(MOST_STEPS):
        if tokens >= enough:
            return padding
        for word in by_size:
            found = count([*padding, word])
            if tokens < found <= room:
                padding, tokens = [*padding, word], found
                break
        else:
            break
    if tokens >= enough:
        return padding
    raise Unfit(f"there is too little to fill it with, or nothing small enough: {tokens} tokens of {room} were had")


def _sample(task: RulerTask, plan: Plan, text: Text, draft: Draft, length: int, index: int, to_generate: int) -> Sample:
    written = _written(draft)
    ids, offsets = text.with_places(written)
    spans: list[tuple[int, int] | None] = [None] * len(plan.references)
    at = len(draft.instruction)
    haystack = _tokens_of(offsets, (at, len(written)))[0]
    for piece in draft.pieces:
        if piece.mark is not None:
            spans[piece.mark] = (at, at + len(piece.text))
        at += len(piece.text)
    question = _tokens_of(offsets, (at, len(written)))[0]
    # One more for the start marker.
    places = tuple(None if s is None else tuple(i + 1 for i in _tokens_of(offsets, s)) for s in spans)
    return Sample(
        task=task.name,
        index=index,
        length=length,
        text=written,
        ids=[text.bos_id, *ids],
        budget=to_generate,
        references=plan.references,
        places=places,  # type: ignore[arg-type]
        depths=tuple(None if p is None else (p[0] - 1 - haystack) / (question - haystack) for p in places),
        gold=draft.gold,
        wrong=draft.wrong,
    )


def _tokens_of(offsets: list[tuple[int, int]], span: tuple[int, int]) -> tuple[int, int]:
    """First token that stands for any of the characters [start, end), and the one after the last."""
    inside = [i for i, (start, end) in enumerate(offsets) if start < span[1] and end > span[0] and end > start]
    return inside[0], inside[-1] + 1
