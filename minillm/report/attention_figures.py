"""The figures of the suite `attention`: where attention goes, by layer kind, length, distance and head.

Colour is the run; the line's style and the marker are the kind of layer, so that one run's local and global layers
stand beside each other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from minillm.evaluation.attention.cases import SEGMENTS
from minillm.evaluation.attention.collect import NEAR
from minillm.report.collect import Row, Subject
from minillm.report.figures import length_axis, styles, unit
from minillm.report.style import COLOURS, FAINT, INK, panels, titled

ATTENTION = "attention"
DASHES = ("-", "--", ":", "-.")
KIND_MARKERS = ("o", "s", "^", "D")
SEGMENT_COLOURS = {"begin": "#444444", "needle": COLOURS[1], "context": "#c9d8e6", "qc": COLOURS[2]}
MOST_HEAT_MAPS = 6


def kinds(subject: Subject) -> list[str]:
    """The kinds of its layers, in the order of the plan."""
    return list(dict.fromkeys(spec.kind for spec in subject.config.model.layers))


def lengths(subjects: Sequence[Subject]) -> list[float]:
    """Multiples of the training length at which some run was measured."""
    rows = [r for s in subjects for r in s.rows(ATTENTION, "entropy_bits")]
    return sorted({r["multiple"] for r in rows if r["value"] is not None})


def name(subject: Subject, kind: str) -> str:
    """A run and one kind of its layers; the kind is left out where it is the only one."""
    return subject.label if len(kinds(subject)) == 1 else f"{subject.label}, {kind}"


def _lines(subjects: Sequence[Subject]) -> list[tuple[Subject, str, dict[str, Any]]]:
    """Every run and kind with its style."""
    out = []
    for subject, style in styles(subjects):
        for i, kind in enumerate(kinds(subject)):
            own = {"color": style["color"], "ls": DASHES[i % 4], "marker": KIND_MARKERS[i % 4], "lw": 1.5, "ms": 4}
            out.append((subject, kind, {**own, "label": name(subject, kind)}))
    return out


def _of_kind(subject: Subject, metric: str, kind: str, **where: Any) -> list[Row]:
    """Rows over all layers of a kind, where there is a value."""
    rows = subject.rows(ATTENTION, metric, kind=kind, layer=None, head=None, **where)
    return [r for r in rows if r["value"] is not None]


def _segments(subjects: Sequence[Subject]) -> Any:
    """Stacked bars, a panel for each length, a bar for each run and kind."""
    found = [m for m in lengths(subjects) if any(_mass(s, k, m) for s in subjects for k in kinds(s))]
    if not found:
        return None
    bars = [(s, kind) for s in subjects for kind in kinds(s)]
    figure, axes = panels(len(found), width=10, height=1.6 + 0.32 * len(bars))
    for axis, multiple in zip(axes, found, strict=True):
        for y, (subject, kind) in enumerate(bars):
            left = 0.0
            for segment, mass in zip(SEGMENTS, _mass(subject, kind, multiple), strict=False):
                label = segment if y == 0 else None
                axis.barh(y, mass, left=left, color=SEGMENT_COLOURS[segment], height=0.72, label=label)
                if mass > 0.1:
                    ink = "white" if segment == "begin" else INK
                    axis.text(left + mass / 2, y, f"{mass:.2f}", ha="center", va="center", fontsize=7, color=ink)
                left += mass
        axis.set(title=_length_title(subjects, multiple), xlim=(0, 1), xlabel="share of attention")
        axis.set_yticks(range(len(bars)), [name(s, k) for s, k in bars])
        axis.grid(visible=False)
    axes[0].invert_yaxis()  # shared by all panels
    return titled(figure, axes, legend=axes[0])


def _mass(subject: Subject, kind: str, multiple: float) -> list[float]:
    rows = {r["segment"]: r["value"] for r in _of_kind(subject, "segment_mass", kind, multiple=multiple)}
    return [rows[s] for s in SEGMENTS] if rows else []


def _length_title(subjects: Sequence[Subject], multiple: float) -> str:
    sizes = {round(s.train_length * multiple) for s in subjects}
    return f"{multiple:g}x ({sizes.pop()} tokens)" if len(sizes) == 1 else f"{multiple:g}x the training length"


def _entropy(subjects: Sequence[Subject]) -> Any:
    if not lengths(subjects):
        return None
    figure, axes = panels(2, width=10, share_y=False)
    for axis, metric in zip(axes, ("entropy_bits", "entropy_share"), strict=True):
        for subject, kind, style in _lines(subjects):
            rows = _of_kind(subject, metric, kind)
            x = [r["length"] / unit(subjects, subject) for r in rows]
            axis.plot(x, [r["value"] for r in rows], **style)
            band = [(a, r["low"], r["high"]) for a, r in zip(x, rows, strict=True) if r["low"] is not None]
            if band:
                axis.fill_between(*zip(*band, strict=True), color=style["color"], alpha=0.1, lw=0)
        length_axis(axis, subjects)
    axes[0].set(ylabel="entropy (bits)", ylim=(0, None))
    axes[1].set(ylabel="share of log2(visible keys)", ylim=(0, 1.02))
    return titled(figure, axes, legend=axes[0])


def _distance(subjects: Sequence[Subject]) -> Any:
    """Log-log, at the first and at the last length."""

    def line(subject: Subject, kind: str, multiple: float) -> Line:
        rows = _of_kind(subject, "recency", kind, multiple=multiple)
        # Distance 0, the token itself, has no place on a log axis: it stands at 1/2.
        return [_middle(r["bin"]) or 0.5 for r in rows], [r["value"] for r in rows]

    shown = _first_and_last(lengths(subjects))
    return _against_even(subjects, shown, line, xscale="log", xlabel="tokens back (the token itself at 1/2)")


Line = tuple[list[float], list[float]]


def _first_and_last(found: list[float]) -> list[float]:
    return found[:1] + found[1:][-1:]


def _against_even(
    subjects: Sequence[Subject],
    shown: Sequence[float],
    line: Callable[[Subject, str, float], Line],
    **axis_settings: Any,
) -> Any:
    """A panel per length, a line per run and kind: attention as a multiple of an even spread, which is 1."""
    if not shown:
        return None
    figure, axes = panels(len(shown), width=5 * len(shown) if len(shown) > 1 else 7)
    for axis, multiple in zip(axes, shown, strict=True):
        for subject, kind, style in _lines(subjects):
            x, y = line(subject, kind, multiple)
            axis.plot(x, [_shown(value) for value in y], **{**style, "ms": 3})
        axis.axhline(1, color=FAINT, lw=0.8, zorder=0)
        axis.set(title=_length_title(subjects, multiple), yscale="log", **axis_settings)
    axes[0].set(ylabel="attention against an even spread")
    _plain_log(axes[0])
    return titled(figure, axes, legend=axes[0])


LEAST = 1e-3
"""Ratios below it are left out of logarithmic axes: 0 has no place there."""


def _shown(ratio: float) -> float:
    return ratio if ratio >= LEAST else float("nan")


def _plain_log(axis: Any) -> None:
    """Ticks 0.1, 1, 10 and between them 2 and 5, where one can read them."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_ylim()
    few = high / low > 300
    axis.yaxis.set_major_locator(LogLocator(subs=(1.0,) if few else (1.0, 2.0, 5.0)))
    axis.yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    axis.yaxis.set_minor_formatter(NullFormatter())


