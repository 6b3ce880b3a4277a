"""The tables of a report. Each returns a `Table`, or None where nothing of it was measured."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from minillm.evaluation.intervals import paired_difference
from minillm.report import recall, wording
from minillm.report.blocks import Table
from minillm.report.collect import Row, Subject
from minillm.report.groups import groups, over_rows, several

PERPLEXITY = "length_perplexity"
PROTOCOL_NAMES = {
    "same_target": "the same targets under growing context",
    "non_overlapping": "non-overlapping windows",
    "strided": "strided windows",
}


SPEED_NAMES = {
    "train_tokens_per_second": "Training speed by sequence length: forward and backward, without the optimiser",
    "decode_tokens_per_second": "Decoding speed of one sequence by how much its cache holds",
}


def card(subjects: Sequence[Subject]) -> Table:
    """What each run is: size, budget, lengths, arithmetic; seeds of a variant that differ in nothing else share a
    line."""
    rows = []
    for s in subjects:
        model, data = s.config.model, s.config.data
        windows = sorted({spec.reach for spec in model.layers if spec.reach is not None})
        tokens = s.evaluation.step * data.batch_size * data.seq_len
        rows.append(
            [
                s.label,
                wording.count(s.evaluation.num_parameters),
                f"{model.num_hidden_layers} x {model.hidden_size}",
                str(s.train_length),
                ", ".join(map(str, windows)) or "none",
                wording.count(tokens),
                f"{s.config.optim.lr:g}",
                str(s.config.seed),
                str(s.evaluation.decided.get("precision", "?")),
                _backends(s),
            ]
        )
    header = ["run", "parameters", "layers x width", "training length", "window", "tokens", "lr", "seed", "arithmetic"]
    by_label = {row[0]: row for row in rows}
    merged = []
    for group in groups(subjects):
        own = [by_label[s.label] for s in subjects if s.variant == group.variant]
        if len({(*row[1:7], *row[8:]) for row in own}) == 1:
            own = [[group.label, *own[0][1:7], ", ".join(dict.fromkeys(row[7] for row in own)), *own[0][8:]]]
        merged += own
    return Table(
        [*header, "attention backends"], merged, "The runs. Lengths and windows in tokens.", frozenset({0, 8, 9})
    )


def _backends(subject: Subject) -> str:
    used = Counter(subject.evaluation.decided.get("backends") or [])
    return ", ".join(f"{name} ({n})" for name, n in used.items()) or "?"


def headline(subjects: Sequence[Subject]) -> Table | None:
    """The few numbers that a reader looks for first. No cell is marked as best: the intervals say what may be."""
    far = [n for n in _multiples(subjects) if n > 1]
    shown = [n for n in far if n in (4, far[-1])] if far else []
    header = ["run", "held-out loss", "bits per byte", "same targets, 1x", *(f"change at {n:g}x" for n in shown)]
    recalled = recall.quoted(subjects)
    header += [f"recall at {multiple:g}x" for multiple in recalled]
    header += ["training tokens/s", "decoding tokens/s", "KV cache, MiB"]
    rows = []
    for s in subjects:
        longest = max((r["length"] for r in s.rows("cost", "decode_tokens_per_second")), default=0)
        cells = [
            s.label,
            wording.number(s.last("final/loss", "val/loss")),
            wording.number(s.last("final/bits_per_byte", "val/bits_per_byte")),
            wording.loss(s.row(PERPLEXITY, "nll", s.train_length, protocol="same_target"), interval=False),
        ]
        for n in shown:
            length = round(n * s.train_length)
            cells.append(wording.loss(s.row(PERPLEXITY, "nll_change", length, protocol="same_target"), signed=True))
        cells += [recall.at(s, multiple) for multiple in recalled]
        cells += [
            wording.speed(_without_interval(s.row("cost", "train_tokens_per_second", s.train_length))),
            wording.speed(_without_interval(s.row("cost", "decode_tokens_per_second", longest))),
            wording.mebibytes(s.row("cost", "kv_bytes", longest, kind="measured")),
        ]
        rows.append(cells)
    lengths = sorted({r["multiple"] for s in subjects for r in _cost_multiples(s)})
    at = f"{lengths[-1]:g}x" if lengths else "the longest length"
    # A column of dashes is of a suite that was not asked for.
    kept = [i for i in range(len(header)) if i == 0 or any(row[i] != wording.NOTHING for row in rows)]
    if len(kept) == 1:
        return None
    header, rows = [header[i] for i in kept], [[row[i] for i in kept] for row in rows]
    return Table(
        header,
        rows,
        "Losses in nats per token; held-out loss over the whole held-out set in windows of the training length. "
        "Changes are of the loss on the same target tokens when their context grows from 1x the training length, with "
        f"95 % intervals over documents{_n_text(subjects, 'same_target')}. Training speed at 1x; decoding speed and KV "
        f"cache (one sequence) at {at}.",
    )


def _cost_multiples(subject: Subject) -> list[Row]:
    rows = subject.rows("cost", "decode_tokens_per_second")
    return [{"multiple": r["length"] / subject.train_length} for r in rows]


def _without_interval(row: Row | None) -> Row | None:
    return None if row is None else {**row, "low": None, "high": None}


def training(subjects: Sequence[Subject]) -> Table | None:
    """Where training ended."""
    if not any(s.metrics for s in subjects):
        return None
    rows = []
    for s in subjects:
        _, seconds, _ = s.curve("train/loss")
        speeds = sorted(s.curve("train/tokens_per_second")[2])
        rows.append(
            [
                s.label,
                str(s.evaluation.step),
                wording.number(s.last("train/loss")),
                wording.number(s.last("final/loss", "val/loss")),
                wording.number(s.last("final/bits_per_byte", "val/bits_per_byte")),
                wording.number(seconds[-1] / 60 if seconds else None, 1),
                f"{speeds[len(speeds) // 2]:,.0f}" if speeds else wording.NOTHING,
            ]
        )
    header = ["run", "steps", "training loss", "held-out loss", "bits per byte", "minutes", "tokens/s"]
    return Table(header, rows, "The end of training. Training loss of the last logged update; speed is the median.")


def by_length(subjects: Sequence[Subject], protocol: str) -> Table | None:
    """Loss of one protocol at each length."""
    return _over_multiples(
        subjects,
        lambda s, length: wording.loss(s.row(PERPLEXITY, "nll", length, protocol=protocol)),
        any(s.rows(PERPLEXITY, "nll", protocol=protocol) for s in subjects),
        f"Loss, {PROTOCOL_NAMES[protocol]}: nats per token [95 % interval over documents]"
        f"{_n_text(subjects, protocol)}.",
    )


def against_first(subjects: Sequence[Subject]) -> Table | None:
    """Same-target loss minus that of the first run, paired over documents; None where the runs read other tokens, and
    where there are several seeds: runs are then compared seed by seed (`minillm.report.seeds`)."""
    if len(subjects) < 2 or several(subjects):
        return None
    first = subjects[0]
    digests = {s.settings(PERPLEXITY).get("documents_digest") for s in subjects}
    if len(digests) > 1 or digests == {None} or len({s.train_length for s in subjects}) > 1:
        return None

    def cell(s: Subject, length: int) -> str:
        own, base = (x.row(PERPLEXITY, "nll", length, protocol="same_target") for x in (s, first))
        if own is None or base is None or own["value"] is None or base["value"] is None:
            return wording.loss(own if own is None or own["value"] is None else base)
        if own["document_tokens"] != base["document_tokens"]:
            return "other tokens"
        keys = ("document_nll", "document_tokens")
        return wording.loss(paired_difference(*(own[k] for k in keys), *(base[k] for k in keys))._asdict(), signed=True)

    return _over_multiples(
        subjects[1:],
        cell,
        bool(first.rows(PERPLEXITY, "nll", protocol="same_target")),
        f"Loss minus that of {first.label} on the same target tokens and context: nats per token [95 % interval, "
        "paired over documents]. Below zero is better than it.",
    )


def by_position(subjects: Sequence[Subject]) -> Table | None:
    """A line per bin of context, a column per run, or variant of several seeds: bins differ in their text, so the eye
    should go along a line."""
    bins = list(dict.fromkeys((r["multiple"], r["bin"]) for s in subjects for r in _positions(s)))
    if not bins:
        return None
    shared = len({s.train_length for s in subjects}) == 1
    found = groups(subjects)
    rows = []
    for multiple, name in sorted(bins):

        def pick(s: Subject, multiple: float = multiple, name: str = name) -> Row | None:
            own = [r for r in _positions(s) if r["multiple"] == multiple and (shared or r["bin"] == name)]
            return own[0] if own else None

        cells = [f"{name}" if shared else f"to {multiple:g}x"]
        for group in found:
            own = [pick(s) for s in group.subjects]
            if len(own) == 1 or any(row is None or row["value"] is None for row in own):
                cells.append(wording.loss(min(own, key=lambda row: row is not None and row["value"] is not None)))
                continue
            mean = over_rows(group.subjects, pick)
            cells.append("documents differ" if mean is None else wording.loss(mean._asdict()))
        if cells not in rows:
            rows.append(cells)
    over = "documents; of several seeds, their mean, over seeds and documents" if several(subjects) else "documents"
    return Table(
        ["tokens of context", *(group.label for group in found)],
        rows,
        f"Loss by position: nats per token [95 % interval over {over}]. n is the bin's width times the documents.",
    )


def _positions(subject: Subject) -> list[Row]:
    """Rows that have a bin: a length that too few documents reach has none."""
    return [r for r in subject.rows(PERPLEXITY, "nll", protocol="position") if r["bin"] is not None]


def speeds(subjects: Sequence[Subject], metric: str) -> Table | None:
    """Training or decoding speed at each length."""
    machines = sorted({f"{m['machine']}, {m['threads']} threads" for s in subjects if (m := s.settings("cost"))})
    return _over_multiples(
        subjects,
        lambda s, length: wording.speed(s.row("cost", metric, length)),
        any(s.rows("cost", metric) for s in subjects),
        f"{SPEED_NAMES[metric]}. Tokens per second, median [quartiles of the repeats], on {'; '.join(machines)}.",
        suite="cost",
    )


def cache_bytes(subjects: Sequence[Subject]) -> Table | None:
    """Bytes of the KV cache, measured, and by the formula in brackets."""

    def cell(s: Subject, length: int) -> str:
        measured, formula = (s.row("cost", "kv_bytes", length, kind=k) for k in ("measured", "formula"))
        if measured is None or measured["value"] is None:
            return wording.loss(measured)
        return f"{wording.mebibytes(measured)} ({wording.mebibytes(formula)})"

    return _over_multiples(
        subjects,
        cell,
        any(s.rows("cost", "kv_bytes") for s in subjects),
        "KV cache of one sequence in MiB: measured (by the formula of the layer plan).",
        suite="cost",
    )


def _over_multiples(
    subjects: Sequence[Subject],
    cell: Callable[[Subject, int], str],
    measured: bool,
    caption: str,
    suite: str = PERPLEXITY,
) -> Table | None:
    """A line a run, a column for each multiple of the training length."""
    if not measured:
        return None
    multiples = _multiples(subjects, suite)
    shared = len({s.train_length for s in subjects}) == 1
    header = [f"{m:g}x ({round(m * subjects[0].train_length)})" if shared else f"{m:g}x" for m in multiples]
    rows = [[s.label, *(cell(s, round(m * s.train_length)) for m in multiples)] for s in subjects]
    return Table(["run", *header], rows, caption)


def _multiples(subjects: Sequence[Subject], suite: str = PERPLEXITY) -> list[float]:
    """The lengths asked for, as multiples of the training length."""
    return sorted({float(n) for s in subjects for n in s.settings(suite).get("lengths", [])})


def _n_text(subjects: Sequence[Subject], protocol: str) -> str:
    """``; n = 1,024 tokens of 8 documents``, where all runs agree on it."""
    counts: set[tuple[Any, Any]] = {
        (r["n"], r["documents"])
        for s in subjects
        for r in s.rows(PERPLEXITY, "nll", protocol=protocol)
        if r["value"] is not None
    }
    if len(counts) != 1:
        return ""
    ((n, documents),) = counts
    return f"; n = {n:,} tokens of {documents} documents"
