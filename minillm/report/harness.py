"""What the report says of the suite `harness`: each metric of each task by length, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from minillm.report import wording
from minillm.report.blocks import Block, Bullets, Table
from minillm.report.collect import Row, Subject

HARNESS = "harness"
OURS = (
    "Tasks named minillm_... are those of the suite ruler, read by lm-evaluation-harness (docs/harness.md). They are "
    "not NVIDIA's, nor the harness's own of like names."
)
SAME = ("lm_eval", "limit", "num_fewshot", "documents_digest", "start_marker", "prompts")
"""Settings that are alike where runs were asked the same."""


def section(subjects: Sequence[Subject]) -> list[Block | None]:
    """All that is said, in order; empty where nothing was measured."""
    found = [s for s in subjects if s.settings(HARNESS)]
    if not found:
        return []
    first = found[0].settings(HARNESS)
    limit = "all documents" if first["limit"] is None else f"the first {first['limit']} documents"
    said = [f"lm-evaluation-harness {first['lm_eval']}, {limit} of each task.", OURS]
    if len({str([s.settings(HARNESS).get(key) for key in SAME]) for s in found}) > 1:
        said.append("The runs were asked other things: versions, numbers of documents, examples or texts differ.")
    return [Bullets(said), table(found)]


def table(subjects: Sequence[Subject]) -> Table:
    """A line a task, metric and run, a column a length; tasks that have no length stand in a column of their own."""
    every = [(s, row) for s in subjects for row in _rows(s) if row["value"] is not None]
    lengths: list[int | None] = [*sorted({row["length"] for _, row in every if row["length"] is not None})]
    lengths += [None] if any(row["length"] is None for _, row in every) else []
    lines: dict[tuple[str, str, str], dict[int | None, Row]] = {}
    for task, metric in dict.fromkeys((row["task"], _metric(row)) for _, row in every):
        for s, row in every:
            if (row["task"], _metric(row)) == (task, metric):
                lines.setdefault((s.label, task, metric), {})[row["length"]] = row
    return Table(
        ["run", "task", "metric", *("no length" if n is None else str(n) for n in lengths)],
        [[*names, *(wording.loss(cells.get(n)) for n in lengths)] for names, cells in lines.items()],
        "Tasks of lm-evaluation-harness by length in tokens [95 % interval: Wilson's where the metric is a mean of "
        "shares, else by the harness's standard error]. acc of our tasks: share in which the right answer is the "
        "likeliest of ten, chance 0.1; gold_log_probability: of that answer, in nats.",
        frozenset({0, 1, 2}),
    )


def notes(subjects: Sequence[Subject]) -> list[str]:
    """Which tasks were not measured, at which lengths, and why."""
    said: list[str] = []
    for s in subjects:
        reasons: dict[tuple[str, str], list[int]] = {}
        for row in _rows(s):
            if row["value"] is None:
                reason = str(row["note"]).removeprefix("not measured: ")
                reasons.setdefault((row["task"], reason), []).extend([] if row["length"] is None else [row["length"]])
        for (task, reason), lengths in reasons.items():
            at = f" at {', '.join(map(str, dict.fromkeys(lengths)))} tokens" if lengths else ""
            said.append(f"{s.label}: harness's {task} was not measured{at}: {reason}.")
    return said


def _rows(subject: Subject) -> list[Row]:
    result = subject.evaluation.results.get(HARNESS)
    return [] if result is None else list(result["rows"])


def _metric(row: Row) -> str:
    return row["metric"] if not row.get("filter") else f"{row['metric']} ({row['filter']})"