def _middle(bin_: str) -> float:
    """Geometric middle of a bin ``4-7``; 0 of the bin ``0``."""
    low, _, high = bin_.partition("-")
    return float(np.sqrt(float(low) * float(high or low)))


def _place(subjects: Sequence[Subject]) -> Any:
    """Attention of the question's rows by place in the text, against an even spread."""

    def line(subject: Subject, kind: str, multiple: float) -> Line:
        rows = _of_kind(subject, "attention_by_place", kind, multiple=multiple)
        spans = [[int(x) for x in r["bin"].split("-")] for r in rows]
        length = multiple * subject.train_length
        x = [(low + high + 1) / 2 / length for low, high in spans]
        return x, [r["value"] * length / (b - a + 1) for r, (a, b) in zip(rows, spans, strict=True)]

    measured = any(s.rows(ATTENTION, "attention_by_place") for s in subjects)
    shown = _first_and_last(lengths(subjects)) if measured else []
    return _against_even(subjects, shown, line, xlabel="place in the text", xlim=(0, 1))


def _heads(subjects: Sequence[Subject]) -> Any:
    """Retrieval score of every head at the first length, a panel for each run; rows are layers, the first on top."""
    grids = []
    for subject in subjects[:MOST_HEAT_MAPS]:
        rows = [
            r for r in subject.rows(ATTENTION, "retrieval_near") if r["head"] is not None and r["value"] is not None
        ]
        if rows:
            first = rows[0]["length"]
            layers = subject.config.model.layers
            grid = np.full((len(layers), max(spec.num_attention_heads for spec in layers)), np.nan)
            for r in rows:
                if r["length"] == first:
                    grid[r["layer"], r["head"]] = r["value"]
            grids.append((subject, grid))
    if not grids:
        return None
    import matplotlib.pyplot as plt

    deepest = max(grid.shape[0] for _, grid in grids)
    figure, axes = plt.subplots(
        1, len(grids), figsize=(1.2 + 2.3 * len(grids), 1.2 + 0.22 * deepest), squeeze=False, layout="constrained"
    )
    top = max(0.05, max(float(np.nanmax(grid)) for _, grid in grids))
    for axis, (subject, grid) in zip(axes[0], grids, strict=True):
        image = axis.imshow(grid, cmap="viridis", vmin=0, vmax=top, aspect="auto", interpolation="nearest")
        specs = subject.config.model.layers
        axis.set_yticks(range(len(specs)), [f"{spec.index} {spec.kind}" for spec in specs])
        axis.set_xticks(range(grid.shape[1]))
        axis.tick_params(labelsize=7, colors=INK, length=0)
        axis.set_xlabel("head", fontsize=9)
        axis.set_title(subject.label)
    bar = figure.colorbar(image, ax=list(axes[0]), shrink=0.9, aspect=30)
    bar.set_label("retrieval score", fontsize=9)
    bar.ax.tick_params(labelsize=7)
    return titled(figure, list(axes[0]))


