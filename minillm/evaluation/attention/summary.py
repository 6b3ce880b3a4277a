"""From sums per case to rows: a mean, its n, and a 95 % interval over documents (or samples), by layer and by kind.

What is averaged is always a row of attention: a mean over layers and heads of one kind is that of all their rows. `n`
counts query rows of the text, not times heads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from minillm.config.layers import LayerSpec
from minillm.evaluation.attention.cases import SEGMENTS
from minillm.evaluation.attention.collect import SHOWN_FROM, SHOWN_SHARE, STRETCHES, Collected
from minillm.evaluation.attention.probe import bin_edges
from minillm.evaluation.intervals import DRAWS, LEVEL, Estimate, token_mean

Row = dict[str, Any]
EVEN = {
    "entropy_bits": "entropy",
    "entropy_share": "entropy_share",
    "mean_distance": "distance",
    "sink_logit_mass": "to_sink",
}


def row(metric: str, length: int, estimate: Estimate | None = None, **fields: Any) -> Row:
    """A row in the form that all of this suite's have."""
    empty = Estimate(None, 0, None, None)
    value, n, low, high = empty if estimate is None else estimate
    where = dict.fromkeys(("layer", "head", "kind", "segment", "bin"))
    return {
        "metric": metric, "length": length, **where, "note": None, **fields,
        "value": value, "n": n, "low": low, "high": high,
    }  # fmt: skip


class Clusters:
    """Sums over the cases of each document, and estimates over documents."""

    def __init__(self, of_case: Sequence[int]) -> None:
        names, self.of_case = np.unique(np.asarray(of_case), return_inverse=True)
        self.count = len(names)

    def sums(self, per_case: np.ndarray | Sequence[float]) -> np.ndarray:
        """(N, ...) -> (clusters, ...)."""
        values = np.asarray(per_case, np.float64)
        out = np.zeros((self.count, *values.shape[1:]))
        np.add.at(out, self.of_case, values)
        return out

    def mean(self, sums: np.ndarray, counts: np.ndarray, rows: np.ndarray | None = None) -> Estimate:
        """sum / count, both (N,); n is the sum of `rows` where counts are not rows themselves."""
        # token_mean takes counts for whole numbers, and shares of a row may add up to less than one.
        scale = 1.0 if rows is None else 2.0**40
        found = token_mean(list(scale * self.sums(sums)), list(scale * self.sums(counts)))
        return found if rows is None else found._replace(n=int(np.sum(rows)))


def summarise(found: Collected, specs: Sequence[LayerSpec], length: int, thresholds: Sequence[float]) -> list[Row]:
    """Every row of one length but for knockout, position and similarity."""
    clusters = Clusters(found.clusters)
    answers = np.asarray(found.answer_rows, np.float64)
    even = np.asarray(found.even_rows, np.float64)
    rows = []
    if answers.sum():
        rows += _segment_rows(found, specs, length, clusters, answers)
        rows += _retrieval_rows(found, specs, length, clusters, answers)
        for metric, per_case in (("answer_accuracy", found.correct), ("answer_log_prob", found.log_prob)):
            rows.append(row(metric, length, clusters.mean(np.asarray(per_case), answers)))
    for metric, name in EVEN.items():
        members = [spec for spec in specs if metric != "sink_logit_mass" or spec.sink_logits]
        for where, layers in groups(members):
            per_layer = [found.layers[i].stacked(name).mean(axis=1) for i in layers]
            rows.append(row(metric, length, clusters.mean(np.mean(per_layer, axis=0), even), **where))
    rows += _sink_rows(found, specs, length, clusters, thresholds)
    rows += _distance_rows(found, specs, length, clusters, even)
    return rows


def groups(specs: Sequence[LayerSpec]) -> Iterable[tuple[Row, list[int]]]:
    """Each layer alone, then the layers of each kind together."""
    for spec in specs:
        yield {"layer": spec.index, "kind": spec.kind}, [spec.index]
    for kind in dict.fromkeys(spec.kind for spec in specs):
        yield {"kind": kind}, [spec.index for spec in specs if spec.kind == kind]


def _segment_rows(
    found: Collected, specs: Sequence[LayerSpec], length: int, clusters: Clusters, answers: np.ndarray
) -> list[Row]:
    rows = []
    for where, layers in groups(specs):
        mass = np.mean([found.layers[i].stacked("mass").mean(axis=1) for i in layers], axis=0)
        share = found.layers[layers[0]].stacked("share")
        for s, segment in enumerate(SEGMENTS):
            rows.append(row("segment_mass", length, clusters.mean(mass[:, s], answers), segment=segment, **where))
            if share[:, s].sum():
                ratio = clusters.mean(mass[:, s], share[:, s], answers)
                rows.append(row("segment_ratio", length, ratio, segment=segment, **where))
    for spec in specs:
        mass = found.layers[spec.index].stacked("mass")
        for head in range(spec.num_attention_heads):
            estimate = clusters.mean(mass[:, head, 1], answers)
            rows.append(
                row("segment_mass", length, estimate, layer=spec.index, head=head, kind=spec.kind, segment="needle")
            )
    for kind in dict.fromkeys(spec.kind for spec in specs):
        layers = [spec.index for spec in specs if spec.kind == kind]
        place = np.mean([found.layers[i].stacked("by_place") for i in layers], axis=0)
        for stretch in range(STRETCHES):
            low, high = _stretch(length, stretch)
            if low > high:
                continue
            estimate = clusters.mean(place[:, stretch], answers)
            rows.append(row("attention_by_place", length, estimate, kind=kind, bin=f"{low}-{high}"))
    return rows


