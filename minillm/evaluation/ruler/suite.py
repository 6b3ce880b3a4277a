"""Rows of the suite: every task at every length, generated or by likelihood, with means and the effective length.

    rows = measure(ModelSolver(model, Text(tokenizer), settings), materials, text, train_length=256, settings=settings)
    # {"metric": "score", "task": "vt", "form": "generate", "length": 1024, "depth": null, "value": 0.6, "n": 10, ...}

`score` is RULER's, or in the likelihood form the share of samples in which the gold answer has the largest summed
log-probability of ten; `word_match`, `exact` and `gold_nll` (nats per token of the gold answer) stand beside it. What
cannot be measured is a row with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from minillm.errors import PositionUndefined
from minillm.evaluation.intervals import Estimate, clustered_share, token_mean, wilson
from minillm.evaluation.memory import out_of_memory
from minillm.evaluation.ruler.counting import CWE, FWE
from minillm.evaluation.ruler.fit import Sample, Text, make
from minillm.evaluation.ruler.likelihood import Likelihood, choose
from minillm.evaluation.ruler.niah import NIAH
from minillm.evaluation.ruler.qa import QA
from minillm.evaluation.ruler.scoring import exact, found, string_match_all, string_match_part, word_match
from minillm.evaluation.ruler.task import CANDIDATES, Materials, RulerTask, Unfit
from minillm.evaluation.ruler.tracking import VT
from minillm.evaluation.scoring import autocast
from minillm.evaluation.settings import RulerSettings
from minillm.generation import generate
from minillm.model.decoder import Decoder

Row = dict[str, Any]
TASKS: dict[str, RulerTask] = {task.name: task for task in (*NIAH, VT, CWE, FWE, *QA)}
NOT_DEFINED = "not defined"
NOT_FINITE = "not finite"
EFFECTIVE = 0.85
"""Share of the score at the shortest length that the effective length must keep."""
CHANCE = {"generate": 0.0, "likelihood": 1 / CANDIDATES}


class Solver(Protocol):
    """What answers: a model, or a stand-in of the tests."""

    def complete(self, samples: Sequence[Sample]) -> list[str]:
        """What follows each prompt, at most its `budget` tokens, decoded."""
        ...

    def choose(self, sample: Sample) -> list[Likelihood]:
        """Of the gold answer, then of each wrong one."""
        ...


@dataclass(frozen=True)
class ModelSolver:
    """A Decoder on `device`, in eval mode."""

    model: Decoder
    text: Text
    settings: RulerSettings
    device: torch.device | str = "cpu"
    precision: str = "fp32"

    def complete(self, samples: Sequence[Sample]) -> list[str]:
        out: list[str] = []
        rows = max(1, self.settings.batch_tokens // samples[0].length)
        for start in range(0, len(samples), rows):
            batch = samples[start : start + rows]
            with autocast(self.device, self.precision):
                new = generate(
                    self.model, [s.ids for s in batch], max(s.budget for s in batch), stop_ids=[self.text.bos_id]
                )
            out += [self.text.decode(ids[: s.budget]) for ids, s in zip(new, batch, strict=True)]
        return out

    def choose(self, sample: Sample) -> list[Likelihood]:
        context, continuations = candidates(sample, self.text)
        with autocast(self.device, self.precision):
            return choose(self.model, context, continuations, self.settings.batch_tokens)


def candidates(sample: Sample, text: Text) -> tuple[list[int], list[list[int]]]:
    """What all ten texts (prompt and answer, each tokenized as a whole) begin with, and how each goes on.

    So nothing is assumed about where tokens end: a tokenizer that joins an answer's first letters to the prompt's last
    ones takes these from the common part.
    """
    answers = (sample.references[sample.gold], *sample.wrong)
    whole = [[text.bos_id, *text.ids(f"{sample.text} {answer}")] for answer in answers]
    common = min(len(sample.ids), *(len(ids) - 1 for ids in whole))
    first = whole[0]
    for ids in [sample.ids, *whole[1:]]:
        common = next((i for i in range(common) if ids[i] != first[i]), common)
    return first[:common], [ids[common:] for ids in whole]


def total_tokens(settings: RulerSettings) -> int:
    """What `measure` reports to its callback in all."""
    return sum(settings.lengths) * settings.samples * len(settings.tasks) * len(settings.forms)


def measure(
    solver: Solver,
    materials: Materials,
    text: Text,
    train_length: int,
    settings: RulerSettings,
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Rows of the suite, see above. `progress` is called with the number of tokens just read."""
    rows: list[Row] = []
    too_long: str | None = None
    for length in settings.lengths:
        for name in settings.tasks:
            task, made = TASKS[name], _samples(TASKS[name], materials, text, length, settings)
            for form in settings.forms:
                common = _common(form, length, train_length, name)
                if isinstance(made, str) or too_long is not None:
                    rows.append(_row("score", common, note=too_long or f"not measured: {made}"))
                else:
                    try:
                        rows += _measured(solver, task, made, form, common, settings)
                    except (PositionUndefined, MemoryError, RuntimeError) as error:
                        # So it is for all that is longer.
                        too_long = _too_long(error, length)
                        rows.append(_row("score", common, note=too_long))
                if progress is not None:
                    progress(length * settings.samples)
    return [*rows, *_summary(rows, train_length, settings)]


