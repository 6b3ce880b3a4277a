"""The layer-pattern strip: one coloured cell per layer. Colour says how position enters, a lighter cell that the layer
sees a part of the text only, and the number in it how many tokens.

    strip = layer_strip(subjects)
"""

from __future__ import annotations

from collections.abc import Sequence

from minillm.config.layers import LayerSpec
from minillm.report.blocks import Cell, Strip
from minillm.report.collect import Subject

COLOURS = {"rope": "#3b6fb6", "nope": "#d1782a", "alibi": "#3f8f5b"}
OTHER = "#7a5ba8"
SHORT = {"rope": "R", "nope": "N", "alibi": "A"}


def layer_strip(subjects: Sequence[Subject]) -> Strip:
    """One row a run; the legend has what occurs."""
    rows = []
    legend: dict[tuple[str, bool, str], None] = {}
    for subject in subjects:
        model = subject.config.model
        label = subject.label
        if model.embedding_position is not None:
            label += f" (+ {model.embedding_position.scheme} embeddings)"
        rows.append((label, [_cell(spec) for spec in model.layers]))
        for spec in model.layers:
            seen = "full attention" if spec.reach is None else "sliding window" if spec.window else "chunks"
            cell = _cell(spec)
            legend[cell.colour, cell.local, f"{spec.position.scheme}, {seen}"] = None
    return Strip(rows, list(legend))


def _cell(spec: LayerSpec) -> Cell:
    scheme = spec.position.scheme
    text = SHORT.get(scheme, scheme[:1].upper())
    if spec.reach is not None:
        text += f" {spec.reach}"
    return Cell(text, COLOURS.get(scheme, OTHER), spec.reach is not None, describe(spec))


def describe(spec: LayerSpec) -> str:
    """A layer in words: what a tooltip, and the list of kinds, say of it."""
    words = [f"layer {spec.index} ({spec.kind})", spec.position.scheme]
    for name, value in spec.position.summary().items():
        if value is not None:
            words.append(
                f"{name} {value:,.0f}" if name == "theta" else str(value) if name == "detail" else f"{name} {value}"
            )
    words.append(
        "full attention" if spec.reach is None else f"window {spec.window}" if spec.window else f"chunk {spec.chunk}"
    )
    if spec.qk_norm is not None:
        words.append(f"QK-norm {spec.qk_norm.summary()}")
    if spec.temperature is not None:
        words.append(f"temperature {spec.temperature.summary()}")
    return ", ".join(words)


def as_text(strip: Strip) -> str:
    """The strip in characters, for Markdown: ``rnope_swa  R32 R32 R32 N ...``."""
    width = max((len(label) for label, _ in strip.rows), default=0)
    return "\n".join(
        f"{label:<{width}}  " + " ".join(f"{cell.text.replace(' ', ''):<4}" for cell in cells).rstrip()
        for label, cells in strip.rows
    )
