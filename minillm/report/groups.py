"""The runs of one variant over its seeds, and means over them of what the runs' results hold per document.

for group in groups(subjects):
    over_rows(group.subjects, lambda s: s.row("length_perplexity", "nll", 1024, protocol="same_target"))
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np

from minillm.evaluation.seeds import BySeed, OverSeeds, over_seeds, share_over_seeds
from minillm.report.collect import Row, Subject

CLUSTERS = (("document_nll", "document_tokens"), ("sample_sums", "sample_counts"))
"""Where rows keep sums and counts per document, or per sample of a task."""
SHARES = ("token_accuracy", "exact")


@dataclass(frozen=True)
class Group:
    """One variant: runs that differ in their seed alone, each seed once, by rising seed."""

    variant: str
    subjects: tuple[Subject, ...]

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(s.config.seed for s in self.subjects)

    @property
    def label(self) -> str:
        """The variant; of a single run what tables call it."""
        return self.variant if len(self.subjects) > 1 else self.subjects[0].label


def groups(subjects: Sequence[Subject]) -> list[Group]:
    """One for each variant, in the order of the comparison. Of a seed that stands twice, the first run is taken."""
    found: dict[str, dict[int, Subject]] = {}
    for s in subjects:
        found.setdefault(s.variant, {}).setdefault(s.config.seed, s)
    return [Group(variant, tuple(by[seed] for seed in sorted(by))) for variant, by in found.items()]


def several(subjects: Sequence[Subject]) -> bool:
    """Whether some variant has more than one seed."""
    return any(len(group.subjects) > 1 for group in groups(subjects))


def repeated(subjects: Sequence[Subject]) -> list[str]:
    """What is said of runs that are left out of means over seeds, as their seed is there already."""
    kept = {id(s) for group in groups(subjects) for s in group.subjects}
    return [
        f"{s.label}: seed {s.config.seed} of {s.variant} stands twice; means over seeds take the first one."
        for s in subjects
        if id(s) not in kept
    ]


def by_seed(subjects: Sequence[Subject], pick: Callable[[Subject], Row | None]) -> BySeed | None:
    """The rows that `pick` takes of each run, per document; None where one is missing, keeps no sums per document, or
    is of other documents than the first."""
    sums, counts, read = [], [], []
    for s in subjects:
        row = pick(s)
        keys = next((k for k in CLUSTERS if row is not None and row.get(k[0])), None)
        if row is None or row["value"] is None or keys is None:
            return None
        sums.append(np.asarray(row[keys[0]], np.float64))
        counts.append(np.asarray(row[keys[1]], np.float64))
        read.append(_documents(s, keys[0]))
    if not sums or len(set(read)) > 1 or len({len(part) for part in sums}) > 1:
        return None
    return BySeed(tuple(s.config.seed for s in subjects), np.stack(sums), np.stack(counts), read[0])


def over_rows(subjects: Sequence[Subject], pick: Callable[[Subject], Row | None]) -> OverSeeds | None:
    """Mean over seeds of these rows with its interval; None as `by_seed`."""
    measured = by_seed(subjects, pick)
    if measured is None:
        return None
    row = pick(subjects[0])
    assert row is not None
    return (share_over_seeds if row["metric"] in SHARES else over_seeds)(measured)


def _documents(subject: Subject, key: str) -> Hashable:
    """What was read: documents by their digest, or a task's samples by what decides them."""
    if key == CLUSTERS[0][0]:
        return subject.settings("length_perplexity").get("documents_digest")
    settings = subject.settings(str((subject.config.data.task or {}).get("name")))
    return json.dumps([settings.get(k) for k in ("task", "rules", "samples", "train_length")], sort_keys=True)


def changes(subject: Subject) -> list[Row]:
    """The rows `nll_change` of the same targets, with their sums per document: of the loss at each length minus that
    at the first, over the same tokens."""
    loss = subject.rows("length_perplexity", "nll", protocol="same_target")
    rows = []
    for row in subject.rows("length_perplexity", "nll_change", protocol="same_target"):
        own = next((r for r in loss if r["length"] == row["length"]), None)
        sums: dict[str, list[float] | list[int]] = {}
        if own and own["document_nll"] and loss[0]["document_tokens"] == own["document_tokens"]:
            pairs = zip(own["document_nll"], loss[0]["document_nll"], strict=True)
            sums = {"document_nll": [a - b for a, b in pairs], "document_tokens": own["document_tokens"]}
        rows.append({**row, **sums})
    return rows
