"""Questions on paragraphs among other paragraphs: `qa_1` reads a file in SQuAD's form, `qa_2` one in HotpotQA's.

    questions = read_squad("dev-v2.0.json")          # {"data": [{"paragraphs": [{"context", "qas"}]}]}
    questions = read_hotpotqa("hotpot_dev.json")     # [{"question", "answer", "context", "supporting_facts"}]

A unit of haystack is a paragraph that does not belong to the question; those nearest to it (of its article; HotpotQA's
own distractors) come first. All stand in random order.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.data.tasks.stream import Stream
from minillm.errors import MinillmError
from minillm.evaluation.ruler.task import SMALL, Draft, Draws, Materials, Piece, Plan, RulerTask, Unfit, others

CAP = 32
INSTRUCTION = "Answer the question from these paragraphs, in a few words."
ATTEMPTS = 20
"""Questions tried until one fits a length."""


@dataclass(frozen=True)
class Question:
    text: str
    answers: tuple[str, ...]
    gold: tuple[int, ...]
    """Numbers of the paragraphs that hold the answer."""
    near: tuple[int, ...]
    """Numbers of the distractors to be taken first."""


@dataclass(frozen=True)
class Questions:
    """A file's questions and all its paragraphs, each once."""

    source: str
    digest: str
    questions: tuple[Question, ...]
    paragraphs: tuple[str, ...]


class _Paragraphs:
    def __init__(self) -> None:
        self.number: dict[str, int] = {}

    def add(self, text: str) -> int:
        return self.number.setdefault(" ".join(text.split()), len(self.number))


def read_squad(path: str) -> Questions:
    """SQuAD 1.1 or 2.0; questions without an answer are left out. MinillmError for a file of another form."""
    where = "suite.ruler.squad"
    plain, digest = _json(path, where)
    paragraphs, questions = _Paragraphs(), []
    try:
        for article in plain["data"]:
            of_article = [paragraphs.add(p["context"]) for p in article["paragraphs"]]
            for number, paragraph in zip(of_article, article["paragraphs"], strict=True):
                near = tuple(n for n in dict.fromkeys(of_article) if n != number)
                for asked in paragraph["qas"]:
                    answers = tuple(dict.fromkeys(str(a["text"]) for a in asked["answers"]))
                    if answers and not asked.get("is_impossible", False):
                        questions.append(Question(str(asked["question"]), answers, (number,), near))
    except (KeyError, TypeError, AttributeError) as error:
        raise _other_form(path, where, "SQuAD", error) from None
    return _questions(path, where, digest, questions, paragraphs)


def read_hotpotqa(path: str) -> Questions:
    """HotpotQA with its ten paragraphs a question, of which those with supporting facts must stay."""
    where = "suite.ruler.hotpotqa"
    plain, digest = _json(path, where)
    paragraphs, questions = _Paragraphs(), []
    try:
        for asked in plain:
            own = {str(title): paragraphs.add(f"{title}: {''.join(lines)}") for title, lines in asked["context"]}
            gold = tuple(dict.fromkeys(own[str(title)] for title, _ in asked["supporting_facts"]))
            near = tuple(n for n in dict.fromkeys(own.values()) if n not in gold)
            questions.append(Question(str(asked["question"]), (str(asked["answer"]),), gold, near))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise _other_form(path, where, "HotpotQA", error) from None
    return _questions(path, where, digest, questions, paragraphs)


def _json(path: str, where: str) -> tuple[Any, str]:
    try:
        raw = Path(path).expanduser().read_bytes()
        return json.loads(raw), hashlib.sha256(raw).hexdigest()[:16]
    except OSError as error:
        raise MinillmError(f"{where}: {path} cannot be read: {error.strerror or error}.") from None
    except ValueError as error:
        raise MinillmError(f"{where}: {path} is no JSON: {error}.") from None


def _other_form(path: str, where: str, form: str, error: Exception) -> MinillmError:
    return MinillmError(f"{where}: {path} is not in {form}'s form ({type(error).__name__}: {error}).")


def _questions(path: str, where: str, digest: str, questions: Sequence[Question], paragraphs: _Paragraphs) -> Questions:
    if not questions:
        raise MinillmError(f"{where}: {path} holds no question with an answer.")
    return Questions(path, digest, tuple(questions), tuple(paragraphs.number))


class QuestionPlan:
    """One sample. The same questions are asked at every length, as far as they fit."""

    least = 0
    most: int | None

    def __init__(self, questions: Questions, draws: Draws, attempt: int) -> None:
        self._file, self._draws = questions, draws
        count = len(questions.questions)
        order = Stream(draws.seed, zlib.crc32(draws.task.encode())).choose(count, count)
        self._question = questions.questions[order[(draws.index + attempt) % count]]
        self.references = self._question.answers
        total = len(questions.paragraphs)
        shuffled = [int(n) for n in draws.stream(f"distractors {attempt}").choose(total, total)]
        first = dict.fromkeys((*self._question.near, *shuffled))
        self._distractors = [n for n in first if n not in self._question.gold]
        self._attempt = attempt
        self.most = len(self._distractors)

    def draft(self, units: int, padding: Sequence[str]) -> Draft:
        gold = self._question.gold
        mark = 0 if len(gold) == 1 else None
        shown = [(n, mark) for n in gold] + [(n, None) for n in self._distractors[:units]]
        order = self._draws.stream(f"order {self._attempt}").choose(len(shown), len(shown))
        pieces: list[Piece] = []
        for place, i in enumerate(order):
            number, marked = shown[i]
            pieces += [Piece(f"\n\n{place + 1}. "), Piece(self._file.paragraphs[number], marked)]
        if padding:
            pieces.append(Piece("\n\n" + " ".join(padding)))
        of_others = self._draws.stream("answers")
        picked = of_others.integers(len(self._file.questions), 60)
        absent = [self._file.questions[i].answers[0] for i in picked]
        wrong = others([], absent, self.references, self._draws.stream("wrong"))
        return Draft(INSTRUCTION, pieces, f"\n\nQuestion: {self._question.text}\nAnswer:", 0, wrong)

    def filling(self) -> list[str]:
        after = self._distractors[-1:] or self._question.gold
        return [*self._file.paragraphs[after[0]].split()[:300], *SMALL]


def _task(name: str) -> RulerTask:
    def plan(materials: Materials, draws: Draws, attempt: int) -> Plan:
        if name not in materials.questions:
            key = {"qa_1": "squad", "qa_2": "hotpotqa"}[name]
            raise Unfit(f"no file given (suite.ruler.{key}=PATH)")
        return QuestionPlan(materials.questions[name], draws, attempt)

    return RulerTask(name, CAP, plan, any_reference=True, attempts=ATTEMPTS)


QA = [_task("qa_1"), _task("qa_2")]
