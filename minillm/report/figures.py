"""The figures of a comparison, drawn with matplotlib (the extra `report`).

    files = draw(subjects, out / "figures")      # {"same_target.png": caption, ...}; what was not measured is not drawn

One colour per variant; the training length is marked. Runs of one variant and several seeds share a colour: thin lines
are seeds, the thick one is their mean. Bands are 95 % intervals over documents (`minillm.evaluation.intervals`), drawn
where a variant has one run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minillm.report.collect import Row, Subject
from minillm.report.style import COLOURS, FAINT, INK, MARKERS, finish, panels

DPI = 160


def draw(subjects: Sequence[Subject], folder: Path) -> dict[str, str]:
    """Draw every figure that has data into `folder`; file name -> caption. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    folder.mkdir(parents=True, exist_ok=True)
    from minillm.report import attention_figures, recall, ruler

    drawn = {}
    every = {**FIGURES, **recall.FIGURES, **attention_figures.FIGURES, **ruler.FIGURES}
    for name, (draw_one, caption) in every.items():
        figure = draw_one(subjects)
        # A figure of an earlier report that this one has no data for would be taken for its own.
        (folder / name).unlink(missing_ok=True)
        if figure is not None:
            figure.savefig(folder / name, dpi=DPI)
            drawn[name] = caption
    return drawn


