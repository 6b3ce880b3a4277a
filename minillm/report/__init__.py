"""One comparison of evaluated runs, as a page, as Markdown, as a table and as figures.

written = write_report(evaluations, Path("outputs/comparison"), command="python eval.py ...")
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.errors import MinillmError
from minillm.evaluation.evaluate import Evaluation

if TYPE_CHECKING:
    from minillm.report.blocks import Table
    from minillm.report.collect import Subject

FIGURES_NEED = (
    "There are no figures, as matplotlib is not installed: pip install 'minillm[report]', then eval.py again."
)


@dataclass(frozen=True)
class Written:
    """Where the comparison lies, and what to print."""

    page: Path
    summary: str
    """The headline table as text."""
    notes: list[str]


def write_report(evaluations: Sequence[Evaluation], out: Path, command: str) -> Written:
    """Write report.html, report.md, table.csv, figures/ and, of several seeds, seeds.csv into `out`. MinillmError where
    that is impossible."""
    from minillm.report import content, figures, markdown, page, seeds, tables
    from minillm.report.collect import collect, write_csv
    from minillm.training.run_folder import write_atomically

    subjects = collect(evaluations)
    notes: list[str] = []
    drawn: dict[str, str] = {}
    try:
        out.mkdir(parents=True, exist_ok=True)
        try:
            drawn = figures.draw(subjects, out / "figures")
        except ImportError:
            notes.append(FIGURES_NEED)
        report = content.compose(subjects, drawn, command, notes[0] if notes else None)
        write_csv(subjects, out / "table.csv")
        over_seeds = seeds.lines(subjects)
        (out / "seeds.csv").unlink(missing_ok=True)  # of an earlier comparison
        if over_seeds:
            seeds.write_csv(over_seeds, out / "seeds.csv")
        write_atomically(out / "report.md", markdown.render(report))
        write_atomically(out / "report.html", page.render(report, out / "figures"))
    except OSError as error:
        raise MinillmError(f"out: the comparison cannot be written to {out}: {error.strerror or error}.") from None
    first = seeds.headline(over_seeds) or tables.headline(subjects)
    return Written(out / "report.html", "\n\n".join(map(as_text, [first] if first else _suites(subjects))), notes)


def _suites(subjects: Sequence[Subject]) -> list[Table]:
    """What stands for a headline where only suites of questions were asked for."""
    from minillm.report import harness, ruler
    from minillm.report.blocks import Table

    return [
        *(b for b in ruler.section(subjects) if isinstance(b, Table) and "effective length" in b.header),
        *(b for b in harness.section(subjects) if isinstance(b, Table)),
    ]


def as_text(table: object) -> str:
    """A table in aligned characters, for the terminal."""
    from minillm.report.blocks import Table

    assert isinstance(table, Table)
    lines = [table.header, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i in table.text_columns else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
