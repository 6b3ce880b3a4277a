"""What the report says of the suites named after tasks: accuracy by length, by depth, and beyond the stacked windows.

A run that has not learned its task at the training length is called undertrained, and nothing is shown of it beyond.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from textwrap import fill
from typing import Any

from minillm.evaluation.table import LEARNT, learnt
from minillm.report import wording
from minillm.report.blocks import Table
from minillm.report.collect import Row, Subject
from minillm.report.figures import curves, length_axis, unit
from minillm.report.groups import Group, groups
from minillm.report.style import FAINT, finish, panels

UNDERTRAINED = "undertrained"
GOLD = "gold_log_probability"
METRICS = {
    GOLD: "log-probability of the right answer tokens, nats per token: the primary number",
    "token_accuracy": "share of answer tokens that are right",
    "exact": "share of samples with all answers right",
}
AXES = {
    GOLD: "log-probability of a right token (nats)",
    "token_accuracy": "share of answer tokens that are right",
    "exact": "share of samples with all answers right",
}


def task(subject: Subject) -> str | None:
    """The task that the run was trained and measured on."""
    name = (subject.config.data.task or {}).get("name")
    return name if name in subject.evaluation.results else None


def measured(subjects: Sequence[Subject]) -> list[Subject]:
    """Those with a task's result."""
    return [s for s in subjects if task(s) is not None]


def shown(subject: Subject, metric: str) -> list[Row]:
    """Rows over whole samples by rising length; of an undertrained run, the first alone."""
    name = task(subject)
    if name is None:
        return []
    rows = subject.rows(name, metric, depth=None, reach=None)
    return rows if learned(subject) else rows[:1]


def gold_log_probability(subject: Subject) -> list[Row]:
    """The rows `nll` turned round, so that more is better, as accuracy is."""

    def turned(row: Row) -> Row:
        value, low, high = (None if row[k] is None else -row[k] for k in ("value", "low", "high"))
        sums = row.get("sample_sums")
        kept = {} if sums is None else {"sample_sums": [-total for total in sums]}
        return {**row, "metric": GOLD, "value": value, "low": high, "high": low, **kept}

    return [turned(row) for row in shown(subject, "nll")]


def rows_of(subject: Subject, metric: str) -> list[Row]:
    """What is shown of one of METRICS."""
    return gold_log_probability(subject) if metric == GOLD else shown(subject, metric)


def learned(subject: Subject) -> bool:
    """Whether it learned its task at the training length."""
    return learnt(subject.evaluation.results[str(task(subject))]["rows"])


def by_length(subjects: Sequence[Subject], metric: str) -> Table | None:
    """A line a run, a column a length; the word for an undertrained run where its numbers would stand."""
    found = measured(subjects)
    if not found:
        return None
    multiples = sorted({row["multiple"] for s in found for row in s.rows(str(task(s)), "token_accuracy")})
    kind = "bootstrap" if metric == GOLD else "Wilson's"
    rows = []
    for s in found:
        cells = {row["multiple"]: wording.loss(row) for row in rows_of(s, metric)}
        other = wording.NOTHING if learned(s) else UNDERTRAINED  # of a length that was not measured
        rows.append([s.label, str(task(s)), *(cells.get(m, other) for m in multiples)])
    return Table(
        ["run", "task", *(f"{m:g}x" for m in multiples)],
        rows,
        f"Recall: {METRICS[metric]} [95 % interval, {kind}, by sample], at multiples of the training length. "
        f"{UNDERTRAINED.capitalize()}: below {LEARNT:.0%} of answer tokens at 1x, so that longer samples say nothing.",
        frozenset({0, 1}),
    )


def quoted(subjects: Sequence[Subject]) -> list[float]:
    """The lengths of the headline: 1x, 4x and the longest."""
    found = sorted({row["multiple"] for s in measured(subjects) for row in s.rows(str(task(s)), "token_accuracy")})
    return [m for m in found if m in (1, 4, found[-1])]


def at(subject: Subject, multiple: float) -> str:
    """Token accuracy at a multiple of the training length, in words where there is none to tell."""
    if task(subject) is None:
        return wording.NOTHING
    row = next((r for r in shown(subject, "token_accuracy") if r["multiple"] == multiple), None)
    return UNDERTRAINED if row is None and not learned(subject) else wording.loss(row)


def beyond_reach(subjects: Sequence[Subject]) -> Table | None:
    """Needles that the stacked windows can and cannot reach, for plans without a full layer."""
    rows = []
    for s in measured(subjects):
        for row in s.rows(str(task(s)), "token_accuracy", reach="beyond"):
            near = s.row(str(task(s)), "token_accuracy", row["length"], reach="within")
            cells = [wording.loss(r) if r is None or r["n"] else wording.NOTHING for r in (near, row)]
            rows.append([s.label, str(row["reach_tokens"]), f"{row['multiple']:g}x", *cells, str(row["n"])])
    if not rows:
        return None
    return Table(
        ["run", "reach", "length", "within", "beyond", "tokens beyond"],
        rows,
        "Plans in which every layer is windowed: what lies further back than all windows together reach cannot be "
        "known. Answer tokens right, by whether the needle lies within that reach (tokens).",
    )