def _samples(
    task: RulerTask, materials: Materials, text: Text, length: int, settings: RulerSettings
) -> list[Sample] | str:
    """The samples of one cell, or why there are none: a mean over those that happen to fit would be of other ones."""
    try:
        return [make(task, materials, text, length, settings.seed, i) for i in range(settings.samples)]
    except Unfit as reason:
        return str(reason)


def _too_long(error: Exception, length: int) -> str:
    if isinstance(error, PositionUndefined):
        return NOT_DEFINED
    if out_of_memory(error):
        return f"not measured: {length} tokens do not fit the memory"
    raise error


def _common(form: str, length: int | None, train_length: int, task: str | None) -> Row:
    multiple = None if length is None else length / train_length
    return {"task": task, "form": form, "length": length, "multiple": multiple, "chance": CHANCE[form]}


def _measured(
    solver: Solver, task: RulerTask, samples: list[Sample], form: str, common: Row, settings: RulerSettings
) -> list[Row]:
    rows: list[Row] = []
    hits: list[list[tuple[float | None, float]]] = []
    """By sample: (depth, found or not) of each reference asked for."""
    if form == "generate":
        outputs = solver.complete(samples)
        match = string_match_part if task.any_reference else string_match_all
        scores = [match(output, s.references) for output, s in zip(outputs, samples, strict=True)]
        whole = [float(exact(o, s.references, task.any_reference)) for o, s in zip(outputs, samples, strict=True)]
        of_words = [word_match(output, s.references) for output, s in zip(outputs, samples, strict=True)]
        pick: Callable[[list[bool]], float] = any if task.any_reference else lambda hits: sum(hits) / len(hits)
        rows.append(_row("word_match", common, _share([float(pick(one)) for one in of_words])))
        rows.append(_row("exact", common, _share(whole)))
        for score, output, s in zip(scores, outputs, samples, strict=True):
            each = [(s.depths[0], score)] if task.any_reference else None
            one_by_one = zip(s.depths, map(float, found(output, s.references)), strict=True)
            hits.append(each or list(one_by_one))
        said: list[Row] = [{"output": output} for output in outputs]
    else:
        found_all = [solver.choose(sample) for sample in samples]
        gold = [likelihoods[0] for likelihoods in found_all]
        sums = [one.log_probability for likelihoods in found_all for one in likelihoods]
        if not torch.tensor(sums).isfinite().all():
            return [_row("score", common, note=NOT_FINITE)]
        scores = [rank_first([one.log_probability for one in likelihoods]) for likelihoods in found_all]
        rows.append(_row("gold_nll", common, token_mean([-g.log_probability for g in gold], [g.tokens for g in gold])))
        hits = [[(s.depths[s.gold], score)] for score, s in zip(scores, samples, strict=True)]
        said = [{"gold_nll": -g.log_probability} for g in gold]
    cases = [
        {
            "index": s.index,
            "tokens": s.tokens,
            "budget": s.budget,
            "needles": s.places,
            "depths": s.depths,
            "gold": s.gold,
            "score": score,
            **more,
        }
        for s, score, more in zip(samples, scores, said, strict=True)
    ]
    rows.insert(0, {**_row("score", common, _share(scores)), "cases": cases})
    return rows + _by_depth(hits, common, settings.depths)


