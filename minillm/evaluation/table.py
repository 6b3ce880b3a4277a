"""Loss or accuracy against length as plain text, for the end of a training run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

NAMES = {
    "same_target": "same targets",
    "non_overlapping": "non-overlapping",
    "strided": "strided",
    "position": "by position",
}


def plain_length_table(result: Mapping[str, Any]) -> str:
    """A `length_perplexity` result as a table: a line per protocol, a column per length.

    "by position" has at each length the tokens whose context is longer than the length before it.
    """
    rows, settings = result["rows"], result["settings"]
    lengths = sorted({r["length"] for r in rows if r["protocol"] != "position"})
    train_length = settings["train_length"]
    if not any(r["value"] is not None for r in rows):
        return (
            f"loss by length: not measured, as fewer than {settings['min_documents']} held-out documents are longer "
            f"than {min(lengths, default=train_length)} tokens (eval.py takes others: documents=PATH)"
        )
    lengths = lengths or sorted({r["length"] for r in rows if r["length"] >= train_length})
    lines = [
        f"loss by length, nats per token, {len(settings['documents'])} held-out documents "
        f"(training length {train_length} tokens)",
        _line("context, tokens", [str(n) for n in lengths]),
        _line("", [f"{n / train_length:g}x" for n in lengths]),
    ]
    for protocol in settings["protocols"]:
        by_length = {r["length"]: r for r in rows if r["protocol"] == protocol and r["metric"] == "nll"}
        lines.append(_line(NAMES[protocol], [_value(by_length.get(n)) for n in lengths]))
        changes = {r["length"]: r for r in rows if r["protocol"] == protocol and r["metric"] == "nll_change"}
        if changes:
            lines.append(_line("  change", [_value(changes.get(n), signed=True) for n in lengths]))
    return "\n".join(lines)


def plain_recall_table(result: Mapping[str, Any]) -> str:
    """A task's result as a table: accuracy and exact match, a column per length.

    A model that has not learned the task at its training length is called undertrained: what it does beyond says
    nothing of its plan.
    """
    settings = result["settings"]
    rows = [r for r in result["rows"] if r["depth"] is None and r["reach"] is None]
    lengths = sorted({r["length"] for r in rows})
    learned = learnt(rows)
    lines = [
        f"{settings['task']['name']} by length, {settings['samples']} samples "
        f"(training length {settings['train_length']} tokens)",
        _line("tokens", [str(n) for n in lengths]),
        _line("", [f"{n / settings['train_length']:g}x" for n in lengths]),
    ]
    for metric, name in (("token_accuracy", "answer tokens"), ("exact", "whole samples")):
        by_length = {r["length"]: r for r in rows if r["metric"] == metric}
        cells = [_value(by_length.get(n)) if learned or n == lengths[0] else "" for n in lengths]
        lines.append(_line(name, cells).rstrip())
    if not learned:
        lines.append(f"undertrained: below {LEARNT:.0%} at the training length, so longer samples say nothing")
    return "\n".join(lines)


LEARNT = 0.98
"""Share of answer tokens, at the training length, from which a model counts as having learned its task."""


def learnt(rows: Sequence[Mapping[str, Any]]) -> bool:
    """Whether these rows of a task's suite are of a model that learned it."""
    first = next(
        (
            r
            for r in rows
            if r["metric"] == "token_accuracy" and r["multiple"] == 1 and r["depth"] is r["reach"] is None
        ),
        None,
    )
    return first is not None and first["value"] is not None and first["value"] >= LEARNT


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<16}" + "".join(f"{cell:>13}" for cell in cells)


def _value(row: Mapping[str, Any] | None, signed: bool = False) -> str:
    if row is None:
        return "-"
    if row["value"] is None:
        return row["note"] if row["note"] in ("not defined", "not finite") else "no documents"
    value = round(row["value"], 3) + 0.0  # what rounds to nothing has no minus
    return f"{value:+.3f}" if signed else f"{value:.3f}"
