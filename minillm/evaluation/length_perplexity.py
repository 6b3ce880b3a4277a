"""Suite `length_perplexity`: loss at 1x to 16x the training length, by four protocols over the same documents.

Read `windows.py` for what the protocols are. Why four: with non-overlapping windows alone, a model that cannot use more
than its training length still improves with longer windows, because fewer tokens stand near a window's start. Under
`same_target` the scored tokens are the same at every length, so what changes is the context alone: this is the number
to quote. Every value is a mean over tokens (never of window means), summed in float64, in nats per token.

    rows = measure(model, documents, train_length=256, settings=LengthPerplexitySettings())
    # {"metric": "nll", "protocol": "same_target", "length": 1024, "value": 3.2, "n": 1024, "low": 3.0, "high": 3.4}
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from minillm.errors import ConfigError
from minillm.evaluation.intervals import Estimate, paired_difference, token_mean
from minillm.evaluation.key_tokens import key_tokens
from minillm.evaluation.scoring import LanguageModel, NLLs, score_windows
from minillm.evaluation.settings import LengthPerplexitySettings
from minillm.evaluation.windows import (
    Scored,
    Window,
    from_the_start,
    non_overlapping,
    position_bins,
    same_target,
    strided,
)

Row = dict[str, Any]
NOT_DEFINED = "not defined"
"""The model has no meaning at that length: its table of positions ends before."""
NOT_FINITE = "not finite"
"""The model's losses overflow, or its weights are not numbers."""
START_MARKER = (
    "The start marker (bos) is the first token of each document and stands nowhere else. A window that begins inside a "
    "document begins with its text, as in training; same_target windows all begin inside."
)


class Plan:
    """Which documents are read, and the windows of each (protocol, length), per document.

    Attributes:
        used: indices of the documents that are read: those longer than the longest measured length.
        lengths: measured lengths in tokens; `too_long` those that too few documents exceed.
        scored: (protocol, length) -> per used document, the windows and what is scored in them.
    """

    def __init__(self, sizes: Sequence[int], train_length: int, settings: LengthPerplexitySettings) -> None:
        asked = [multiple * train_length for multiple in settings.lengths]
        for name in ("targets", "stride"):
            value = getattr(settings, name)
            if value is not None and value > asked[0]:
                raise ConfigError(
                    f"suite.length_perplexity.{name} = {value}: must not exceed the shortest length, {asked[0]} tokens."
                )
        # One token more than the start marker and the longest context: see `same_target`.
        enough = [sum(n >= length + 2 for n in sizes) >= settings.min_documents for length in asked]
        self.train_length = train_length
        self.lengths = [length for length, ok in zip(asked, enough, strict=True) if ok]
        self.too_long = [length for length, ok in zip(asked, enough, strict=True) if not ok]
        self.longest = self.lengths[-1] if self.lengths else 0
        long_enough = [i for i, n in enumerate(sizes) if self.lengths and n >= self.longest + 2]
        self.used = long_enough[: settings.max_documents]
        self.scored: dict[tuple[str, int], list[list[Scored]]] = {}
        for length in self.lengths:
            for protocol in settings.protocols:
                self.scored[protocol, length] = [
                    _cut(protocol, i, sizes[i], length, self.longest, train_length, settings) for i in self.used
                ]

    def windows(self) -> set[Window]:
        """Every distinct window that has to be read."""
        return {s.window for cuts in self.scored.values() for document in cuts for s in document}

    def num_tokens(self) -> int:
        return sum(window.length for window in self.windows())


