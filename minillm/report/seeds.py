"""What the report says over seeds: means with intervals over seeds and documents, each seed's own number, and paired
differences against the first variant.

    found = lines(subjects)                     # [] where no variant has more than one seed
    tables = [headline(found), *details(found)]
    write_csv(found, out / "seeds.csv")
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minillm.evaluation.seeds import DRAWS, SEEDS_FOR_T, NotPaired, OverSeeds, paired_over_seeds
from minillm.evaluation.table import LEARNT
from minillm.report import recall, wording
from minillm.report.blocks import Table
from minillm.report.collect import Row, Subject
from minillm.report.groups import Group, by_seed, changes, groups, over_rows, several
from minillm.training.run_folder import write_atomically

COLUMNS = (
    "variant", "against", "suite", "metric", "length", "multiple", "mean", "low", "high", "t_low", "t_high", "seeds",
    "values", "note",
)  # fmt: skip
MOST_SEEDS = 12
"""So many are listed one by one in a table; seeds.csv has all."""


@dataclass(frozen=True)
class Measure:
    """A number that is shown over seeds."""

    suite: str
    metric: str
    title: str
    rows: Callable[[Subject], list[Row]]
    """Of a run, by rising length."""
    signed: bool = False
    shown: bool = True
    """As it is; False: as a difference between variants alone."""
    paired: bool = True
    quoted: bool = True
    """In the table at a glance."""


@dataclass(frozen=True)
class Line:
    """One number of one variant over its seeds, or its difference against another variant."""

    variant: str
    against: str | None
    measure: Measure
    length: int
    multiple: float
    estimate: OverSeeds | None
    seeds: tuple[int, ...]
    """All that the variant has; `estimate.seeds` are those that the number is of."""
    note: str = ""
    """Why there is no number, or not of every seed."""


def lines(subjects: Sequence[Subject]) -> list[Line]:
    """Every measure at every length, variant by variant; nothing where no variant has several seeds."""
    if not several(subjects):
        return []
    found = groups(subjects)
    out = []
    for measure in MEASURES:
        at = sorted({(r["multiple"], r["length"]) for s in subjects for r in measure.rows(s)})
        for against in (None, *found[:1]):
            if not (measure.shown if against is None else measure.paired):
                continue
            for group in found:
                own = sorted({(r["multiple"], r["length"]) for s in group.subjects for r in measure.rows(s)})
                # Of undertrained runs nothing is known of a length; that it is so is said at each.
                asked = at if len({s.train_length for s in subjects}) == 1 and own else own
                out += [_line(measure, group, against, n, m) for m, n in asked if group is not against]
    return out


def _line(measure: Measure, group: Group, against: Group | None, length: int, multiple: float) -> Line:
    def pick(s: Subject) -> Row | None:
        return next((r for r in measure.rows(s) if r["length"] == length), None)

    def line(estimate: OverSeeds | None, note: str = "") -> Line:
        name = None if against is None else against.label
        return Line(group.label, name, measure, length, multiple, estimate, group.seeds, note)

    both = group.subjects if against is None else (*group.subjects, *against.subjects)
    if against is not None and set(group.seeds) != set(against.seeds):
        seeds = [", ".join(map(str, g.seeds)) for g in (group, against)]
        return line(None, f"not paired: seeds differ ({' and '.join(seeds)})")
    weak = {s.config.seed for s in both if pick(s) is None and recall.task(s) is not None and not recall.learned(s)}
    taken = [s for s in group.subjects if s.config.seed not in weak]
    if not taken:
        return line(None, recall.UNDERTRAINED)
    note = f"{len(taken)} of {len(group.subjects)} seeds trained" if weak else ""
    for s in both:
        row = pick(s)
        if s.config.seed not in weak and (row is None or row["value"] is None):
            return line(None, wording.loss(row))
    if against is None:
        estimate = over_rows(taken, pick)
        return line(estimate, note if estimate is not None else "documents differ between seeds")
    base = [s for s in against.subjects if s.config.seed not in weak]
    pair = by_seed(taken, pick), by_seed(base, pick)
    if pair[0] is None or pair[1] is None:
        return line(None, "not paired: documents differ")
    try:
        return line(paired_over_seeds(pair[0], pair[1]), note)
    except NotPaired as reason:
        return line(None, str(reason))


def headline(found: Sequence[Line]) -> Table | None:
    """A line a variant: the few numbers to look for first."""
    whole = [line for line in found if line.against is None]
    if not whole:
        return None
    far = {line.multiple for line in whole}
    quoted = {m for m in far if m in (4, max(far))}
    columns = {
        (line.measure.metric, line.multiple): f"{line.measure.title}{_at(line)}"
        for line in whole
        if line.measure.quoted and (line.multiple in quoted or line.measure.suite == TRAINING)
    }
    rows = []
    for variant in dict.fromkeys(line.variant for line in whole):
        own = {(line.measure.metric, line.multiple): line for line in whole if line.variant == variant}
        every = len(next(iter(own.values())).seeds)
        weak = [line for line in own.values() if line.note == recall.UNDERTRAINED or line.note.endswith("trained")]
        trained = min((0 if line.estimate is None else len(line.estimate.seeds) for line in weak), default=every)
        count = str(every) if trained == every else f"{every}, {trained} trained"
        rows.append([variant, count, *(_cell(own.get(key)) for key in columns)])
    return Table(
        ["variant", "seeds", *columns.values()],
        rows,
        "Over seeds: mean [95 % interval over seeds and documents]. Losses and log-probabilities in nats per token; "
        "changes are of the loss on the same target tokens against 1x the training length; held-out numbers are known "
        "as a whole, so their interval is over seeds alone. Recall beyond 1x is of the seeds that learned the task. "
        "Each seed's numbers stand below.",
    )


def _at(line: Line) -> str:
    return "" if line.measure.suite == TRAINING else f" at {line.multiple:g}x"


def _cell(line: Line | None) -> str:
    if line is None:
        return wording.NOTHING
    if line.estimate is None:
        return line.note
    return wording.loss(line.estimate._asdict(), signed=line.measure.signed)


def details(found: Sequence[Line]) -> list[Table]:
    """Tables with each seed's numbers, and one of the differences against the first variant."""
    tables = []
    for captions in CAPTIONS:
        own = [line for line in found if line.against is None and line.measure.metric in captions.metrics]
        if own:
            tables.append(_table(own, captions.text, measures=len(captions.metrics) > 1))
    paired = [line for line in found if line.against is not None]
    if paired:
        caption = (
            f"Minus {paired[0].against}, seed by seed on the same documents or samples: what both owe to the seed or "
            "to the text cancels. Losses: below zero is better; log-probabilities and accuracies: above."
        )
        tables.append(_table(paired, caption, measures=True))
    return tables


