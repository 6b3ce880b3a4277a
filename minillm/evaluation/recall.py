"""Suites named after tasks (`needle`, `mqar`, `copy`, ...): is the answer still right past the training length?

A run is measured on the task that it was trained on, on test samples at 1x, 2x, ... its training length. What counts
as an answer token is right if it is the argmax behind the true tokens before it. An answer is exact if all its tokens
are right: greedy decoding gives the answer in exactly these cases, as until its first wrong token it has read the same
text. The same holds of all answers of a sample together.

    rows = measure(model, task, train_length=96, settings=RecallSettings())

Rows: `token_accuracy` and `exact` per length, over whole samples (`exact`: all answers of a sample), by depth of the
needle and by whether the needle lies within the reach of the stacked windows (`exact`: a single answer); `nll`, nats
per answer token: minus the log-probability of the gold token, which is the primary number, as it still moves where
accuracy stands at 0 or 1. Rows over whole samples keep their sums per sample, from which seeds and runs are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from minillm.config.layers import LayerSpec
from minillm.data.tasks.base import Answer, Split, Task
from minillm.data.tasks.batches import stack
from minillm.data.windows import IGNORED
from minillm.errors import PositionUndefined
from minillm.evaluation.intervals import Estimate, clustered_share, token_mean
from minillm.evaluation.scoring import LanguageModel, autocast
from minillm.evaluation.settings import RecallSettings

Row = dict[str, Any]
NOT_DEFINED = "not defined"
NOT_FINITE = "not finite"


@dataclass(frozen=True)
class Scored:
    """What became of one answer."""

    sample: int
    answer: Answer
    right: np.ndarray
    """Per token, bool."""
    nll: float
    """Sum over its tokens."""

    def depth(self, first_question: int) -> float:
        """Where its needle lies among what comes before the first question, 0 to below 1."""
        assert self.answer.evidence is not None
        return self.answer.evidence / first_question

    @property
    def distance(self) -> int:
        """Tokens from where the answer is given back to where it is read."""
        assert self.answer.evidence is not None
        return self.answer.at - self.answer.evidence


def reach(specs: Sequence[LayerSpec]) -> int | None:
    """How far back anything can be read through all layers together, None for any distance.

    A layer that sees w tokens, its own included, hands on what lies w - 1 further back.
    """
    parts = [spec.reach for spec in specs]
    return None if None in parts else sum(part - 1 for part in parts if part is not None)


def total_tokens(train_length: int, settings: RecallSettings) -> int:
    """What `measure` reports to its callback in all."""
    return sum(multiple * train_length for multiple in settings.lengths) * settings.samples


def measure(
    model: LanguageModel,
    task: Task,
    train_length: int,
    settings: RecallSettings,
    specs: Sequence[LayerSpec] = (),
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
    split: Split = "test",
) -> list[Row]:
    """Rows of the suite, see above.

    Args:
        model: in eval mode, on `device`.
        specs: the model's layer plan, for what its stacked windows can reach; () leaves that out.
        progress: called with the number of tokens just read.
    """
    rows: list[Row] = []
    far = reach(specs) if specs else None
    for multiple in settings.lengths:
        length = multiple * train_length
        common = {"task": task.name, "length": length, "multiple": multiple, "chance": task.chance(length)}
        try:
            scored = _score(model, task, length, settings, device, precision, progress, split)
        except PositionUndefined:
            rows += [_row(metric, common, None, note=NOT_DEFINED) for metric in ("token_accuracy", "exact", "nll")]
            continue
        rows += _rows(scored, common, unit="sample")
        if not np.isfinite([s.nll for s in scored]).all():
            rows.append(_row("nll", common, None, note=NOT_FINITE))
        else:
            nats = _by_sample(scored, lambda s: (s.nll, len(s.right)))
            rows.append(_row("nll", {**common, "unit": "token"}, token_mean(*nats), by_sample=nats))
        placed = [s for s in scored if s.answer.evidence is not None]
        first = {s.sample: s.answer.at for s in reversed(placed)}
        for number in range(settings.depths if placed else 0):
            low, high = number / settings.depths, (number + 1) / settings.depths
            inside = [s for s in placed if low <= s.depth(first[s.sample]) < high]
            rows += _rows(inside, {**common, "depth": (low + high) / 2}, unit="answer")
        if far is not None and placed:
            for name, beyond in (("within", False), ("beyond", True)):
                inside = [s for s in placed if (s.distance > far) == beyond]
                rows += _rows(inside, {**common, "reach": name, "reach_tokens": far}, unit="answer")
    return rows


def _rows(scored: Sequence[Scored], common: Row, unit: str) -> list[Row]:
    """Token accuracy and exact match of these answers, clustered by sample."""
    tokens = _by_sample(scored, lambda s: (float(s.right.sum()), len(s.right)))
    if unit == "sample":
        by_sample: dict[int, bool] = {}
        for s in scored:
            by_sample[s.sample] = by_sample.get(s.sample, True) and bool(s.right.all())
        exact = [float(v) for v in by_sample.values()], [1] * len(by_sample)
    else:
        exact = _by_sample(scored, lambda s: (float(s.right.all()), 1))
    whole = unit == "sample"
    return [
        _row(
            "token_accuracy", {**common, "unit": "token"}, clustered_share(*tokens), by_sample=tokens if whole else None
        ),
        _row("exact", {**common, "unit": unit}, clustered_share(*exact), by_sample=exact if whole else None),
    ]


def _by_sample(
    scored: Iterable[Scored], of_one: Callable[[Scored], tuple[float, int]]
) -> tuple[list[float], list[int]]:
    """Sums and counts per sample: answers of one sample share its text, so they are not independent."""
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for s in scored:
        value, count = of_one(s)
        sums[s.sample] = sums.get(s.sample, 0.0) + value
        counts[s.sample] = counts.get(s.sample, 0) + count
    return list(sums.values()), list(counts.values())


def _row(
    metric: str,
    common: Row,
    estimate: Estimate | None,
    note: str | None = None,
    by_sample: tuple[list[float], list[int]] | None = None,
) -> Row:
    value = estimate or Estimate(None, 0, None, None)
    if value.n == 0 and note is None:
        note = "no such answer"
    kept = {} if by_sample is None else {"sample_sums": by_sample[0], "sample_counts": by_sample[1]}
    return {"metric": metric, "depth": None, "reach": None, **common, **value._asdict(), "note": note, **kept}


@torch.inference_mode()
def _score(
    model: LanguageModel,
    task: Task,
    length: int,
    settings: RecallSettings,
    device: torch.device | str,
    precision: str,
    progress: Callable[[int], None] | None,
    split: Split,
) -> list[Scored]:
    """Every answer of the first `settings.samples` samples of `length` tokens of the split."""
    scored = []
    rows = max(1, settings.batch_tokens // length)
    for start in range(0, settings.samples, rows):
        indices = range(start, min(start + rows, settings.samples))
        samples = [task.sample(0, split, length, i) for i in indices]
        batch = stack(samples, max(len(sample.tokens) for sample in samples))
        with autocast(device, precision):
            hidden = model.hidden(batch["tokens"].to(device))
        asked = batch["targets"] != IGNORED
        # Outside of autocast, and for the answers alone.
        logits = model.logits(hidden[asked.to(device)].float()[None])[0].float().cpu()
        targets = batch["targets"][asked]
        right = torch.zeros_like(asked).masked_scatter(asked, logits.argmax(dim=-1) == targets).numpy()
        nll = torch.zeros(asked.shape).masked_scatter(asked, F.cross_entropy(logits, targets, reduction="none")).numpy()
        for row, (index, sample) in enumerate(zip(indices, samples, strict=True)):
            for answer in sample.answers:
                span = slice(answer.at, answer.at + answer.length)
                scored.append(Scored(index, answer, right[row, span], float(nll[row, span].sum(dtype=np.float64))))
        if progress is not None:
            progress(length * len(samples))
    return scored
