"""Loss against length as plain text, for the end of a training run."""

from __future__ import annotations

from collections.abc import Mapping
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


def _line(name: str, cells: list[str]) -> str:
    return f"{name:<16}" + "".join(f"{cell:>13}" for cell in cells)


def _value(row: Mapping[str, Any] | None, signed: bool = False) -> str:
    if row is None:
        return "-"
    if row["value"] is None:
        return row["note"] if row["note"] in ("not defined", "not finite") else "no documents"
    value = round(row["value"], 3) + 0.0  # what rounds to nothing has no minus
    return f"{value:+.3f}" if signed else f"{value:.3f}"
