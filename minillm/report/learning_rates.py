"""Which learning rate each arm was given, and how it was chosen: part of the result, as a rate that suits one arm can
make another look worse than it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from minillm.report import recall, wording
from minillm.report.blocks import Table
from minillm.report.collect import Subject, name_variants

IGNORED = ("seed", "optim.lr")


def grid(subjects: Sequence[Subject]) -> Table | None:
    """Arms of which runs differ in `optim.lr` alone, a line a rate; None where there is no such arm."""
    arms = _arms(subjects)
    tried = {arm: rates for arm, rates in arms.items() if len(rates) > 1}
    if not tried:
        return None
    accuracy = bool(recall.measured(subjects))
    rows = []
    for arm, rates in tried.items():
        losses = {rate: _losses(runs) for rate, runs in rates.items()}
        means = {r: sum(v) / len(v) for r, v in losses.items() if v and len(v) == len(rates[r])}
        best = min((r for r in means if math.isfinite(means[r])), key=lambda r: means[r], default=None)
        for rate, runs in sorted(rates.items()):
            said = ""
            if rate == best:
                said = "chosen, at the grid's edge: extend it" if rate in (min(rates), max(rates)) else "chosen"
            seeds = ", ".join(str(s.config.seed) for s in runs)
            points = ", ".join(wording.number(v) for v in losses[rate])
            row = [arm, f"{rate:g}", seeds, wording.number(means.get(rate)), points or wording.NOTHING]
            rows.append([*row, *([_accuracy(runs)] if accuracy else []), said])
    header = ["arm", "learning rate", "seeds", "held-out loss", "each seed"]
    header += ["token accuracy at 1x"] if accuracy else []
    return Table(
        [*header, ""],
        rows,
        "The grid of learning rates. Chosen is the lowest held-out loss in distribution, the mean over its seeds, and "
        "never by what happens beyond the training length. The rest of the report has every rate as a variant of its "
        "own.",
        frozenset({0, len(header)}),
    )


def note(subjects: Sequence[Subject]) -> str | None:
    """One sentence where there is no grid; None where no run was trained here."""
    arms = _arms(subjects)
    rates = {rate for by_rate in arms.values() for rate in by_rate}
    if not rates or any(len(by_rate) > 1 for by_rate in arms.values()):
        return None
    if len(rates) == 1:
        return f"One learning rate, not tuned per arm: {rates.pop():g}."
    listed = "; ".join(f"{arm} {rate:g}" for arm, by_rate in arms.items() for rate in by_rate)
    return f"Learning rates differ between arms, and no grid of them is in this comparison: {listed}."


def _arms(subjects: Sequence[Subject]) -> dict[str, dict[float, list[Subject]]]:
    """Arm -> learning rate -> runs; models that were trained elsewhere have none that is known."""
    trained = [s for s in subjects if s.evaluation.step > 0]
    arms: dict[str, dict[float, list[Subject]]] = {}
    for name, s in zip(name_variants([s.config for s in trained], IGNORED), trained, strict=True):
        arms.setdefault(name, {}).setdefault(float(s.config.optim.lr), []).append(s)
    return arms


def _losses(runs: Sequence[Subject]) -> list[float]:
    found = [s.last("final/loss", "val/loss") for s in runs]
    return [value for value in found if value is not None]


def _accuracy(runs: Sequence[Subject]) -> str:
    rows = [next(iter(recall.shown(s, "token_accuracy")), None) for s in runs]
    values = [row["value"] for row in rows if row is not None and row["value"] is not None]
    return wording.number(sum(values) / len(values)) if values and len(values) == len(runs) else wording.NOTHING