def _table(own: Sequence[Line], caption: str, measures: bool = False) -> Table:
    student = any(line.estimate is not None and line.estimate.t_low is not None for line in own)
    lengths = len({line.multiple for line in own}) > 1
    header = ["variant", *(["measure"] if measures else []), *(["length"] if lengths else [])]
    header += ["mean" if own[0].against is None else "mean difference", "95 % interval"]
    header += ["Student's, over seeds"] if student else []
    rows = []
    for line in own:
        signed = line.measure.signed or line.against is not None
        row = [line.variant, *([line.measure.title] if measures else [])]
        row += [_length(line)] if lengths else []
        e = line.estimate
        if e is None:
            rows.append([*row, line.note, *([wording.NOTHING] * (2 + student)), _list(line.seeds)])
            continue
        row += [wording.loss(e._asdict(), signed, interval=False), _interval(e.low, e.high, signed)]
        row += [_interval(e.t_low, e.t_high, signed)] if student else []
        values = [wording.loss({"value": v}, signed, interval=False) for v in e.values]
        rows.append([*row, _list(values), _list(e.seeds) + (f" ({line.note})" if line.note else "")])
    if student:
        caption += " Student's interval is over the seeds alone: for these documents, not for others."
    text = {0, len(header), len(header) + 1} | ({1} if measures else set())
    return Table([*header, "each seed", "seeds"], rows, caption, frozenset(text))


def _interval(low: float | None, high: float | None, signed: bool) -> str:
    if low is None or high is None:
        return "none: one seed"
    ends = [wording.loss({"value": end}, signed, interval=False) for end in (low, high)]
    return f"[{ends[0]}, {ends[1]}]"


def _list(values: Sequence[Any]) -> str:
    more = f", and {len(values) - MOST_SEEDS} more" if len(values) > MOST_SEEDS else ""
    return ", ".join(map(str, values[:MOST_SEEDS])) + more


def _length(line: Line) -> str:
    return wording.NOTHING if line.measure.suite == TRAINING else f"{line.multiple:g}x"


