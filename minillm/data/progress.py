"""Progress of long data work: a rich bar on a terminal, one plain line elsewhere.

for document in track(documents, "Encoding", total=1000): ...
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def track(items: Iterable[T], label: str, total: int | None = None) -> Iterator[T]:
    """Hand `items` on, showing how many of `total` have passed. Writes to stderr, which results never use."""
    if not sys.stderr.isatty():
        say(f"{label} ...")
        yield from items
        return
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description} {task.completed:,.0f}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task(label, total=total)
        for item in items:
            yield item
            progress.advance(task)


def say(message: str) -> None:
    """One line about data work, for the person who waits."""
    print(f"data: {message}", file=sys.stderr, flush=True)