def _training(subjects: Sequence[Subject]) -> Any:
    """Loss against tokens and against time: training loss smoothed and faint, validation loss with markers."""
    if not any(s.curve("val/loss")[2] or s.curve("train/loss")[2] for s in subjects):
        return None
    figure, (left, right) = panels(2, width=10)
    for subject, style in styles(subjects):
        for key, alpha, marker, mark in (("train/loss", 0.35, None, ""), ("val/loss", 1.0, style["marker"], "label")):
            tokens, seconds, values = subject.curve(key)
            if key == "train/loss":
                values = _smooth(values)
            for axis, x in ((left, [t / 1e6 for t in tokens]), (right, [t / 60 for t in seconds])):
                named = style["label"] if mark else None
                axis.plot(x, values, color=style["color"], alpha=alpha, lw=1.4, marker=marker, ms=3.5, label=named)
    # The first updates fall from log(vocabulary); they would flatten everything else.
    late = [v for s in subjects for v in _smooth(s.curve("train/loss")[2])[len(s.curve("train/loss")[2]) // 10 :]]
    shown = late + [v for s in subjects for v in s.curve("val/loss")[2]]
    for axis in (left, right):
        axis.set_ylim(min(shown) - 0.05 * (max(shown) - min(shown)), max(shown) + 0.02 * (max(shown) - min(shown)))
    left.set(xlabel="tokens trained on (millions)", ylabel="loss (nats per token)")
    right.set(xlabel="training time (minutes)")
    return finish(figure, [left, right])


def _smooth(values: list[float]) -> list[float]:
    """A running mean over about one part in forty of the curve, so that curves can be told apart."""
    half = len(values) // 80
    return [sum(part) / len(part) for i in range(len(values)) for part in [values[max(0, i - half) : i + half + 1]]]


def _position(subjects: Sequence[Subject]) -> Any:
    return _by_length(
        subjects, lambda s: s.rows("length_perplexity", "nll", protocol="position"), "loss (nats per token)"
    )


def _same_target(subjects: Sequence[Subject]) -> Any:
    """Two panels: the loss itself, and its change against the training length, where the interval is paired."""
    loss = [s.rows("length_perplexity", "nll", protocol="same_target") for s in subjects]
    if not any(_has_values(rows) for rows in loss):
        return None
    figure, (left, right) = panels(2, width=10, share_y=False)
    curves(left, subjects, lambda s: s.rows("length_perplexity", "nll", protocol="same_target"))
    curves(right, subjects, lambda s: s.rows("length_perplexity", "nll_change", protocol="same_target"))
    right.axhline(0, color=FAINT, lw=0.8, zorder=0)
    left.set(ylabel="loss (nats per token)")
    right.set(ylabel="change against the training length (nats)")
    for axis in (left, right):
        length_axis(axis, subjects)
    return finish(figure, [left, right])


def _windows(subjects: Sequence[Subject]) -> Any:
    """Non-overlapping beside strided, on one scale."""
    both = [s.rows("length_perplexity", "nll", protocol=p) for s in subjects for p in ("non_overlapping", "strided")]
    if not any(_has_values(rows) for rows in both):
        return None
    figure, axes = panels(2, width=10)
    for axis, protocol, title in zip(
        axes, ("non_overlapping", "strided"), ("non-overlapping windows", "strided windows"), strict=True
    ):
        curves(axis, subjects, lambda s, p=protocol: s.rows("length_perplexity", "nll", protocol=p))  # type: ignore[misc]
        axis.set_title(title, fontsize=9, color=INK, pad=12)
        length_axis(axis, subjects)
    axes[0].set(ylabel="loss (nats per token)")
    return finish(figure, list(axes))


def _cost(subjects: Sequence[Subject]) -> Any:
    """Training speed, decoding speed, and bytes of the cache: measured ones as points on the formula's line."""
    if not any(s.rows("cost", "train_tokens_per_second") for s in subjects):
        return None
    from matplotlib.ticker import FuncFormatter

    figure, axes = panels(3, width=12, share_y=False)
    for axis, metric in ((axes[0], "train_tokens_per_second"), (axes[1], "decode_tokens_per_second")):
        curves(axis, subjects, lambda s, m=metric: s.rows("cost", m))  # type: ignore[misc]
        axis.set_ylim(bottom=0)
    for subject, style in styles(subjects):
        formula, measured = (
            [
                (r["length"], r["value"] / 2**20)
                for r in subject.rows("cost", "kv_bytes", kind=k)
                if r["value"] is not None
            ]
            for k in ("formula", "measured")
        )
        scale = unit(subjects, subject)
        if formula:
            axes[2].plot(*zip(*[(x / scale, y) for x, y in formula], strict=True), color=style["color"], lw=1.4)
        if measured:
            axes[2].plot(
                *zip(*[(x / scale, y) for x, y in measured], strict=True),
                color=style["color"],
                ls="",
                marker=style["marker"],
                ms=5,
            )
    axes[0].set(ylabel="training, tokens/s")
    axes[1].set(ylabel="decoding one sequence, tokens/s")
    axes[2].set(ylabel="KV cache of one sequence, MiB", yscale="log")
    axes[2].yaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}"))
    for axis in axes:
        length_axis(axis, subjects, label="context (tokens)" if axis is not axes[0] else "sequence length (tokens)")
    return finish(figure, list(axes))


def _by_length(subjects: Sequence[Subject], rows: Callable[[Subject], list[Row]], ylabel: str) -> Any:
    if not any(_has_values(rows(s)) for s in subjects):
        return None
    figure, (axis,) = panels(1, width=7)
    curves(axis, subjects, rows)
    axis.set(ylabel=ylabel)
    length_axis(axis, subjects, label="tokens of context (upper end of the bin)")
    return finish(figure, [axis])


def curves(axis: Any, subjects: Sequence[Subject], rows: Callable[[Subject], list[Row]]) -> None:
    """A line per run with its band; per variant of several seeds thin lines and their mean."""
    seeds: dict[str, list[tuple[list[float], list[float]]]] = {}
    counts = [s.variant for s in subjects]
    for subject, style in styles(subjects):
        found = [r for r in rows(subject) if r["value"] is not None]
        x = [r["length"] / unit(subjects, subject) for r in found]
        y = [r["value"] for r in found]
        alone = counts.count(subject.variant) == 1
        seeds.setdefault(subject.variant, []).append((x, y))
        if not alone:
            axis.plot(x, y, color=style["color"], lw=0.7, alpha=0.6)
            continue
        axis.plot(
            x, y, color=style["color"], ls=style["ls"], lw=1.6, marker=style["marker"], ms=4, label=style["label"]
        )
        band = [(r["length"] / unit(subjects, subject), r["low"], r["high"]) for r in found if r["low"] is not None]
        if band:
            axis.fill_between(*zip(*band, strict=True), color=style["color"], alpha=0.1, lw=0)
    for subject, style in styles(subjects):
        lines = seeds.pop(subject.variant, [])
        if len(lines) > 1 and all(x == lines[0][0] for x, _ in lines):
            mean = [sum(values) / len(values) for values in zip(*[y for _, y in lines], strict=True)]
            axis.plot(
                lines[0][0],
                mean,
                color=style["color"],
                ls=style["ls"],
                lw=2.2,
                marker=style["marker"],
                ms=4,
                label=f"{subject.variant} (mean of {len(lines)} seeds)",
            )


def styles(subjects: Sequence[Subject]) -> list[tuple[Subject, dict[str, Any]]]:
    order = list(dict.fromkeys(s.variant for s in subjects))
    styles = []
    for subject in subjects:
        i = order.index(subject.variant)
        styles.append(
            (
                subject,
                {
                    "color": COLOURS[i % len(COLOURS)],
                    "marker": MARKERS[i % len(MARKERS)],
                    "ls": ("-", "--", ":", "-.")[i // len(COLOURS) % 4],
                    "label": subject.label,
                },
            )
        )
    return styles


def same_train_length(subjects: Sequence[Subject]) -> bool:
    return len({s.train_length for s in subjects}) == 1


def unit(subjects: Sequence[Subject], subject: Subject) -> float:
    """Lengths are in tokens where all runs share a training length, else in training lengths."""
    return 1.0 if same_train_length(subjects) else float(subject.train_length)


def length_axis(axis: Any, subjects: Sequence[Subject], label: str = "context (tokens)") -> None:
    """Powers of two, with the training length marked."""
    import math

    from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

    shared = same_train_length(subjects)
    mark = subjects[0].train_length if shared else 1
    axis.set_xscale("log", base=2)
    low, high = axis.get_xlim()
    ticks = [2.0**k for k in range(math.ceil(math.log2(low)), math.floor(math.log2(high)) + 1)]
    axis.xaxis.set_major_locator(FixedLocator(ticks[:: max(1, len(ticks) // 8)]))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda v, _: f"{v:g}" if shared else f"{v:g}x"))
    axis.axvline(mark, color=FAINT, ls="--", lw=1, zorder=0)
    # Above the frame: inside it would lie on the curves where the training length is the first point.
    axis.annotate(
        "training length",
        (mark, 1),
        xycoords=("data", "axes fraction"),
        xytext=(-2, 2),
        textcoords="offset points",
        va="bottom",
        ha="left",
        fontsize=7,
        color=FAINT,
    )
    axis.set_xlabel(label if shared else label.replace("tokens", "multiples of the training length"))


def _has_values(rows: list[Row]) -> bool:
    return any(r["value"] is not None for r in rows)


FIGURES: dict[str, tuple[Callable[[Sequence[Subject]], Any], str]] = {
    "training.png": (
        _training,
        "Training. Faint: training loss, smoothed. Marked: loss on the held-out documents. Left: by tokens, right: by "
        "time.",
    ),
    "loss_by_position.png": (
        _position,
        "Loss by position: tokens of the held-out documents by how much context they have, in one pass over the "
        "documents' beginnings. Bins differ in what the text says there, so compare the runs within a bin.",
    ),
    "same_target.png": (
        _same_target,
        "The same target tokens read with more and more context. A flat or falling line survives the length or uses "
        "it; the change on the right is paired over documents.",
    ),
    "windows.png": (
        _windows,
        "Non-overlapping and strided windows over the same tokens. Non-overlapping windows fall with the length even "
        "for a model that uses none of the added context, as fewer tokens stand near a window's start.",
    ),
    "cost.png": (
        _cost,
        "Speed and memory by length. Bands: quartiles of the repeats. KV cache: points are measured, lines "
        "are the formula of the layer plan.",
    ),
}