def undertrained(subjects: Sequence[Subject]) -> list[str]:
    """Which seeds of a variant did not learn their task, where it has several."""
    said = []
    for group in groups(recall.measured(subjects)):
        weak = [s.config.seed for s in group.subjects if not recall.learned(s)]
        if weak and len(group.subjects) > 1:
            trained = f"{len(group.subjects) - len(weak)} of {len(group.subjects)} seeds trained"
            seeds, them = ("seeds", "them") if len(weak) > 1 else ("seed", "it")
            said.append(
                f"{group.variant}: {trained}; {seeds} {', '.join(map(str, weak))} stayed below {LEARNT:.0%} at the "
                f"training length, and nothing of {them} is shown or put into a mean beyond it."
            )
    return said


def write_csv(found: Sequence[Line], path: Path) -> None:
    """All lines as one tidy table; seeds and their values are lists between spaces."""
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for line in found:
        e = line.estimate
        row: dict[str, Any] = {
            "variant": line.variant, "against": line.against, "suite": line.measure.suite,
            "metric": line.measure.metric, "length": line.length, "multiple": line.multiple, "note": line.note,
        }  # fmt: skip
        if e is not None:
            row |= {"mean": e.value, "low": e.low, "high": e.high, "t_low": e.t_low, "t_high": e.t_high}
            row |= {"seeds": " ".join(map(str, e.seeds)), "values": " ".join(map(repr, e.values))}
        writer.writerow(row)
    write_atomically(path, text.getvalue())


@dataclass(frozen=True)
class Captioned:
    """Metrics that stand in one table, and what is said over it."""

    metrics: tuple[str, ...]
    text: str


CAPTIONS = (
    Captioned(
        ("held_out_loss", "held_out_bits_per_byte"),
        "Held-out loss (nats per token) and bits per byte. They are known of the whole held-out set only, so the "
        "interval is over seeds alone.",
    ),
    Captioned(
        ("nll_change",),
        "Change of the loss on the same target tokens when their context grows from 1x the training length, in nats.",
    ),
    Captioned(
        ("gold_log_probability",),
        "Log-probability of the right answer tokens, nats per token: the primary number, as it still tells variants "
        "apart where accuracy is near 0 or 1. Beyond 1x, of the seeds that learned the task.",
    ),
    Captioned(
        ("token_accuracy",), "Share of answer tokens that are right. Beyond 1x, of the seeds that learned the task."
    ),
    Captioned(("exact",), "Share of samples with all answers right. Beyond 1x, of the seeds that learned the task."),
)


EXPLAINED = [
    "A seed decides the initial weights and the order of the data. Runs of one variant that differ in their seed alone "
    "are put together here; every seed is measured on the same documents or samples.",
    "Mean over seeds; 95 % interval of a bootstrap that draws seeds and documents together, both with replacement, "
    f"{DRAWS:,} times. With fewer than {SEEDS_FOR_T} seeds it is rough, and too narrow where seeds differ more than "
    "documents do: look at the seeds themselves, which stand beside. No p-values are given. "
    "Where all seeds are always right, or never, the interval is Wilson's, each sample counting once.",
]


TRAINING = "training"
"""Stands for a suite in the lines of what training itself logged."""


def _logged(*keys: str) -> Callable[[Subject], list[Row]]:
    """The last value that training logged, as the row of a single document: no more is known of it."""

    def rows(subject: Subject) -> list[Row]:
        value = subject.last(*keys)
        length = {"metric": keys[0], "length": subject.train_length, "multiple": 1.0}
        one = {"document_nll": [value], "document_tokens": [1]}
        return [] if value is None else [{**length, "value": value, **one}]

    return rows


def _same_target(subject: Subject) -> list[Row]:
    return subject.rows("length_perplexity", "nll", protocol="same_target")


MEASURES = (
    Measure(TRAINING, "held_out_loss", "held-out loss", _logged("final/loss", "val/loss")),
    Measure(
        TRAINING, "held_out_bits_per_byte", "bits per byte",
        _logged("final/bits_per_byte", "val/bits_per_byte"), paired=False,
    ),
    Measure("length_perplexity", "nll", "same-target loss", _same_target, shown=False),
    Measure(
        "length_perplexity", "nll_change", "same-target change",
        lambda s: [r for r in changes(s) if r["multiple"] > 1], signed=True, paired=False,
    ),
    Measure("recall", "gold_log_probability", "gold log-probability", recall.gold_log_probability),
    Measure("recall", "token_accuracy", "token accuracy", lambda s: recall.shown(s, "token_accuracy")),
    Measure("recall", "exact", "exact match", lambda s: recall.shown(s, "exact"), paired=False, quoted=False),
)  # fmt: skip
