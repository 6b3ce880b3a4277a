"""Suite `attention`: where attention goes, by layer, head and kind, within and beyond the training length.

The protocol is that of arXiv 2501.18795 (mass by segment from the question's rows, entropy in bits), with what makes it
comparable between lengths and plans: mass against an even spread, entropy against its maximum, sinks only where the
first token is visible, retrieval heads with a causal check, and what the stream knows of position.

    rows = measure(model, train_length=256, settings=AttentionSettings(), source=Text(documents))
    # {"metric": "segment_mass", "length": 1024, "layer": null, "kind": "global", "segment": "needle", "value": ...}

Rows of one length come from one pass over its cases (cases.py says what these are, probe.py how rows are made).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from minillm.errors import PositionUndefined
from minillm.evaluation.attention.cases import COPIED_SPAN, Case, copied_span, recall
from minillm.evaluation.attention.collect import Reading, collect
from minillm.evaluation.attention.knockout import knockout
from minillm.evaluation.attention.position_probe import position_rows
from minillm.evaluation.attention.similarity import Keeper
from minillm.evaluation.attention.summary import Row, row, summarise
from minillm.evaluation.memory import out_of_memory
from minillm.evaluation.settings import AttentionSettings
from minillm.model.decoder import Decoder

if TYPE_CHECKING:
    from minillm.data.tasks.base import Task

NOT_DEFINED = "not defined"
"""The model has no meaning at that length: its table of positions ends before."""


class Source(Protocol):
    """Where cases come from."""

    @property
    def name(self) -> str: ...

    def cases(self, length: int, again: bool = False) -> list[Case]:
        """Cases of one length; `again` asks for other ones of the same kind. None where there are too few."""
        ...


@dataclass(frozen=True)
class Text:
    """Held-out documents with a span repeated at the end."""

    documents: Sequence[np.ndarray]
    settings: AttentionSettings
    name: str = COPIED_SPAN

    def used(self, length: int) -> list[int]:
        """Indices of the documents that are read at a length."""
        long = [i for i, ids in enumerate(self.documents) if len(ids) >= length]
        return long[: self.settings.samples] if len(long) >= self.settings.min_documents else []

    def cases(self, length: int, again: bool = False) -> list[Case]:
        chosen = [self.documents[i] for i in self.used(length)]
        return copied_span(chosen, length, self.settings.span, per_document=2 if again else 1, seed=int(again))


@dataclass(frozen=True)
class Recall:
    """Test samples of the recall task that the run was trained on."""

    task: Task
    settings: AttentionSettings

    @property
    def name(self) -> str:
        return f"test samples of the task {self.task.name}"

    def cases(self, length: int, again: bool = False) -> list[Case]:
        count = self.settings.recall_samples
        both = recall(self.task, length, 3 * count, self.settings.span)
        return both[count:] if again else both[:count]


def measure(
    model: Decoder,
    train_length: int,
    settings: AttentionSettings,
    source: Source,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Rows of the suite; every one says its `source` and its length as a `multiple` of the training length.

    Args:
        model: in eval mode, on `device`. A length that does not fit its memory is said to have no rows.
        progress: called with the number of tokens just read; `num_tokens` is the total.
    """
    reading = Reading(settings.batch_tokens, device, precision, progress or (lambda tokens: None))
    rows: list[Row] = []
    for multiple in settings.lengths:
        length = multiple * train_length
        cases = source.cases(length)
        if not cases:
            rows.append(row("segment_mass", length, note=f"not measured: too few documents of {length} tokens"))
            continue
        try:
            rows += _at_length(model, length, settings, source, cases, reading, first=multiple == settings.lengths[0])
        except PositionUndefined:
            rows.append(row("segment_mass", length, note=NOT_DEFINED))
        except (MemoryError, RuntimeError) as error:
            if not out_of_memory(error):
                raise
            rows.append(row("segment_mass", length, note=f"not measured: {length} tokens do not fit the memory"))
    return [{**r, "multiple": r["length"] / train_length, "source": source.name} for r in rows]


def num_tokens(train_length: int, settings: AttentionSettings, source: Source) -> int:
    """Tokens that `measure` reads."""
    total = 0
    for multiple in settings.lengths:
        total += sum(len(case.tokens) for case in source.cases(multiple * train_length))
        if multiple == settings.lengths[0]:
            again = source.cases(multiple * train_length, again=True)
            total += (2 + settings.knockout_draws) * sum(len(case.tokens) for case in again)
    return total


def _at_length(
    model: Decoder, length: int, settings: AttentionSettings, source: Source, cases: list[Case], reading: Reading,
    first: bool,
) -> list[Row]:  # fmt: skip
    """One pass over the cases; at the first length also knockout, and the rows by which runs are compared."""
    specs = model.layer_specs
    keeper = Keeper(cases, settings.similarity_documents, settings.similarity_rows, settings.similarity_tokens)
    found = collect(model, cases, settings.rows, settings.positions, reading, keeper.also if first else None)
    rows = summarise(found, specs, length, settings.sink_thresholds)
    rows += position_rows(found, specs, length, settings.ridge)
    if first:
        rows += keeper.rows(length, {spec.index: spec.kind for spec in specs})
        if sum(found.answer_rows):
            scores = {s.index: found.layers[s.index].stacked("near").sum(axis=0) for s in specs}
            others = source.cases(length, again=True)
            rows += knockout(model, others, scores, settings.knockout_heads, settings.knockout_draws, length, reading)
    return rows
