"""What a task is: one frozen dataclass, whose fields are its YAML fields, and which makes samples of any length.

    @register("needle")
    @dataclass(frozen=True)
    class Needle(Task):
        keys: int = 32

        @property
        def words(self) -> tuple[str, ...]: ...               # the vocabulary without the start marker
        def make(self, stream: Stream, length: int, training: bool) -> Sample: ...

A sample is inputs and targets of at most `length` tokens. Its numbers come from one `Stream`, so that sample i of a
split is the same whoever makes it and when. Samples of the splits are disjoint: each belongs, by a hash of its tokens,
to training, validation or test, and what belongs elsewhere is drawn again.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar

import numpy as np

from minillm.config import fields
from minillm.data.tasks.stream import Stream
from minillm.data.windows import IGNORED
from minillm.errors import ConfigError, nearest

Split = Literal["train", "val", "test"]
SPLITS: tuple[Split, ...] = ("train", "val", "test")
SHARES = {"train": range(0, 12), "val": range(12, 14), "test": range(14, 16)}
"""Which sixteenths of all samples each split has."""
ATTEMPTS = 200
"""Draws until a sample of the split is found. Only where fewer samples exist than that (one-bit parity) is there none,
and then the last is taken, whatever split it belongs to."""
BOS = "<s>"


class Answer(NamedTuple):
    """One thing asked of the model in a sample. Its tokens are the targets at inputs `at` .. `at + length - 1`."""

    at: int
    length: int
    evidence: int | None
    """Input that holds the first of the tokens to be recalled, None where no single place holds the answer."""


class Sample(NamedTuple):
    """One problem and its solution."""

    tokens: np.ndarray
    """Inputs, (n,) int64, the start marker first."""
    targets: np.ndarray
    """(n,) int64: the token that follows each input where it is asked for, -100 elsewhere."""
    answers: tuple[Answer, ...]


@dataclass(frozen=True)
class Task:
    """Spec of a task; subclasses add fields (the YAML fields), `words` and `make`."""

    name: ClassVar[str]

    lengths: tuple[float, ...] = (1 / 3, 1 / 2, 2 / 3, 1.0)
    """Each batch has one of these lengths, in shares of data.seq_len, each as likely. A single length teaches full
    attention its absolute distances, and is learned several times slower."""

    @property
    def words(self) -> tuple[str, ...]:
        """The vocabulary but for the start marker, in the order of ids."""
        raise NotImplementedError

    @property
    def vocabulary(self) -> tuple[str, ...]:
        """All tokens in the order of their ids; the start marker is token 0."""
        return (BOS, *self.words)

    def check(self, where: str) -> None:
        """Raise ConfigError for settings that the types do not rule out; `where` is the key of these fields."""

    def shortest(self) -> int:
        """The fewest tokens that any sample takes."""
        raise NotImplementedError

    def make(self, stream: Stream, length: int, training: bool) -> Sample:
        """A sample of at most `length` tokens. For training, sizes and counts vary; else they are the task's fixed
        ones, and the largest that `length` takes."""
        raise NotImplementedError

    def chance(self, length: int) -> float | None:
        """Share of answer tokens that a model gets right which knows the form of a sample but does not do what the task
        is about."""
        return None

    def sample(self, seed: int, split: Split, length: int, index: int) -> Sample:
        """Sample `index` of a split: a pure function of the arguments."""
        stream = Stream(seed, SPLITS.index(split), length, index)
        for _ in range(ATTEMPTS):
            sample = self.make(stream, length, training=split == "train")
            if zlib.crc32(sample.tokens.tobytes()) % 16 in SHARES[split]:
                break
        return sample


def solved(stream: list[int] | np.ndarray, answers: list[Answer]) -> Sample:
    """A sample from its tokens, the last answer's last one included, and the places of its answers."""
    tokens = np.asarray(stream, dtype=np.int64)
    targets = np.full(len(tokens) - 1, IGNORED, dtype=np.int64)
    for answer in answers:
        targets[answer.at : answer.at + answer.length] = tokens[answer.at + 1 : answer.at + 1 + answer.length]
    return Sample(tokens[:-1], targets, tuple(answers))


T = TypeVar("T", bound=type[Task])
TASKS: dict[str, type[Task]] = {}


def register(name: str) -> Callable[[T], T]:
    """Class decorator: make a task known to YAML under `name`."""

    def add(cls: T) -> T:
        if name in TASKS and TASKS[name].__qualname__ != cls.__qualname__:
            raise ValueError(f"task {name!r} is registered twice")
        cls.name = name
        TASKS[name] = cls
        return cls

    return add


def task_from_plain(plain: Mapping[str, Any] | None, where: str = "data.task") -> Task:
    """The task that `{name: needle, ...}` means. Raises ConfigError with the dotted key."""
    if not isinstance(plain, Mapping) or "name" not in plain:
        raise ConfigError(f"{where}: {plain!r} names no task. Expected {{name: ..., ...}}: {', '.join(TASKS)}.")
    name, own = plain["name"], {key: value for key, value in plain.items() if key != "name"}
    if name not in TASKS:
        raise ConfigError(f"{where}.name: unknown task {name!r}.{nearest(str(name), TASKS)} Known: {', '.join(TASKS)}.")
    task = fields.build(TASKS[name], own, where, scheme=name)
    if not task.lengths or min(task.lengths) <= 0 or max(task.lengths) != 1:
        raise ConfigError(
            f"{where}.lengths = {list(task.lengths)}: must be shares of data.seq_len above 0, the largest of them 1."
        )
    task.check(where)
    return task
