"""What the report says of the suite `ruler`: score by task and length, means, effective length, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minillm.report import wording
from minillm.report.blocks import Block, Bullets, Table
from minillm.report.collect import Row, Subject
from minillm.report.recall import depth_map
from minillm.report.style import finish, panels

RULER = "ruler"
ABOUT = [
    "The 13 tasks of RULER (arXiv 2404.06654) in our own wording, from our own generators: scores are not comparable "
    "with NVIDIA's. docs/ruler.md says where they differ.",
    "Lengths are tokens, the answer's and the start marker included.",
]
SAME = ("documents_digest", "questions", "seed", "samples", "prompts")
"""Settings that are alike where runs were asked the same; the digest is of token ids, so of the tokenizer too."""
FORMS = {
    "likelihood": "likelihood (share of samples in which the gold answer is the likeliest of ten; chance is 0.1)",
    "generate": "generate (references found in what is generated greedily: all of them, for qa any)",
}


def section(subjects: Sequence[Subject]) -> list[Block | None]:
    """All that is said, in order; empty where nothing was measured."""
    found = [s for s in subjects if s.settings(RULER)]
    if not found:
        return []
    forms = [form for form in FORMS if any(form in s.settings(RULER)["forms"] for s in found)]
    said = list(ABOUT)
    if len({str([s.settings(RULER).get(key) for key in SAME]) for s in found}) > 1:
        said.append("The runs were asked other things: their samples, or the text that these are made of, differ.")
    return [Bullets(said), *(table(found, form) for form in forms for table in (summary, by_task))]


def summary(subjects: Sequence[Subject], form: str) -> Table:
    """A line a run: the mean over tasks at each length, and the effective length."""
    lengths = _lengths(subjects)
    rows = []
    for s in subjects:
        means = {r["length"]: r for r in s.rows(RULER, "mean_score", form=form)}
        cells = [f"{wording.loss(means.get(n))}{_of(means.get(n))}" for n in lengths]
        rows.append([s.label, *cells, _effective(s, form)])
    return Table(
        ["run", *map(str, lengths), "effective length"],
        rows,
        f"RULER tasks, {FORMS[form]}: mean over tasks [95 % interval, Wilson's, over all samples] (tasks). The "
        "effective length is the longest with at least 85 % of the run's own mean at its shortest length, over the "
        "tasks measured at both; NVIDIA's is the longest whose mean is above 85.6 %.",
    )


def by_task(subjects: Sequence[Subject], form: str) -> Table:
    """A line a run and task, a column a length."""
    lengths = _lengths(subjects)
    rows = []
    for task in dict.fromkeys(name for s in subjects for name in s.settings(RULER)["tasks"]):
        for s in subjects:
            of_task = {r["length"]: r for r in s.rows(RULER, "score", task=task, form=form, depth=None)}
            rows.append([s.label, task, *(wording.loss(of_task.get(n)) for n in lengths)])
    counts = sorted({s.settings(RULER)["samples"] for s in subjects})
    return Table(
        ["run", "task", *map(str, lengths)],
        rows,
        f"RULER tasks, {FORMS[form]}: score by task [95 % interval, Wilson's]; "
        f"{' or '.join(map(str, counts))} samples each.",
        frozenset({0, 1}),
    )


def depths(subjects: Sequence[Subject]) -> Any:
    """A map per run and form: score by length and depth of the needle, the mean over the tasks that have needles."""
    found = [(s, form, cells) for s in subjects for form in FORMS if (cells := _cells(s, form))]
    if not found:
        return None
    drawing, axes = panels(len(found), width=max(4.0, 2.4 * len(found)), height=2.8)
    for axis, (s, form, cells) in zip(axes, found, strict=True):
        image = depth_map(axis, cells, f"{s.label}, {form}")
    axes[0].set_ylabel("depth of the needle")
    bar = drawing.colorbar(image, ax=list(axes), shrink=0.9)
    bar.ax.tick_params(labelsize=8)
    return finish(drawing, list(axes))


def _cells(subject: Subject, form: str) -> list[Row]:
    """Means over all needles of a length and depth: a bin of one task alone holds few."""
    sums: dict[tuple[int, float], list[float]] = {}
    for r in subject.rows(RULER, "score", form=form):
        if r["depth"] is not None and r["value"] is not None:
            cell = sums.setdefault((r["length"], r["depth"]), [0.0, 0.0])
            cell[0] += r["value"] * r["n"]
            cell[1] += r["n"]
    return [{"length": n, "depth": depth, "value": hits / count} for (n, depth), (hits, count) in sums.items()]


FIGURES = {
    "ruler_by_depth.png": (
        depths,
        "RULER tasks with needles: score in per cent by length and by where the needle lies, over all such tasks that "
        "were measured (not the same ones at every length where some do not fit).",
    ),
}


def notes(subjects: Sequence[Subject]) -> list[str]:
    """Which tasks were not measured, at which lengths, and why."""
    said: list[str] = []
    for s in subjects:
        reasons: dict[tuple[str, str], list[int]] = {}
        for r in s.rows(RULER, "score", depth=None):
            if r["value"] is None:
                lengths = reasons.setdefault((r["task"], r["note"].removeprefix("not measured: ")), [])
                lengths += [] if r["length"] in lengths else [r["length"]]
        said += [
            f"{s.label}: ruler's {task} was not measured at {', '.join(map(str, lengths))} tokens: {reason}."
            for (task, reason), lengths in reasons.items()
        ]
    return said


def _lengths(subjects: Sequence[Subject]) -> list[int]:
    return sorted({length for s in subjects for length in s.settings(RULER)["lengths"]})


def _of(row: Row | None) -> str:
    return f" ({row['tasks']})" if row is not None and row["value"] is not None else ""


def _effective(subject: Subject, form: str) -> str:
    row = next(iter(subject.rows(RULER, "effective_length", form=form)), None)
    if row is None:
        return wording.NOTHING
    if row["value"] is None:
        return str(row["note"].removeprefix("not measured: "))
    longest = max(subject.settings(RULER)["lengths"])
    return f"{row['value']:.0f}{' or more' if row['value'] == longest else ''}"
