"""Ctrl-C and SIGTERM: the handler only sets a flag; the run ends itself after the update in progress.

The first signal asks for a checkpoint and an orderly end; a second one, at least a second later, kills at once.
(Launchers pass the same signal on twice within milliseconds: that counts as one.) When the checkpoint is written,
`train_rank` raises `minillm.errors.Interrupted`, whose exit code is the shell's: 130 after Ctrl-C, 143 after SIGTERM.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType
from typing import Any

SAME_SIGNAL_SECONDS = 1.0


class StopSignals:
    """Context manager that holds the handlers; `received` is the signal's number, 0 before any.

    Outside the main thread Python forbids handlers, and none are set.
    """

    numbers = (int(signal.SIGINT), int(signal.SIGTERM))

    def __init__(self) -> None:
        self.received = 0
        self._at = 0.0
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        self.install()
        return self

    def install(self) -> None:
        """Set the handlers; again after Lightning has set its own, which would talk to other ranks from inside."""
        if threading.current_thread() is not threading.main_thread():
            return
        for number in self.numbers:
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if self.received and now - self._at >= SAME_SIGNAL_SECONDS:
            signal.signal(signum, signal.SIG_DFL)
            os.kill(os.getpid(), signum)
        if not self.received:
            self.received, self._at = int(signum), now
