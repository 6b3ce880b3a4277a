"""What the report says, in the order in which it is read: plans, headline, training, loss by length, cost, fine print.

report = compose(subjects, figures={"same_target.png": "..."}, command="python eval.py ...")
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from minillm.report import (
    attention_figures,
    attention_tables,
    budget,
    harness,
    learning_rates,
    recall,
    ruler,
    seeds,
    tables,
    wording,
)
from minillm.report.blocks import Block, Bullets, Commands, Figure, Heading, Report, Strip, Warnings
from minillm.report.collect import Subject
from minillm.report.differences import differences
from minillm.report.groups import groups, repeated
from minillm.report.strip import describe, layer_strip

PROTOCOLS = [
    "Same targets: the last tokens of a stretch of each document, read with a context of 1x, 2x, ... the training "
    "length. The scored tokens are the same at every length, so only the context changes. This is the number to quote.",
    "By position: each token of the documents' beginnings, by how many tokens it can look back on, in a single pass.",
    "Non-overlapping: windows laid end to end, all tokens scored. Longer windows have fewer tokens of little context, "
    "so this number falls with the length even where the added context is not used (the early-token curse).",
    "Strided: windows that overlap, only the tokens beyond the last one scored, so that nearly all have long context.",
]


def compose(
    subjects: Sequence[Subject], figures: Mapping[str, str], command: str, figures_note: str | None = None
) -> Report:
    """The report on `subjects`; `figures` are those that were drawn, with their captions."""
    blocks: list[Block] = [*_plans(subjects)]
    found = [*differences(subjects), *repeated(subjects), *seeds.undertrained(subjects)]
    if found:
        blocks.append(Warnings(found))
    if figures_note:
        blocks.append(Warnings([figures_note]))
    over_seeds = seeds.lines(subjects)
    blocks += _section("At a glance", [seeds.headline(over_seeds), tables.headline(subjects)], [], figures)
    blocks += _section("Over seeds", seeds.details(over_seeds), [], figures, before=[Bullets(seeds.EXPLAINED)])
    rate = learning_rates.note(subjects)
    blocks += _section(
        "Training",
        [learning_rates.grid(subjects), tables.training(subjects), *budget.tables(subjects)],
        ["training.png"],
        figures,
        before=[Bullets([rate])] if rate else [],
    )
    blocks += _section(
        "Loss beyond the training length",
        [
            tables.by_length(subjects, "same_target"),
            tables.against_first(subjects),
            tables.by_length(subjects, "non_overlapping"),
            tables.by_length(subjects, "strided"),
            tables.by_position(subjects),
        ],
        ["same_target.png", "loss_by_position.png", "windows.png"],
        figures,
        before=[Bullets(PROTOCOLS)],
    )
    blocks += _section(
        "Recall past the training length",
        [*(recall.by_length(subjects, metric) for metric in recall.METRICS), recall.beyond_reach(subjects)],
        list(recall.FIGURES),
        figures,
    )
    blocks += _section(
        "Attention",
        [
            attention_tables.segments(subjects),
            attention_tables.knockout(subjects),
            attention_tables.entropy(subjects),
            attention_tables.sinks(subjects),
            attention_tables.similarity(subjects),
            attention_tables.position(subjects),
        ],
        list(attention_figures.FIGURES),
        figures,
    )
    blocks += _section("RULER tasks", ruler.section(subjects), list(ruler.FIGURES), figures)
    blocks += _section("lm-evaluation-harness", harness.section(subjects), [], figures)
    blocks += _section(
        "Cost",
        [*(tables.speeds(subjects, metric) for metric in tables.SPEED_NAMES), tables.cache_bytes(subjects)],
        ["cost.png"],
        figures,
    )
    blocks += [
        Heading("Limits"),
        Bullets(_limits(subjects)),
        Heading("How to make this page"),
        _commands(subjects, command),
    ]
    return Report(_title(subjects), blocks)


def _title(subjects: Sequence[Subject]) -> str:
    found = groups(subjects)
    if len(found) > 3:
        return f"{len(found)} variants compared" if len(found) < len(subjects) else f"{len(found)} runs compared"
    counts = {len(group.subjects) for group in found}
    each = f", {counts.pop()} seeds each" if len(counts) == 1 and counts != {1} else ""
    return " against ".join(group.label for group in found) + each


def _plans(subjects: Sequence[Subject]) -> list[Block]:
    # Seeds of a variant have one plan.
    shown = [dataclasses.replace(group.subjects[0], label=group.label) for group in groups(subjects)]
    strip: Strip = layer_strip(shown)
    kinds: dict[tuple[str, str], list[int]] = {}
    for subject in shown:
        for spec in subject.config.model.layers:
            # "layer 3 (global), nope, full attention": what it is, without which layer.
            kinds.setdefault((subject.label, describe(spec).partition(", ")[2]), []).append(spec.index)
    listed = [f"{label}: {what} (layers {_ranges(indices)})" for (label, what), indices in kinds.items()]
    return [Heading("Layer plans"), strip, Bullets(listed), tables.card(subjects)]


def _ranges(indices: list[int]) -> str:
    """0, 1, 2, 4 -> ``0-2, 4``."""
    parts: list[list[int]] = []
    for i in indices:
        if parts and i == parts[-1][-1] + 1:
            parts[-1].append(i)
        else:
            parts.append([i])
    return ", ".join(str(p[0]) if len(p) == 1 else f"{p[0]}-{p[-1]}" for p in parts)


def _section(
    title: str,
    found: Sequence[Block | None],
    files: Sequence[str],
    figures: Mapping[str, str],
    before: Sequence[Block] = (),
) -> list[Block]:
    """Figures first, then the numbers behind them; nothing at all where nothing was measured."""
    pictures = [Figure(name, figures[name]) for name in files if name in figures]
    blocks = [*pictures, *(block for block in found if block is not None)]
    return [Heading(title), *before, *blocks] if blocks else []


def _limits(subjects: Sequence[Subject]) -> list[str]:
    """What these numbers do not say."""
    items = [
        "Intervals of single runs are 95 % bootstrap intervals over held-out documents: they do not cover the training "
        "seed, which at this size can be the larger part. With few documents they are rough."
    ]
    single = [group.label for group in groups(subjects) if len(group.subjects) == 1]
    if single:
        items.append(f"One seed only: {', '.join(single)}. Small differences between them may be chance.")
    items.append(
        "A flat loss does not show that distant text is used: a model that sees a window only is flat too. Compare "
        "what is gained from context (same targets), and test retrieval apart."
    )
    for s in subjects:
        settings = s.settings("length_perplexity")
        if not settings:
            continue
        undefined = sorted({r["length"] for r in s.rows("length_perplexity", "nll") if r["note"] == "not defined"})
        if undefined:
            items.append(f"{s.label} is not defined beyond {s.train_length} tokens (a table of learned positions).")
        missing = sorted({r["length"] for r in s.rows("length_perplexity", "nll") if "too few" in (r["note"] or "")})
        if missing:
            items.append(
                f"{s.label}: not measured at {', '.join(map(str, missing))} tokens, as fewer than "
                f"{settings['min_documents']} documents are longer."
            )
    items += attention_tables.notes(subjects)
    items += ruler.notes(subjects)
    items += harness.notes(subjects)
    items += _document_notes(subjects)
    items += [f"{s.label}: no {suite}, as {reason}" for s in subjects for suite, reason in s.evaluation.skipped.items()]
    return items


def _document_notes(subjects: Sequence[Subject]) -> list[str]:
    """Which documents were read, once for all runs that read the same ones."""
    groups: dict[str, list[str]] = {}
    for s in subjects:
        settings = s.settings("length_perplexity")
        if settings:
            text = (
                f"{settings['source']}: read {len(settings['documents'])} ({', '.join(settings['documents'])}); "
                f"{settings['documents_left_out']} left out as too short or beyond the number asked."
            )
            groups.setdefault(text, []).append(s.label)
    notes = [f"{'Documents' if len(groups) == 1 else ', '.join(labels)}: {text}" for text, labels in groups.items()]
    marker = next((s.settings("length_perplexity").get("start_marker") for s in subjects), None)
    return [*notes, marker] if marker else notes


def _commands(subjects: Sequence[Subject], command: str) -> Commands:
    lines = []
    for s in subjects:
        steps = f"{wording.count(s.evaluation.step)} steps"
        lines += [f"# {s.label}: {s.evaluation.run.path}, {steps}", *s.commands]
    return Commands([*lines, "# this page", command])
