"""Progress of an evaluation: a bar on a terminal, a line every few seconds elsewhere. Writes to stderr.

with Progress("rope: length_perplexity", total=400_000) as progress:
    progress.advance(4096)
"""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Any

EVERY = 10.0
"""Seconds between lines where there is no terminal."""


class Progress:
    """Counts `total` units of work, which are proportional to nothing in particular: the estimate is a rough one."""

    def __init__(self, label: str, total: int) -> None:
        self.label, self.total, self.done = label, total, 0
        self._start = self._said = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
            from rich.progress import Progress as Bar

            columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
            self._bar = Bar(*columns, console=Console(stderr=True), transient=True)
            self._bar.start()
            self._bar.add_task(self.label, total=self.total)
        return self

    def advance(self, amount: int) -> None:
        self.done += amount
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0], amount)
        elif time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            left = (self._said - self._start) * (self.total - self.done) / max(self.done, 1)
            print(
                f"{self.label}: {100 * self.done // max(self.total, 1)} %, {left:.0f} s left",
                file=sys.stderr,
                flush=True,
            )

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()
