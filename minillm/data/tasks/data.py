"""`TaskData`: what a run trains on when `data.source=task`; it has the face of `minillm.data.prepare.Prepared`.

data = task_data(cfg.data)
data.train_loader(cfg.data, seed=1, num_batches=1000)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from minillm.config.schema import DataConfig
from minillm.data.prompt import Prompt
from minillm.data.tasks.base import Task, task_from_plain
from minillm.data.tasks.batches import TaskLoader, TaskValLoader, batch_lengths
from minillm.data.tasks.vocabulary import unknown, word_tokenizer
from minillm.errors import ConfigError

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer

RULES = 1
"""Raised when the same settings would give other samples."""


@dataclass(frozen=True)
class TaskData:
    """A task as training data. Nothing is stored: samples are made when they are read."""

    task: Task
    tokenizer: Tokenizer
    seq_len: int
    count: int
    """Validation samples."""

    notes: tuple[str, ...] = ()
    tokens_per_byte: None = None
    """Bits per byte and compressed sizes are said of text only."""
    xz_bits_per_byte: None = None

    @property
    def fingerprint(self) -> str:
        """Of all that decides the samples of a seed."""
        own = {field.name: getattr(self.task, field.name) for field in fields(self.task)}
        text = json.dumps([RULES, self.task.name, own, self.task.vocabulary], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self, count: Callable[[float], str]) -> str:
        """For the lines at a run's start; `count` writes a number."""
        lengths = ", ".join(str(n) for n in batch_lengths(self.task, self.seq_len))
        held_out = f"{count(self.count)} validation samples"
        return f"task {self.task.name}, made on the fly: batches of {lengths} tokens, {held_out}"

    def train_loader(
        self, data: DataConfig, seed: int, num_batches: int, rank: int = 0, world_size: int = 1
    ) -> TaskLoader:
        return TaskLoader(
            self.task, data.seq_len, data.batch_size, seed, num_batches, rank, world_size, data.num_workers
        )

    def val_loader(
        self, data: DataConfig, rank: int = 0, world_size: int = 1, limit: int | None = None
    ) -> TaskValLoader:
        return TaskValLoader(self.task, data.seq_len, self.count, data.batch_size, rank, world_size, limit)

    def prompt(self, text: str | None, new_tokens: int) -> Prompt:
        """A validation sample up to its first answer; or `text`, in the task's words."""
        if text is not None:
            foreign = unknown(self.task.vocabulary, text)
            if foreign:
                raise ConfigError(
                    f"trainer.sample_prompt = {text!r}: {foreign[0]!r} is no word of the task {self.task.name}. "
                    f"Allowed: null, for a problem of the task, or words among {', '.join(self.task.words)}."
                )
            return Prompt(self.tokenizer.encode(text, bos=True), f"{text} ", new_tokens)
        sample = self.task.sample(0, "val", self.seq_len, 0)
        at, length, _ = sample.answers[0]
        right = self.tokenizer.decode(sample.targets[at : at + length])
        ids = [int(i) for i in sample.tokens[: at + 1]]
        return Prompt(ids, f"{self.tokenizer.decode(ids)} ", length, greedy=True, right=right)


def task_of(data: DataConfig) -> Task:
    """The task of a checked configuration with data.source=task."""
    return task_from_plain(data.task)


def task_data(data: DataConfig, given: Tokenizer | None = None) -> TaskData:
    """The data of data.source=task. `given` is the tokenizer that came with given weights: it must be the task's.

    Raises:
        ConfigError: the weights have another vocabulary.
    """
    task = task_of(data)
    tokenizer = word_tokenizer(task.vocabulary)
    if given is not None and given.to_json() != tokenizer.to_json():
        raise ConfigError(
            f"data.task: the weights of init_from have another vocabulary ({given.vocab_size} tokens) than the task "
            f"{task.name} ({tokenizer.vocab_size}). Give weights of the same task and settings."
        )
    assert isinstance(data.held_out, int)
    return TaskData(task, tokenizer, data.seq_len, data.held_out)


def check_task(data: DataConfig) -> None:
    """Raise ConfigError for what does not go with data.source=task."""
    plain: Mapping[str, Any] | None = data.task
    task = task_from_plain(plain)
    if not isinstance(data.held_out, int):
        raise ConfigError(f"data.held_out: {data.held_out} is not allowed with a task. Allowed: a count of samples.")
    if not data.document_mask:
        raise ConfigError(
            "data.document_mask: false cannot take effect with data.source=task, where a row is one sample. "
            "Allowed: true."
        )
    shortest = min(batch_lengths(task, data.seq_len))
    if shortest < task.shortest():
        raise ConfigError(
            f"data.seq_len = {data.seq_len}: batches of {shortest} tokens (data.task.lengths) cannot hold a sample of "
            f"{task.name}, which takes {task.shortest()}. Give a larger seq_len or larger shares."
        )