def figure(subjects: Sequence[Subject]) -> Any:
    """Gold log-probability, token accuracy and exact match against length."""
    found = measured(subjects)
    if not found:
        return None
    drawing, panes = panels(3, width=12, share_y=False)
    for axis, metric in zip(panes, METRICS, strict=True):
        curves(axis, found, lambda s, metric=metric: rows_of(s, metric))  # type: ignore[misc]
        axis.set(ylabel=AXES[metric])
    axes = panes[1:]
    for axis in axes:
        axis.set(ylim=(-0.02, 1.03))
    guesses = shown(max(found, key=lambda s: len(shown(s, "token_accuracy"))), "token_accuracy")
    guessed = [(row["length"] / unit(found, found[0]), row["chance"]) for row in guesses if row["chance"] is not None]
    if guessed and len({task(s) for s in found}) == 1:
        axes[0].plot(*zip(*guessed, strict=True), color=FAINT, ls=":", lw=1.2, label="without doing the task")
    for axis in panes:
        length_axis(axis, found, label="length of the sample (tokens)")
    return finish(drawing, [axes[0]])


def depths(subjects: Sequence[Subject]) -> Any:
    """A map per variant that learned its task: token accuracy by length and by where the needle lies, the mean over
    its seeds that did."""
    found = []
    for group in groups(measured(subjects)):
        trained = [s for s in group.subjects if learned(s) and _cells(s)]
        if trained:
            label = group.label if len(group.subjects) == 1 else f"{group.label} ({_of(group, trained)})"
            found.append((label, _mean_cells(trained)))
    if not found:
        return None
    drawing, axes = panels(len(found), width=max(4.0, 2.4 * len(found)), height=2.8)
    for axis, (label, cells) in zip(axes, found, strict=True):
        image = depth_map(axis, cells, label)
    axes[0].set_ylabel("depth of the needle")
    bar = drawing.colorbar(image, ax=list(axes), shrink=0.9)
    bar.ax.tick_params(labelsize=8)
    return finish(drawing, list(axes))


def depth_map(axis: Any, rows: Sequence[Row], title: str) -> Any:
    """One map: the value of each (length, depth) in per cent, on a scale of 0 to 1. Returns the image."""
    lengths = sorted({row["length"] for row in rows})
    places = sorted({row["depth"] for row in rows})
    grid = [[float("nan")] * len(lengths) for _ in places]
    for row in rows:
        grid[places.index(row["depth"])][lengths.index(row["length"])] = row["value"]
    image = axis.imshow(grid, vmin=0, vmax=1, cmap="viridis", aspect="auto")
    for y, line in enumerate(grid):
        for x, value in enumerate(line):
            if value == value:  # not a gap
                colour = "white" if value < 0.6 else "black"
                axis.text(x, y, f"{100 * value:.0f}", ha="center", va="center", fontsize=7, color=colour)
    axis.grid(False)
    axis.set(xlabel="length (tokens)", xticks=range(len(lengths)), yticks=range(len(places)))
    axis.set_xticklabels([str(n) for n in lengths])
    edges = [round(100 * i / len(places)) for i in range(len(places) + 1)]
    axis.set_yticklabels([f"{low} to {high} %" for low, high in pairwise(edges)])
    axis.set_title(fill(title, 24), fontsize=9)
    return image


def _cells(subject: Subject) -> list[Row]:
    rows = subject.rows(str(task(subject)), "token_accuracy", reach=None)
    return [row for row in rows if row["depth"] is not None and row["value"] is not None]


def _mean_cells(trained: Sequence[Subject]) -> list[Row]:
    values: dict[tuple[int, float], list[float]] = {}
    for s in trained:
        for row in _cells(s):
            values.setdefault((row["length"], row["depth"]), []).append(row["value"])
    return [{"length": n, "depth": depth, "value": sum(v) / len(v)} for (n, depth), v in values.items()]


def _of(group: Group, trained: Sequence[Subject]) -> str:
    every = len(group.subjects)
    return f"mean of {every} seeds" if len(trained) == every else f"mean of {len(trained)} of {every} seeds"


FIGURES = {
    "recall.png": (
        figure,
        "Recall past the training length. Left: log-probability of the right answer tokens, the primary number: it "
        "still tells runs apart where accuracy is near 0 or 1. Middle: answer tokens that are right; dotted, what "
        "comes of knowing a sample's form alone. Right: samples with all answers right. A run below 98 % at the "
        "training length has only one point, and is in no mean.",
    ),
    "recall_by_depth.png": (
        depths,
        "Answer tokens right, in per cent, by length and by where the needle lies: 0 is the beginning of the sample. "
        "Runs that learned the task at the training length; of several seeds, the mean.",
    ),
}