def _cut(
    protocol: str,
    document: int,
    size: int,
    length: int,
    longest: int,
    train_length: int,
    settings: LengthPerplexitySettings,
) -> list[Scored]:
    wanted = settings.document_tokens or longest + longest // 2
    # Whole training lengths, and never less than the longest window: windows then share batches and each other.
    limit = max(longest, min(size - 1, wanted) // train_length * train_length)
    if protocol == "position":
        return [from_the_start(document, length)]
    if protocol == "non_overlapping":
        return non_overlapping(document, limit, length)
    if protocol == "strided":
        return strided(document, limit, length, settings.stride or max(1, length // 2))
    # Ends where the strided windows end, so that their last window is this one, unless that leaves no text before it.
    end = limit if limit > longest else size - 1
    return [same_target(document, end, length, settings.targets or max(1, train_length // 2))]


def measure(
    model: LanguageModel,
    documents: Sequence[np.ndarray],
    train_length: int,
    settings: LengthPerplexitySettings,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
    token_bytes: np.ndarray | None = None,
) -> list[Row]:
    """Rows of the suite: `nll`; under same_target also `nll_change`; `bits_per_byte` of what was scored; and, where
    every scored token is read at every length, `key_nll` and `other_nll`, the same mean over key tokens and the rest.

    Args:
        documents: token ids, each with its start marker in front; those that are too short are left out.
        train_length: tokens the model was trained on at once.
        progress: called with the number of tokens just read; `Plan(...).num_tokens()` is the total.
        token_bytes: bytes of each id, (vocabulary,); None leaves bits per byte out.
    """
    plan = Plan([len(d) for d in documents], train_length, settings)
    distance = settings.key_distance or max(1, train_length // 2)
    keys = [key_tokens(np.asarray(documents[i]), settings.key_ngram, distance) for i in plan.used]
    weights: dict[str, list[np.ndarray]] = {"key_nll": keys, "other_nll": [~key for key in keys]}
    if token_bytes is not None:
        weights["bits_per_byte"] = [token_bytes[documents[i]] for i in plan.used]
    nlls = score_windows(model, documents, plan.windows(), settings.batch_tokens, device, precision, progress)
    rows: list[Row] = []
    for protocol in settings.protocols:
        if protocol == "position":
            rows += _position_rows(plan, nlls)
        else:
            rows += _length_rows(protocol, plan, nlls)
            rows += _weighed_rows(protocol, plan, nlls, weights)
        rows += [
            _row("nll", protocol, length, plan, note=f"not measured: too few documents longer than {length} tokens")
            for length in plan.too_long
        ]
    return rows


def _length_rows(protocol: str, plan: Plan, nlls: NLLs) -> list[Row]:
    """One row per length; under same_target also the change against the shortest length, paired over documents."""
    rows, changes = [], []
    base: tuple[list[float], list[int]] | None = None
    for length in plan.lengths:
        sums, counts, defined = _totals(plan.scored[protocol, length], nlls)
        if not defined:
            rows.append(_row("nll", protocol, length, plan, note=NOT_DEFINED))
            if protocol == "same_target":
                changes.append(_row("nll_change", protocol, length, plan, note=NOT_DEFINED))
            continue
        rows.append(_measured("nll", protocol, length, plan, sums, counts))
        if protocol == "same_target":
            base = base or (sums, counts)
            changes.append(_measured("nll_change", protocol, length, plan, sums, counts, base))
    return rows + changes


def _position_rows(plan: Plan, nlls: NLLs) -> list[Row]:
    """One row per bin of context length, from the longest window at which the model is defined.

    A shorter window is the beginning of a longer one, and a causal model scores it alike, so a model with a position
    table still has numbers up to the table's end.
    """
    if not plan.lengths:
        return []
    usable = [n for n in plan.lengths if _totals(plan.scored["position", n], nlls)[2]]
    rows = []
    for low, high in position_bins(plan.train_length, plan.longest):
        label = f"{low}-{high}"
        if not usable or high > usable[-1]:
            rows.append(_row("nll", "position", high, plan, bin=label, note=NOT_DEFINED))
            continue
        sums, counts = [], []
        for document in plan.scored["position", usable[-1]]:
            nll = nlls[document[0].window]
            assert nll is not None
            sums.append(float(nll[low - 1 : high].sum(dtype=np.float64)))
            counts.append(high - low + 1)
        rows.append(_measured("nll", "position", high, plan, sums, counts, bin=label))
    return rows


def _weighed_rows(protocol: str, plan: Plan, nlls: NLLs, weights: dict[str, list[np.ndarray]]) -> list[Row]:
    """Bits per byte, and the loss of key tokens and of the others, at each length.

    Non-overlapping windows give no key loss: which token stands near a window's start changes with the length.
    """
    rows = []
    for metric, of_document in weights.items():
        if metric != "bits_per_byte" and protocol == "non_overlapping":
            continue
        for length in plan.lengths:
            if metric == "bits_per_byte":
                sums, _, defined = _totals(plan.scored[protocol, length], nlls)
                counts = _totals(plan.scored[protocol, length], nlls, of_document)[1]
                sums = [s / math.log(2) for s in sums]
            else:
                sums, counts, defined = _totals(plan.scored[protocol, length], nlls, of_document)
            if not defined:
                rows.append(_row(metric, protocol, length, plan, note=NOT_DEFINED))
            elif sum(counts) == 0:
                rows.append(_row(metric, protocol, length, plan, note="no such token"))
            else:
                rows.append(_measured(metric, protocol, length, plan, sums, counts))
    return rows


def _totals(
    documents: list[list[Scored]], nlls: NLLs, weights: list[np.ndarray] | None = None
) -> tuple[list[float], list[int], bool]:
    """Per document: sum of NLLs (float64) and tokens scored; False where some window is not defined.

    With `weights`, one number per token of each document, both sums are weighted by that of the predicted token.
    """
    sums, counts = [], []
    for place, scored in enumerate(documents):
        total, count = 0.0, 0
        for window, first in scored:
            nll = nlls[window]
            if nll is None:
                return [], [], False
            if weights is None:
                total += float(nll[first:].sum(dtype=np.float64))
                count += window.length - first
                continue
            weight = weights[place][window.start + first + 1 : window.start + window.length + 1]
            total += float((nll[first:] * weight).sum(dtype=np.float64))
            count += int(weight.sum())
        sums.append(total)
        counts.append(count)
    return sums, counts, True


def _measured(
    metric: str,
    protocol: str,
    length: int,
    plan: Plan,
    sums: list[float],
    counts: list[int],
    base: tuple[list[float], list[int]] | None = None,
    bin: str | None = None,
) -> Row:
    """The row of a mean, or against `base` of a paired difference of means."""
    if not np.isfinite([*sums, *(base[0] if base else [])]).all():
        return _row(metric, protocol, length, plan, bin=bin, note=NOT_FINITE)
    if base is not None:
        return _row(metric, protocol, length, plan, paired_difference(sums, counts, *base), bin=bin)
    return _row(metric, protocol, length, plan, token_mean(sums, counts), sums, counts, bin=bin)


def _row(
    metric: str,
    protocol: str,
    length: int,
    plan: Plan,
    estimate: Estimate | None = None,
    sums: list[float] | None = None,
    counts: list[int] | None = None,
    bin: str | None = None,
    note: str | None = None,
) -> Row:
    value = estimate or Estimate(None, 0, None, None)
    return {
        "metric": metric,
        "protocol": protocol,
        "length": length,
        "multiple": length / plan.train_length,
        "depth": None,
        "bin": bin,
        **value._asdict(),
        "documents": len(plan.used) if estimate else 0,
        "note": note,
        # Per document, in the order of settings.documents: what paired comparisons between runs are made of.
        "document_nll": sums,
        "document_tokens": counts,
    }