def rank_first(log_probabilities: Sequence[float]) -> float:
    """1 where the first is the largest; shared among equals, so that a model that cannot tell scores chance."""
    best = max(log_probabilities)
    return 1 / log_probabilities.count(best) if log_probabilities[0] == best else 0.0


def _share(values: Sequence[float]) -> Estimate:
    return clustered_share(values, [1] * len(values))


def _by_depth(hits: Sequence[Sequence[tuple[float | None, float]]], common: Row, bins: int) -> list[Row]:
    """Score of single references by where their needle lies, clustered by sample."""
    if all(depth is None for of_sample in hits for depth, _ in of_sample):
        return []
    rows = []
    for number in range(bins):
        inside = [
            [hit for depth, hit in of_sample if depth is not None and int(min(depth * bins, bins - 1)) == number]
            for of_sample in hits
        ]
        inside = [of_sample for of_sample in inside if of_sample]
        estimate = clustered_share([sum(h) for h in inside], [len(h) for h in inside])
        note = None if inside else "no needle lies there"
        rows.append(_row("score", {**common, "depth": (number + 0.5) / bins}, estimate, note))
    return rows


def _summary(rows: Sequence[Row], train_length: int, settings: RulerSettings) -> list[Row]:
    out: list[Row] = []
    for form in settings.forms:
        scores: dict[int, dict[str, Row]] = {length: {} for length in settings.lengths}
        for r in rows:
            if r["metric"] == "score" and r["form"] == form and r["depth"] is None and r["value"] is not None:
                scores[r["length"]][r["task"]] = r
        for length, by_task in scores.items():
            out.append(_mean(by_task, _common(form, length, train_length, None)))
        out.append(_effective(scores, _common(form, None, train_length, None)))
    return out


def _mean(by_task: dict[str, Row], common: Row) -> Row:
    """The plain mean over tasks; Wilson's interval as of so many independent samples, which is wide enough: a mean over
    strata varies less than one over a mixture."""
    if not by_task:
        return _row("mean_score", common, note="not measured: no task")
    value = sum(r["value"] for r in by_task.values()) / len(by_task)
    n = sum(r["n"] for r in by_task.values())
    row = _row("mean_score", common, Estimate(value, n, *wilson(value, n)))
    return {**row, "tasks": len(by_task), "of": sorted(by_task)}


def _effective(scores: dict[int, dict[str, Row]], common: Row) -> Row:
    """The longest length whose mean is at least EFFECTIVE of that at the shortest, over the tasks measured at both."""
    lengths = [length for length, by_task in scores.items() if by_task]
    if not lengths:
        return _row("effective_length", common, note="not measured: no task")
    if len(scores) == 1:
        return _row("effective_length", common, note="not measured: there is one length only")
    first = scores[lengths[0]]
    base = _mean(first, common)
    if base["low"] <= common["chance"] + 1e-9:
        what = f"not measured: at {lengths[0]} tokens it is no better than chance"
        return _row("effective_length", common, note=what)
    longest = lengths[0]
    for length in lengths[1:]:
        shared = [name for name in first if name in scores[length]]
        if shared:
            own, short = (sum(of[name]["value"] for name in shared) for of in (scores[length], first))
            longest = length if own >= EFFECTIVE * short else longest
    return {**_row("effective_length", common, Estimate(float(longest), len(first), None, None)), "tasks": len(first)}


def _row(metric: str, common: Row, estimate: Estimate | None = None, note: str | None = None) -> Row:
    value = estimate or Estimate(None, 0, None, None)
    return {"metric": metric, "depth": None, **common, **value._asdict(), "note": note}
