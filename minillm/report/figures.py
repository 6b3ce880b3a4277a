"""The figures of a comparison, drawn with matplotlib (the extra `report`).

    files = draw(subjects, out / "figures")      # {"same_target.png": caption, ...}; what was not measured is not drawn

One colour per variant; the training length is marked. Runs of one variant and several seeds share a colour: thin lines
are seeds, the thick one is their mean. Bands are 95 % intervals over documents (`minillm.evaluation.intervals`) where a
variant has one run, else over seeds and documents together (`minillm.evaluation.seeds`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from minillm.report.collect import Row, Subject
from minillm.report.groups import Group, changes, groups, over_rows
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
    order = {s.variant: style for s, style in styles(subjects)}
    for group in groups(subjects):
        style, alone = order[group.variant], len(group.subjects) == 1
        mark = {"marker": style["marker"], "ms": 3.5}
        for s in group.subjects:
            for axis, scale, along in ((left, 1e6, 0), (right, 60, 1)):
                raw, held_out = s.curve("train/loss"), s.curve("val/loss")
                faint = {"color": style["color"], "alpha": 0.35 if alone else 0.15, "lw": 1.4 if alone else 0.7}
                axis.plot([t / scale for t in raw[along]], _smooth(raw[2]), **faint)
                own = {"lw": 1.4, "label": group.label, **mark} if alone else {"lw": 0.7, "alpha": 0.6}
                axis.plot([t / scale for t in held_out[along]], held_out[2], color=style["color"], **own)
        if alone:
            continue
        curves_of = [s.curve("val/loss") for s in group.subjects]
        # By update: seeds of a task have seen nearly as many tokens at each, but not the same number.
        if len({tuple(s.steps("val/loss")) for s in group.subjects}) > 1:
            left.plot([], [], color=style["color"], lw=0.7, label=f"{group.variant} ({len(group.subjects)} seeds)")
            continue
        x, seconds, mean = (
            [sum(part) / len(part) for part in zip(*[curve[i] for curve in curves_of], strict=True)] for i in range(3)
        )
        label = f"{group.variant} (mean of {len(group.subjects)} seeds)"
        left.plot([t / 1e6 for t in x], mean, color=style["color"], lw=2.2, label=label, **mark)
        right.plot([t / 60 for t in seconds], mean, color=style["color"], lw=2.2, **mark)
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
    curves(right, subjects, changes)
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
    """A line per run with its band; per variant of several seeds thin lines, their mean, and the band over seeds."""
    order = {s.variant: style for s, style in styles(subjects)}
    for group in groups(subjects):
        style = order[group.variant]
        drawn = {"color": style["color"], "ls": style["ls"], "marker": style["marker"], "ms": 4}
        found = {s.label: [r for r in rows(s) if r["value"] is not None] for s in group.subjects}
        scale = unit(subjects, group.subjects[0])
        if len(group.subjects) > 1:
            _seed_lines(axis, group, found, scale, drawn)
            continue
        (own,) = found.values()
        x = [r["length"] / scale for r in own]
        axis.plot(x, [r["value"] for r in own], lw=1.6, label=group.label, **drawn)
        _band(axis, x, own, style["color"])


def _seed_lines(axis: Any, group: Group, found: dict[str, list[Row]], scale: float, drawn: dict[str, Any]) -> None:
    """A thin line a seed, and the mean over those that have as many points as any: those that did not learn their
    task have one, which is no line, so it is marked."""
    most = max(len(rows) for rows in found.values())
    whole = [s for s in group.subjects if len(found[s.label]) == most]
    for rows in found.values():
        alone = {"marker": drawn["marker"], "ms": 3} if len(rows) == 1 else {}
        x, y = [r["length"] / scale for r in rows], [r["value"] for r in rows]
        axis.plot(x, y, color=drawn["color"], lw=0.7, alpha=0.6, **alone)
    lengths = [r["length"] for r in found[whole[0].label]]
    if any([r["length"] for r in found[s.label]] != lengths for s in whole):
        axis.plot([], [], color=drawn["color"], lw=0.7, label=f"{group.variant} ({len(group.subjects)} seeds)")
        return
    x = [n / scale for n in lengths]
    mean = [sum(found[s.label][i]["value"] for s in whole) / len(whole) for i in range(most)]
    count = f"{len(whole)} of {len(group.subjects)}" if len(whole) < len(group.subjects) else str(len(whole))
    axis.plot(x, mean, lw=2.2, label=f"{group.variant} (mean of {count} seeds)", **drawn)
    over = [over_rows(whole, lambda s, i=i: found[s.label][i]) for i in range(most)]  # type: ignore[misc]
    _band(axis, x, [{"low": None} if e is None else e._asdict() for e in over], drawn["color"])


def _band(axis: Any, x: Sequence[float], rows: Sequence[Row], colour: str) -> None:
    found = [(at, r["low"], r["high"]) for at, r in zip(x, rows, strict=True) if r["low"] is not None]
    if found:
        axis.fill_between(*zip(*found, strict=True), color=colour, alpha=0.1, lw=0)


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
        "time. Of several seeds, thin lines are the seeds and the marked one is their mean.",
    ),
    "loss_by_position.png": (
        _position,
        "Loss by position: tokens of the held-out documents by how much context they have, in one pass over the "
        "documents' beginnings. Bins differ in what the text says there, so compare the runs within a bin.",
    ),
    "same_target.png": (
        _same_target,
        "The same target tokens read with more and more context. A flat or falling line survives the length or uses "
        "it; the change on the right is paired over documents. Bands: 95 % intervals over documents; of several seeds "
        "(thin lines) over seeds and documents.",
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
