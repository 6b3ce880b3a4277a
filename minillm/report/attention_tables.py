"""The tables of the suite `attention`. Each is a `Table`, or None where nothing of it was measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from minillm.evaluation.attention.cases import SEGMENTS
from minillm.evaluation.attention.collect import NEAR
from minillm.evaluation.attention.similarity import between_heads, unpack
from minillm.report import wording
from minillm.report.attention_figures import ATTENTION, kinds, lengths, name
from minillm.report.blocks import Table
from minillm.report.collect import Row, Subject


def _row(subject: Subject, metric: str, multiple: float, **where: Any) -> Row | None:
    where = {"layer": None, "head": None, **where}
    return next(iter(subject.rows(ATTENTION, metric, multiple=multiple, **where)), None)


def _number(row: Row | None, digits: int = 3) -> str:
    if row is None or row["value"] is None:
        return wording.NOTHING
    return wording.number(row["value"] + 0.0, digits)


def _length(subjects: Sequence[Subject], multiple: float) -> str:
    sizes = {round(s.train_length * multiple) for s in subjects}
    return f"{multiple:g}x ({sizes.pop()})" if len(sizes) == 1 else f"{multiple:g}x"


def _sources(subjects: Sequence[Subject]) -> str:
    names = dict.fromkeys(r["source"] for s in subjects for r in s.rows(ATTENTION, "segment_mass"))
    return "; ".join(names)


def segments(subjects: Sequence[Subject]) -> Table | None:
    """The table of arXiv 2501.18795: mass by segment for each kind of layer, with the needle against an even spread."""
    rows = []
    for multiple in lengths(subjects):
        for s in subjects:
            for kind in kinds(s):
                mass = [_row(s, "segment_mass", multiple, kind=kind, segment=x) for x in SEGMENTS]
                if all(m is None for m in mass):
                    continue
                ratio = _row(s, "segment_ratio", multiple, kind=kind, segment="needle")
                best = next(iter(s.rows(ATTENTION, "retrieval_best", multiple=multiple, kind=kind)), None)
                at = f" ({best['layer']}.{best['head']})" if best is not None and best["value"] else ""
                found = [*(_number(m, 4) for m in mass), _number(ratio, 2)]
                found += [_number(_row(s, metric, multiple, kind=kind)) for metric in ("retrieval", "retrieval_near")]
                found += [f"{_number(best)}{at}"]
                rows.append([name(s, kind), _length(subjects, multiple), *found])
    header = ["run, layers", "length", *SEGMENTS, "needle / even", "retrieval", "near", "best head (layer.head)"]
    return _table(
        header,
        rows,
        "Attention of the answering rows by segment, mean over the heads and layers of a kind; the four add up to 1. "
        "Needle / even: its mass against its share of the text. Retrieval: share of answer tokens on which a head's "
        f"highest probability is the token to be copied; near, and of the best head: or at most {NEAR} tokens from it. "
        f"The cases: {_sources(subjects)}.",
        text=frozenset({0, 1}),
    )


def entropy(subjects: Sequence[Subject]) -> Table | None:
    """Bits and share of the maximum, a column for each length."""
    found = lengths(subjects)
    rows = [
        [
            name(s, kind),
            *(
                f"{_number(_row(s, 'entropy_bits', m, kind=kind), 2)} "
                f"({_number(_row(s, 'entropy_share', m, kind=kind), 2)})"
                for m in found
            ),
        ]
        for s in subjects
        for kind in kinds(s)
    ]
    return _table(
        ["run, layers", *(_length(subjects, m) for m in found)],
        rows if found else [],
        "Entropy of attention on text: bits (share of log2 of the visible keys). Rows past the first tenth of the text "
        "and past the longest window.",
    )


def sinks(subjects: Sequence[Subject]) -> Table | None:
    """Mass on the first token and the share of heads above each threshold."""
    bins = sorted({r["bin"] for s in subjects for r in s.rows(ATTENTION, "sink_rate")})
    rows = []
    for multiple in lengths(subjects):
        for s in subjects:
            for kind in kinds(s):
                mass = _row(s, "sink_mass", multiple, kind=kind)
                rates = [_row(s, "sink_rate", multiple, kind=kind, bin=b) for b in bins]
                logit = _row(s, "sink_logit_mass", multiple, kind=kind)
                cells = [_number(mass), *(_number(r) for r in rates), _number(logit)]
                rows.append([name(s, kind), _length(subjects, multiple), *cells])
    header = ["run, layers", "length", "mean on first token", *(f"heads {b}" for b in bins), "sink logit"]
    if all(row[-1] == wording.NOTHING for row in rows):
        header, rows = header[:-1], [row[:-1] for row in rows]
    return _table(
        header,
        rows,
        "Sinks: mean attention to the first token, and the share of heads of which it is above a threshold, over the "
        "rows that see it; a dash where windows leave it out of reach.",
        text=frozenset({0, 1}),
    )


def knockout(subjects: Sequence[Subject]) -> Table | None:
    """Answers with all heads, without the best retrieval heads, without as many others."""
    rows = []
    for s in subjects:
        every = s.rows(ATTENTION, "knockout_accuracy", heads="none")
        if not every or every[0]["value"] is None:
            continue
        at = every[0]["multiple"]
        chosen = s.rows(ATTENTION, "knockout_accuracy", heads="retrieval")[0]
        cells = [", ".join(chosen["which"])]
        for metric in ("knockout_accuracy", "knockout_log_prob"):
            cells.append(wording.loss(_row(s, metric, at, heads="none"), interval=False))
            changes = [_row(s, f"{metric}_change", at, heads=heads) for heads in ("retrieval", "random")]
            cells += [wording.loss(change, signed=True) for change in changes]
        rows.append([s.label, *cells])
    header = ["run", "heads silenced (layer.head)", "accuracy", "without them", "without others"]
    return _table(
        [*header, "log-prob", "without them ", "without others "],
        rows,
        "Do retrieval heads carry the answer? Answer tokens right and their log-probability (nats) at the first "
        "length, and the change when the best retrieval heads are silenced, or as many others of the same "
        "layers (mean of some draws) [95 % interval, paired over documents]. Heads were chosen on other cases.",
        text=frozenset({0, 1}),
    )


def position(subjects: Sequence[Subject]) -> Table | None:
    """Where the position probe reads best."""
    found = lengths(subjects)
    rows = []
    for s in subjects:
        cells = []
        for multiple in found:
            every = [r for r in s.rows(ATTENTION, "position_r2", multiple=multiple) if r["value"] is not None]
            layers = [r for r in every if r["layer"] is not None]
            if not layers:
                cells.append(wording.NOTHING)
                continue
            best = max(layers, key=lambda r: r["value"])
            error = _row(s, "position_error", multiple, layer=best["layer"])
            cells.append(f"{_number(best)}, {_number(error, 0)} tokens (layer {best['layer']})")
        if set(cells) - {wording.NOTHING}:
            rows.append([s.label, *cells])
    return _table(
        ["run", *(_length(subjects, m) for m in found)],
        rows,
        "Position in the stream: R² and mean error of a linear map from a layer's output to the token's index, on "
        "documents it was not fitted to, for the layer where it is best.",
    )


def similarity(subjects: Sequence[Subject]) -> Table | None:
    """Divergence between runs that kept rows of the same tokens, in bits: closest heads, and all pairs in brackets."""
    kept = [(s, s.rows(ATTENTION, "attention_rows")) for s in subjects]
    kept = [(s, sorted(rows, key=lambda r: r["layer"])) for s, rows in kept if rows]
    if len(kept) < 2:
        return None
    unpacked = [[unpack(r["data"]) for r in rows] for _, rows in kept]
    cells = [[wording.NOTHING] * len(kept) for _ in kept]
    for a in range(len(kept)):
        for b in range(a):
            comparable = kept[a][1][0]["data"]["tokens"] == kept[b][1][0]["data"]["tokens"]
            if comparable and len(unpacked[a]) == len(unpacked[b]):
                pairs = [between_heads(x, y) for x, y in zip(unpacked[a], unpacked[b], strict=True)]
                closest = np.mean([p.min() for p in pairs])
                text = f"{closest:.3f} ({np.mean([p.mean() for p in pairs]):.3f})"
                cells[a][b] = cells[b][a] = text
    if all(cell == wording.NOTHING for line in cells for cell in line):
        return None
    return Table(
        ["run", *(s.label for s, _ in kept)],
        [[s.label, *line] for (s, _), line in zip(kept, cells, strict=True)],
        "How alike two runs attend: Jensen-Shannon divergence in bits on the same rows of the same text, layers at one "
        "depth against each other: the two heads most alike, mean over layers (all pairs of heads). 0 is equal. A dash "
        "where runs read other tokens or differ in depth.",
    )


def notes(subjects: Sequence[Subject]) -> list[str]:
    """Lengths that were not measured, and what the numbers do not say."""
    out = []
    for s in subjects:
        missing = [r for r in s.rows(ATTENTION, "segment_mass") if r["kind"] is None]
        out += [f"{s.label}: attention at {r['length']} tokens: {r['note']}." for r in missing]
    if lengths(subjects):
        out.append(
            "Attention mass is what a head looks at, not what the model uses: only silencing heads shows that. The "
            "position probe is linear, so it bounds from below what a layer knows of position."
        )
    return out


def _table(
    header: list[str], rows: list[list[str]], caption: str, text: frozenset[int] = frozenset({0})
) -> Table | None:
    return Table(header, rows, caption, text) if rows else None
