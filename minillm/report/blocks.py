"""What a report is made of, before it is HTML or Markdown. Text in blocks is plain: the writers escape it.

Table("Cost", ["run", "tokens/s"], [["rope", "1,234"]], caption="...")
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Heading:
    text: str


@dataclass(frozen=True)
class Bullets:
    items: list[str]


@dataclass(frozen=True)
class Warnings:
    """What makes the comparison less of one; drawn so that it is seen."""

    items: list[str]


@dataclass(frozen=True)
class Commands:
    """Lines to be pasted into a shell."""

    lines: list[str]


@dataclass(frozen=True)
class Table:
    """Cells are text; the first column names the row, the others are right-aligned."""

    header: list[str]
    rows: list[list[str]]
    caption: str
    """What the numbers are: unit, tokens, documents, interval."""
    text_columns: frozenset[int] = frozenset({0})


@dataclass(frozen=True)
class Figure:
    """A picture in the folder figures/."""

    file: str
    caption: str


@dataclass(frozen=True)
class Cell:
    """One layer of a strip: what is written in it, its colour, and whether it sees a part of the text only."""

    text: str
    colour: str
    local: bool
    title: str
    """The whole spec, for a tooltip."""


@dataclass(frozen=True)
class Strip:
    """The layer plans of all runs, a row each; `legend` explains the colours: (colour, local, text)."""

    rows: list[tuple[str, list[Cell]]]
    legend: list[tuple[str, bool, str]]


Block = Heading | Bullets | Warnings | Commands | Table | Figure | Strip


@dataclass(frozen=True)
class Report:
    title: str
    blocks: list[Block] = field(default_factory=list)
