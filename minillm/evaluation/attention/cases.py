"""What the suite reads: rows of tokens in which it is known what has to be looked up, and where it stands.

Text (`copied_span`): the beginning of a held-out document whose last tokens are a random span of that same text, once
more. The first occurrence is the needle, the second the question and its completion (qc): from its second token on each
of its tokens can be had by looking up what followed the last one before. This needs no vocabulary and no training, and
is what induction heads do (Olsson et al. 2022, arXiv 2209.11895); it is not the needle task of the RNoPE-SWA paper.
Everything before the copy is untouched text, on which entropy, recency and sinks are measured in the same pass.

Recall tasks (`recall`): the task's own test samples, whose answers say where their evidence stands. A needle there is
the evidence with one token on either side: its key, and the token after it, where small models gather what they read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from minillm.data.tasks.base import Task

SEGMENTS = ("begin", "needle", "context", "qc")
BEGIN = 10
"""Tokens of the segment `begin`, as in arXiv 2501.18795."""
COPIED_SPAN = "a span of the document repeated at its end"


@dataclass(frozen=True)
class Case:
    """One row of tokens. Indices count from its first token."""

    tokens: np.ndarray
    """(T,) int64."""
    cluster: int
    """What is resampled as one: the document, or the sample."""
    needles: tuple[tuple[int, int], ...]
    """First index and length of each thing that is looked up."""
    question: int
    """First token of the question and its completion; T where there is none."""
    rows: np.ndarray
    """(R,) rows that emit a token to be copied, rising."""
    needle_of: np.ndarray
    """(R,) which of `needles` the row looks up."""
    copied_from: np.ndarray
    """(R,) index of the token to be copied."""
    answers: np.ndarray
    """(R,) the token to be emitted."""

    def categories(self) -> np.ndarray:
        """(T,) of each key: 0 context, 1 begin, 2 qc, 3 + i needle i. A needle among the first tokens is a needle."""
        out = np.zeros(len(self.tokens), np.int64)
        out[:BEGIN] = 1
        out[self.question :] = 2
        for i, (start, length) in enumerate(self.needles):
            out[start : start + length] = 3 + i
        return out

    def even_rows(self, count: int, reach: int) -> np.ndarray:
        """(count,) rows spread evenly over the text before the question, past its first tenth and past the longest
        window's first `reach` tokens (where that leaves half of the text), so that full and local layers are compared
        where windows are full."""
        length = min(self.question, len(self.tokens))
        first = max(length // 10, 1)
        if reach <= length // 2:
            first = max(first, reach)
        return np.linspace(min(first, length - 1), length - 1, count).round().astype(np.int64)


def copied_span(
    documents: Sequence[np.ndarray], length: int, span: int, per_document: int = 1, seed: int = 0
) -> list[Case]:
    """`per_document` cases of `length` tokens from each document, which has `length` tokens at least. A span is a
    quarter of the length at most.

    Needles stand at depths spread evenly over all cases: case i at (i + 1/2) / count of what is possible, in a shuffled
    order that is the same for every model of the same tokenizer.
    """
    count = len(documents) * per_document
    span = max(2, min(span, length // 4))
    text = length - span
    first = min(BEGIN, text - span)
    depths = (np.random.default_rng(seed).permutation(count) + 0.5) / max(count, 1)
    cases = []
    for i, depth in enumerate(depths):
        start = first + int(depth * (text - span - first))
        ids = np.asarray(documents[i // per_document][:text], np.int64)
        tokens = np.concatenate([ids, ids[start : start + span]])
        ahead = np.arange(1, span)
        cases.append(
            Case(
                tokens=tokens,
                cluster=i // per_document,
                needles=((start, span),),
                question=text,
                rows=text + ahead - 1,
                needle_of=np.zeros(span - 1, np.int64),
                copied_from=start + ahead,
                answers=tokens[text + ahead],
            )
        )
    return cases


def recall(task: Task, length: int, count: int, rows: int, seed: int = 0) -> list[Case]:
    """Test samples `0 .. count - 1` of a task; of more than `rows` answer tokens, so many spread evenly.

    An answer that no single place holds (`evidence` is None) is no needle; its tokens only belong to qc.
    """
    cases = []
    for index in range(count):
        sample = task.sample(seed, "test", length, index)
        held = [a for a in sample.answers if a.evidence is not None]
        at = np.asarray([a.at + j for a in held for j in range(a.length)], np.int64)
        of = np.asarray([i for i, a in enumerate(held) for _ in range(a.length)], np.int64)
        source = np.asarray([int(a.evidence or 0) + j for a in held for j in range(a.length)], np.int64)
        order = np.argsort(at, kind="stable")
        if len(order) > rows:
            order = order[np.linspace(0, len(order) - 1, rows).round().astype(np.int64)]
        cases.append(
            Case(
                tokens=np.asarray(sample.tokens, np.int64),
                cluster=index,
                needles=tuple(_with_sides(int(a.evidence or 0), a.length) for a in held),
                question=min((a.at for a in sample.answers), default=len(sample.tokens)),
                rows=at[order],
                needle_of=of[order],
                copied_from=source[order],
                answers=np.asarray(sample.targets, np.int64)[at[order]],
            )
        )
    return cases


def _with_sides(evidence: int, length: int) -> tuple[int, int]:
    first = max(evidence - 1, 0)
    return first, evidence + length + 1 - first