def _position(subjects: Sequence[Subject]) -> Any:
    """R2 of the position probe by layer, at the first and the last length."""
    rows = [r for s in subjects for r in s.rows(ATTENTION, "position_r2") if r["value"] is not None]
    found = sorted({r["multiple"] for r in rows})
    shown = found[:1] + found[1:][-1:]
    if not shown:
        return None
    figure, axes = panels(len(shown), width=5 * len(shown) if len(shown) > 1 else 7)
    for axis, multiple in zip(axes, shown, strict=True):
        for subject, style in styles(subjects):
            own = [r for r in subject.rows(ATTENTION, "position_r2", multiple=multiple) if r["value"] is not None]
            own.sort(key=lambda r: -1 if r["layer"] is None else r["layer"])
            x = [0 if r["layer"] is None else r["layer"] + 1 for r in own]
            axis.plot(x, [r["value"] for r in own], lw=1.5, ms=4, **style)
            band = [(a, r["low"], r["high"]) for a, r in zip(x, own, strict=True) if r["low"] is not None]
            if band:
                axis.fill_between(*zip(*band, strict=True), color=style["color"], alpha=0.1, lw=0)
        axis.axhline(0, color=FAINT, lw=0.8, zorder=0)
        axis.set(title=_length_title(subjects, multiple), xlabel="after layer (0: embeddings)", ylim=(-0.2, 1.02))
    axes[0].set(ylabel="R² of the token's index")
    return titled(figure, axes, legend=axes[0])


FIGURES: dict[str, tuple[Callable[[Sequence[Subject]], Any], str]] = {
    "attention_segments.png": (
        _segments,
        "Where the rows that answer look: begin is the first 10 tokens, needle what is looked up, qc the question and "
        "its completion, context the rest. Mean over layers of a kind and their heads.",
    ),
    "attention_entropy.png": (
        _entropy,
        "Entropy of attention on text, in bits and as a share of what an even spread over the visible keys would have. "
        "Bands: 95 % intervals over documents.",
    ),
    "attention_distance.png": (
        _distance,
        "Recency: attention to keys by their distance, against an even spread over the keys that a row sees (bins "
        "double in width). A kind's line ends where its layers see no further.",
    ),
    "attention_place.png": (
        _place,
        "Where in the text the answering rows look, without the first 10 and the last 3 % of tokens; 1 is an even "
        "spread over the whole text.",
    ),
    "attention_heads.png": (
        _heads,
        "Retrieval heads at the first length: how often, while a token is to be copied, a head's highest probability "
        f"is on that token of the needle or at most {NEAR} tokens from it.",
    ),
    "position_probe.png": (
        _position,
        "What a linear map reads of a token's index from the stream after each layer, on documents it was not fitted "
        "to. 1: exactly; 0: no better than the mean.",
    ),
}
