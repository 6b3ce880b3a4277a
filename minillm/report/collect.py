"""The runs of a comparison with all that a report says of them: results, training curves, plan, settings, commands.

subjects = collect(evaluations)
write_csv(subjects, out / "table.csv")          # one tidy table of all rows of all suites
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.config.schema import Config
from minillm.evaluation.evaluate import Evaluation
from minillm.training.identity import shaping
from minillm.training.run_folder import write_atomically

Row = dict[str, Any]
FIRST_COLUMNS = ("run", "variant", "seed", "suite", "metric", "protocol", "length", "multiple", "depth", "bin", "kind")
VALUE_COLUMNS = ("value", "n", "low", "high", "documents", "note")
DOCUMENT_COLUMNS = ("document_nll", "document_tokens", "sample_sums", "sample_counts")
"""Lists, of rows that have them: what intervals over documents are made of."""


@dataclass(frozen=True)
class Subject:
    """One run of the comparison."""

    label: str
    """Short name in tables and figures; no two subjects share it."""
    variant: str
    """What differs by design: runs that differ in their seed alone have the same."""
    evaluation: Evaluation
    metrics: list[Row]
    """The lines of metrics.jsonl up to the evaluated step; empty for a checkpoint without its run folder."""
    commands: list[str]
    """How its training was started, in order."""
    data: str | None
    """Fingerprint of the training data."""

    @property
    def config(self) -> Config:
        return self.evaluation.config

    @property
    def train_length(self) -> int:
        return self.config.model.max_position_embeddings

    def rows(self, suite: str, metric: str, **where: Any) -> list[Row]:
        """Rows of a suite with that metric whose fields equal `where`, by rising length."""
        result = self.evaluation.results.get(suite)
        rows = [] if result is None else result["rows"]
        chosen = [r for r in rows if r["metric"] == metric and all(r.get(k) == v for k, v in where.items())]
        return sorted(chosen, key=lambda r: r["length"] or 0)

    def row(self, suite: str, metric: str, length: int, **where: Any) -> Row | None:
        """The one row of that length, if it was measured."""
        return next((r for r in self.rows(suite, metric, **where) if r["length"] == length), None)

    def settings(self, suite: str) -> dict[str, Any]:
        result = self.evaluation.results.get(suite)
        return {} if result is None else dict(result["settings"])

    def curve(self, key: str) -> tuple[list[float], list[float], list[float]]:
        """Tokens, seconds and values of a key of metrics.jsonl."""
        points = [m for m in self.metrics if isinstance(m.get(key), (int, float))]
        return [p["tokens"] for p in points], [p["time"] for p in points], [p[key] for p in points]

    def steps(self, key: str) -> list[int]:
        """The updates after which a key of metrics.jsonl was logged: one for each point of `curve`."""
        return [m["step"] for m in self.metrics if isinstance(m.get(key), (int, float))]

    def last(self, *keys: str) -> float | None:
        """The newest value of the first of `keys` that was logged at all."""
        for key in keys:
            values = self.curve(key)[2]
            if values:
                return float(values[-1])
        return None


def collect(evaluations: Sequence[Evaluation]) -> list[Subject]:
    """Read the run folders of what was evaluated, and name the runs."""
    variants = _apart(name_variants([e.config for e in evaluations]), evaluations)
    labels = _labels(evaluations, variants)
    return [_subject(e, label, variant) for e, label, variant in zip(evaluations, labels, variants, strict=True)]


def name_variants(configs: Sequence[Config], ignored: Sequence[str] = ("seed",)) -> list[str]:
    """The arm's name (or `name`); where runs of one name differ in more than what is `ignored`, with what they differ
    in.

    ``rope, size=mini`` where a config group differs, else ``rope, optim.lr=0.003``.
    """
    names = [config.name or config.choices.get("model", "model") for config in configs]
    shapes = [{k: v for k, v in shaping(config.plain).items() if k not in ignored} for config in configs]
    variants = []
    for name, config, shape in zip(names, configs, shapes, strict=True):
        alike = [i for i, other in enumerate(names) if other == name]
        groups = _differing([configs[i].choices for i in alike])
        keys = _differing([shapes[i] for i in alike])
        if groups:
            name += "".join(f", {k}={config.choices.get(k)}" for k in groups)
        # A group's difference says it all, unless runs of that group differ among themselves too.
        within = _differing([shapes[i] for i in alike if configs[i].choices == config.choices])
        if within or (keys and not groups):
            name += "".join(f", {k}={shape.get(k)}" for k in (within or keys)[:3])
        variants.append(name)
    return variants


def _apart(variants: list[str], evaluations: Sequence[Evaluation]) -> list[str]:
    """Nothing but the seed may differ within a variant: what else does, steps trained among it, is named."""
    shapes = [
        {**{k: v for k, v in shaping(e.config.plain).items() if k != "seed"}, "steps": e.step} for e in evaluations
    ]
    named = []
    for variant, shape in zip(variants, shapes, strict=True):
        alike = [other for name, other in zip(variants, shapes, strict=True) if name == variant]
        named.append(variant + "".join(f", {k}={shape.get(k)}" for k in _differing(alike)))
    return named


def _differing(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Keys whose values are not the same in all of them."""
    keys = sorted({k for m in mappings for k in m})
    return [k for k in keys if any(m.get(k) != mappings[0].get(k) for m in mappings)]