def _stretch(length: int, stretch: int) -> tuple[int, int]:
    """First and last token of a stretch of `collect._stretches`."""
    last = int(length * SHOWN_SHARE)
    first = min(SHOWN_FROM, last)
    count = last - first
    return first - (-stretch * count // STRETCHES), first - (-(stretch + 1) * count // STRETCHES) - 1


def _retrieval_rows(
    found: Collected, specs: Sequence[LayerSpec], length: int, clusters: Clusters, answers: np.ndarray
) -> list[Row]:
    """`retrieval`: how often a head's highest key is the token to be copied (arXiv 2404.15574); `retrieval_near`: or at
    most `collect.NEAR` tokens from it; `retrieval_best`: the latter, of the best head of a kind."""
    rows = []
    for metric, name in (("retrieval", "hits"), ("retrieval_near", "near")):
        hits = {spec.index: found.layers[spec.index].stacked(name) for spec in specs}
        for spec in specs:
            for head in range(spec.num_attention_heads):
                estimate = clusters.mean(hits[spec.index][:, head], answers)
                rows.append(row(metric, length, estimate, layer=spec.index, head=head, kind=spec.kind))
        for where, layers in groups(specs):
            per_layer = [hits[i].mean(axis=1) for i in layers]
            rows.append(row(metric, length, clusters.mean(np.mean(per_layer, axis=0), answers), **where))
    for kind in dict.fromkeys(spec.kind for spec in specs):
        # A few heads do the work, which a mean over all of them hides.
        heads = [(s.index, h) for s in specs if s.kind == kind for h in range(s.num_attention_heads)]
        layer, head = max(heads, key=lambda x: hits[x[0]][:, x[1]].sum())
        estimate = clusters.mean(hits[layer][:, head], answers)
        rows.append(row("retrieval_best", length, estimate, kind=kind, layer=layer, head=head))
    return rows


def _sink_rows(
    found: Collected, specs: Sequence[LayerSpec], length: int, clusters: Clusters, thresholds: Sequence[float]
) -> list[Row]:
    """Mass on key 0, and the share of heads that put more than a threshold there (arXiv 2410.10781). Rows that do not
    see key 0 are left out; a layer none of whose rows do has no value."""
    rows = []
    first = {s.index: clusters.sums(found.layers[s.index].stacked("on_first")) for s in specs}
    seeing = {s.index: clusters.sums(found.layers[s.index].seeing_first) for s in specs}
    whole = Clusters(range(clusters.count))
    for spec in specs:
        if not seeing[spec.index].sum():
            continue
        for head in range(spec.num_attention_heads):
            estimate = whole.mean(first[spec.index][:, head], seeing[spec.index])
            rows.append(row("sink_mass", length, estimate, layer=spec.index, head=head, kind=spec.kind))
    for where, layers in groups(specs):
        layers = [i for i in layers if seeing[i].sum()]
        if not layers:
            note = "the first token is beyond the reach of every row"
            rows.append(row("sink_mass", length, note=note, **where))
            if "layer" not in where:
                rows += [row("sink_rate", length, bin=f">{t:g}", note=note, **where) for t in thresholds]
            continue
        mean = np.mean([first[i].mean(axis=1) / np.maximum(seeing[i], 1) * seeing[layers[0]] for i in layers], axis=0)
        rows.append(row("sink_mass", length, whole.mean(mean, seeing[layers[0]]), **where))
        if "layer" not in where:
            n = int(seeing[layers[0]].sum())
            for threshold in thresholds:
                estimate = _rate([first[i] for i in layers], [seeing[i] for i in layers], threshold, n)
                rows.append(row("sink_rate", length, estimate, bin=f">{threshold:g}", **where))
    return rows


def _rate(first: list[np.ndarray], seeing: list[np.ndarray], threshold: float, n: int) -> Estimate:
    """Share of heads whose mean mass on key 0 exceeds the threshold; documents are resampled, then heads counted."""

    def rate(weights: np.ndarray) -> np.ndarray:
        above = [
            (weights @ f) / np.maximum(weights @ s, 1e-12)[:, None] > threshold
            for f, s in zip(first, seeing, strict=True)
        ]
        return np.concatenate(above, axis=1).mean(axis=1)

    count = len(first[0])
    value = float(rate(np.ones((1, count)))[0])
    if count < 2:
        return Estimate(value, n, None, None)
    draws = np.random.default_rng(0).multinomial(count, [1 / count] * count, DRAWS).astype(np.float64)
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(rate(draws), [tail, 100 - tail])
    return Estimate(value, n, float(low), float(high))


def _distance_rows(
    found: Collected, specs: Sequence[LayerSpec], length: int, clusters: Clusters, even: np.ndarray
) -> list[Row]:
    """By distance and kind: mean attention to a visible key, and `recency`, the same against an even spread over the
    keys that a row sees, which rows of different lengths have in common. A bin that no row sees into has no row."""
    rows = []
    for kind in dict.fromkeys(spec.kind for spec in specs):
        layers = [spec.index for spec in specs if spec.kind == kind]
        mass, keys, share = (
            np.mean([found.layers[i].stacked(f"{name}by_distance") for i in layers], axis=0)
            for name in ("", "keys_", "share_")
        )
        for b, (low, high) in enumerate(bin_edges(length)):
            if keys[:, b].sum():
                where = {"kind": kind, "bin": str(low) if low == high else f"{low}-{high}"}
                rows.append(row("attention_by_distance", length, clusters.mean(mass[:, b], keys[:, b], even), **where))
                rows.append(row("recency", length, clusters.mean(mass[:, b], share[:, b], even), **where))
    return rows
