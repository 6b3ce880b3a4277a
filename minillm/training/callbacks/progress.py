"""What the person at the screen sees: a bar on a terminal, a plain line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections import deque
from datetime import timedelta

import lightning.pytorch as pl
from rich import get_console
from rich.progress import BarColumn, Progress, TextColumn

from minillm.training import ranks
from minillm.training.callbacks.base import AfterUpdate
from minillm.training.module import TrainingModule
from minillm.training.pace import Pace

SECONDS_BETWEEN_LINES = 10.0
UPDATES_OF_SPEED = 50
"""Speed and remaining time are those of the last so many updates."""


class ProgressLine(AfterUpdate):
    """Step of total, loss, tokens per second, time left; and a line for every validation. On rank 0."""

    def __init__(self, stop_at: int) -> None:
        self.stop_at = stop_at
        self._bar: Progress | None = None
        self._recent: deque[tuple[float, Pace]] = deque(maxlen=UPDATES_OF_SPEED + 1)
        self._last_line = float("-inf")

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        assert isinstance(pl_module, TrainingModule)
        self._recent.append((time.monotonic(), pl_module.pace))
        if ranks.rank() == 0 and sys.stdout.isatty():
            columns = (TextColumn("{task.completed}/{task.total}"), BarColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=get_console())
            self._bar.add_task("", total=self.stop_at, completed=pl_module.step)
            self._bar.start()

    def act(self, trainer: pl.Trainer, module: TrainingModule) -> None:
        if ranks.rank() != 0 or module.unfinished:
            return
        now = time.monotonic()
        self._recent.append((now, module.pace))
        if module.compilation.on and len(self._recent) == 2:
            self._recent.popleft()  # the first update compiles: it says nothing of the others
        if "val/loss" in module.point or "final/loss" in module.point:
            ranks.say(f"step {module.step}: {held_out(module.point)}")
        if module.step == 0:  # nothing is trained yet
            return
        text = self._describe(module)
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=module.step, description=text)
        elif now - self._last_line >= SECONDS_BETWEEN_LINES or module.step >= self.stop_at:
            self._last_line = now
            ranks.say(f"step {module.step}/{self.stop_at}  {text}")

    def on_train_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        self._close()

    def on_exception(self, trainer: pl.Trainer, pl_module: pl.LightningModule, exception: BaseException) -> None:
        self._close()

    def _close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _describe(self, module: TrainingModule) -> str:
        (began, before), (now, paced) = self._recent[0], self._recent[-1]
        seconds, updates = now - began, len(self._recent) - 1
        if not updates:
            return f"loss {module.point['train/loss']:.3f}"
        left = timedelta(seconds=round(seconds / updates * (self.stop_at - module.step)))
        pace = paced.since(before)
        speed = f"{pace.tokens / seconds if seconds > 0 else 0.0:,.0f} tokens/s"
        if pace.updating:
            speed += f", MFU {pace.mfu(module.peak):.0%}, {pace.wait_share:.0%} waiting for data"
        return f"loss {module.point['train/loss']:.3f}  {speed}  {left} left"


def held_out(point: dict[str, float]) -> str:
    """The held-out numbers of a point in words."""
    prefix = "val" if "val/loss" in point else "final"
    said = {name: point.get(f"{prefix}/{name}") for name in ("bits_per_byte", "token_accuracy", "exact")}
    others = (f", {value:.3f} {name.replace('_', ' ')}" for name, value in said.items() if value is not None)
    return f"held-out loss {point[f'{prefix}/loss']:.3f}{''.join(others)}"
