"""Arms on equal terms: at the same number of training tokens, and at the same number of training FLOPs.

A plan with windows spends fewer FLOPs on a token, so what is fair by tokens is not fair by work; both are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from minillm.evaluation.seeds import BySeed, NotPaired, over_seeds, paired_over_seeds
from minillm.model.cost import cost
from minillm.report import wording
from minillm.report.blocks import Table
from minillm.report.collect import Subject
from minillm.report.groups import Group, groups


def flops_per_token(subject: Subject) -> float:
    """Of training at the run's training length: three forward passes, attention by the pairs that are seen."""
    return cost(subject.config.model, subject.config.data.seq_len).flops_per_token


def tables(subjects: Sequence[Subject]) -> list[Table]:
    """Both tables, of variants whose held-out loss was logged while they trained; none of a single variant."""
    found = [g for g in groups(subjects) if all(s.curve("val/loss")[0] for s in g.subjects)]
    if len(found) < 2:
        return []
    price = {g.variant: flops_per_token(g.subjects[0]) for g in found}
    ends = {g.variant: min(s.curve("val/loss")[0][-1] for s in g.subjects) for g in found}
    least = min(price[v] * ends[v] for v in ends)
    return [_equal_tokens(found, price, ends), _equal_flops(found, price, least)]


def at_tokens(subject: Subject, tokens: float) -> float | None:
    """Held-out loss after so many tokens, linear between the points that were logged; None outside of them."""
    x, _, y = subject.curve("val/loss")
    return float(np.interp(tokens, x, y)) if x[0] <= tokens <= x[-1] * (1 + 1e-9) else None


def _equal_tokens(found: Sequence[Group], price: dict[str, float], ends: dict[str, float]) -> Table:
    same = len(set(ends.values())) == 1
    said = "the same number for all" if same else "not the same number for all, so that the losses are of other budgets"
    return _table(
        found,
        lambda g: [wording.count(ends[g.variant]), wording.count(price[g.variant] * ends[g.variant])],
        lambda s: at_tokens(s, ends[s.variant]),
        ["tokens", "training FLOPs"],
        f"Equal tokens, as trained ({said}): the headline comparison. The last held-out loss that was logged in "
        "training, nats per token.",
    )


def _equal_flops(found: Sequence[Group], price: dict[str, float], least: float) -> Table:
    def tokens(variant: str) -> float:
        return least / price[variant]

    def own(group: Group) -> list[str]:
        end = min(s.curve("val/loss")[0][-1] for s in group.subjects)
        share = f"{tokens(group.variant) / end:.0%}"
        return [wording.count(price[group.variant]), wording.count(tokens(group.variant)), share]

    return _table(
        found,
        own,
        lambda s: at_tokens(s, tokens(s.variant)),
        ["FLOPs per token", "tokens", "of its training"],
        f"Equal training FLOPs: each arm's held-out loss at {wording.count(least)} FLOPs, all that the cheapest run "
        "spent. Three forward passes a token at the training length, windows and causality counted. Read from the loss "
        "logged while training, linear between its points. An approximation that is unfair to the costlier arms: their "
        "schedules were not shortened to this budget, so their learning rate was still high there, and a run planned "
        "for it would end lower.",
    )


def _table(
    found: Sequence[Group],
    own: Callable[[Group], list[str]],
    loss: Callable[[Subject], float | None],
    columns: list[str],
    caption: str,
) -> Table:
    several = any(len(g.subjects) > 1 for g in found)
    measured = [_by_seed({s.config.seed: loss(s) for s in g.subjects}) for g in found]
    rows = []
    for g, losses in zip(found, measured, strict=True):
        mean = "not logged" if losses is None else wording.loss(over_seeds(losses)._asdict())
        points = [] if not several else [", ".join(map(wording.number, losses.sums[:, 0])) if losses else ""]
        against = wording.NOTHING if g is found[0] else _difference(losses, measured[0])
        rows.append([g.label, *own(g), mean, against, *points])
    header = ["run", *columns, "held-out loss", f"minus {found[0].label}", *(["each seed"] if several else [])]
    more = " Mean over seeds [95 % interval over seeds alone; rough below five]." if several else ""
    return Table(header, rows, caption + more)


def _by_seed(values: dict[int, float | None]) -> BySeed | None:
    """None where the loss of some seed is not known there."""
    known = {seed: value for seed, value in values.items() if value is not None and np.isfinite(value)}
    return BySeed.of_values(known) if len(known) == len(values) else None


def _difference(losses: BySeed | None, first: BySeed | None) -> str:
    if losses is None or first is None:
        return wording.NOTHING
    try:
        return wording.loss(paired_over_seeds(losses, first)._asdict(), signed=True)
    except NotPaired as reason:
        return str(reason)