def _labels(evaluations: Sequence[Evaluation], variants: list[str]) -> list[str]:
    """The variant alone where that is enough, else with the seed, else the run's whole name."""
    with_seed = [f"{v} (seed {e.config.seed})" for v, e in zip(variants, evaluations, strict=True)]
    count, count_seeds = Counter(variants), Counter(with_seed)
    return [
        variant if count[variant] == 1 else seeded if count_seeds[seeded] == 1 else evaluation.run.name
        for variant, seeded, evaluation in zip(variants, with_seed, evaluations, strict=True)
    ]


def _subject(evaluation: Evaluation, label: str, variant: str) -> Subject:
    folder = evaluation.run.folder
    metrics = _json_lines(folder / "metrics.jsonl") if folder is not None else []
    starts = _json_lines(folder / "starts.jsonl") if folder is not None else []
    return Subject(
        label=label,
        variant=variant,
        evaluation=evaluation,
        metrics=[m for m in metrics if m.get("step", 0) <= evaluation.step],
        commands=list(dict.fromkeys(_command(str(s["command"])) for s in starts if s.get("command"))),
        data=next((str(s["data"]) for s in reversed(starts) if s.get("data")), None),
    )


def _command(line: str) -> str:
    """What was run, so that it can be run again: a script needs its interpreter in front."""
    return f"python {line}" if line.partition(" ")[0].endswith(".py") else line


def _json_lines(path: Path) -> list[Row]:
    """The lines that are whole: a run that is being trained may be writing the last one."""
    rows = []
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def tidy_rows(subjects: Sequence[Subject]) -> list[Row]:
    """All rows of all suites of all runs, with the run, its variant and its seed; lists (per document) are left out."""
    return [
        {
            "run": s.evaluation.run.name,
            "variant": s.variant,
            "seed": s.config.seed,
            "suite": suite,
            **{k: v for k, v in row.items() if not isinstance(v, (list, dict))},
        }
        for s in subjects
        for suite, result in s.evaluation.results.items()
        for row in result["rows"]
    ]


def write_csv(subjects: Sequence[Subject], path: Path) -> None:
    """`tidy_rows` as CSV; what was not measured is an empty field, and `note` says why."""
    rows = tidy_rows(subjects)
    others = sorted({k for row in rows for k in row} - {*FIRST_COLUMNS, *VALUE_COLUMNS, *DOCUMENT_COLUMNS})
    text = io.StringIO()
    writer = csv.DictWriter(text, [*FIRST_COLUMNS, *others, *VALUE_COLUMNS], extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_atomically(path, text.getvalue())
