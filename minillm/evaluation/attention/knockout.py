"""Do the heads that look at the answer carry it? Silence them, and as many others of the same layers, and compare.

Mass and arg-max only correlate with recall. Here what the best retrieval heads hand to the output projection is zeroed
(Wu et al. 2024, arXiv 2404.15574, section 4), and as a control as many heads of the same layers that are not among
them, some draws of them. Both are scored on cases other than those that the heads were chosen on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from minillm.evaluation.attention.cases import Case
from minillm.evaluation.attention.collect import Reading, answered, batches
from minillm.evaluation.attention.summary import Clusters, Row, row
from minillm.evaluation.attention.walk import silenced
from minillm.evaluation.intervals import Estimate, paired_difference
from minillm.model.decoder import Decoder

Head = tuple[int, int]
"""Layer and head."""


def best_heads(scores: Mapping[int, np.ndarray], count: int | None) -> list[Head]:
    """The `count` heads of highest score, of equal ones the earlier; heads of score 0 are none. None takes those that
    are at least half as good as the best, a quarter of all heads at most: others that do the same work would stand in
    for a few silenced ones."""
    every = sorted((-value, layer, head) for layer, of in scores.items() for head, value in enumerate(of))
    least = max(-every[0][0] / 2, 0) if count is None else 0
    good = [(layer, head) for negative, layer, head in every if -negative >= least and negative < 0]
    return good[: max(1, len(every) // 4) if count is None else count]


def control_heads(chosen: Sequence[Head], heads_of: Mapping[int, int], draw: np.random.Generator) -> list[Head]:
    """As many heads that are not `chosen`, from the same layers; where a layer has too few, from the nearest ones."""
    free = {layer: [h for h in range(n) if (layer, h) not in set(chosen)] for layer, n in heads_of.items()}
    out: list[Head] = []
    for layer, _ in sorted(chosen):
        # Of a layer above and one below that are as near, either: all of one layer would be a blow of its own.
        nearest = sorted((o for o in free if free[o]), key=lambda other: (abs(other - layer), draw.random()))
        if not nearest:
            break
        head = free[nearest[0]].pop(int(draw.integers(len(free[nearest[0]]))))
        out.append((nearest[0], head))
    return out


@torch.inference_mode()
def answers(
    model: Decoder, cases: Sequence[Case], heads: Sequence[Head], reading: Reading
) -> tuple[np.ndarray, np.ndarray]:
    """Correct answer tokens and log-probability (nats) of them, (N,) each, while `heads` are silent."""
    found = []
    for batch in batches(cases, reading.batch_tokens):
        tokens = torch.from_numpy(np.stack([case.tokens for case in batch])).to(reading.device)
        with silenced(model, heads):
            hidden = reading.hidden(model, tokens)
        found += [answered(model, hidden[i], case) for i, case in enumerate(batch)]
        reading.progress(tokens.numel())
    correct, log_prob = np.asarray(found).T
    return correct, log_prob


def knockout(
    model: Decoder,
    cases: Sequence[Case],
    scores: Mapping[int, np.ndarray],
    count: int | None,
    draws: int,
    length: int,
    reading: Reading = Reading(),  # noqa: B008
) -> list[Row]:
    """Rows `knockout_accuracy` and `knockout_log_prob` (nats) with `heads` none, retrieval, random, and their paired
    change against none. The cases are read 2 + draws times.

    Args:
        scores: of each layer, (H,) retrieval scores (`collect.LayerSums.near`).
        count: heads to silence, see `best_heads`; draws: sets of control heads, whose mean is reported.
    """
    heads_of = {spec.index: spec.num_attention_heads for spec in model.layer_specs}
    chosen = best_heads(scores, count)
    if not chosen:
        reading.progress((2 + draws) * sum(len(case.tokens) for case in cases))
        return [
            row("knockout_accuracy", length, heads="retrieval", note="no head's highest key is ever near the answer")
        ]
    generator = np.random.default_rng(0)
    controls = [control_heads(chosen, heads_of, generator) for _ in range(draws)]
    base, silent = (answers(model, cases, heads, reading) for heads in ([], chosen))
    random = np.mean([answers(model, cases, heads, reading) for heads in controls], axis=0)
    clusters = Clusters([case.cluster for case in cases])
    asked = np.asarray([len(case.rows) for case in cases], np.float64)
    rows = []
    for m, metric in enumerate(("knockout_accuracy", "knockout_log_prob")):
        for name, found in (("none", base), ("retrieval", silent), ("random", random)):
            listed = [f"{layer}.{head}" for layer, head in chosen] if name == "retrieval" else []
            extra = {"heads": name, "silenced": len(chosen) if name != "none" else 0}
            rows.append(row(metric, length, clusters.mean(found[m], asked), which=listed, **extra))
            if name != "none":
                rows.append(row(f"{metric}_change", length, _change(clusters, found[m], base[m], asked), **extra))
    return rows


def _change(clusters: Clusters, found: np.ndarray, base: np.ndarray, asked: np.ndarray) -> Estimate:
    counts = list(clusters.sums(asked))
    return paired_difference(list(clusters.sums(found)), counts, list(clusters.sums(base)), counts)
