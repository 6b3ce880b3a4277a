"""The errors a user can cause; everything else is a bug of ours and keeps its traceback."""

from __future__ import annotations

import difflib
import signal
from collections.abc import Iterable


class MinillmError(Exception):
    """Something the user can mend. The programs print it as one paragraph and exit with code 2."""


class ConfigError(MinillmError):
    """A configuration that cannot be honoured: what was given, where, and what is allowed."""


class ConfigWarning(UserWarning):
    """A setting that takes no effect, or not the effect its author may expect."""


class PositionUndefined(MinillmError):
    """A position at which the model has no meaning (beyond a learned table); evaluations report "not defined"."""


class CacheNotExact(MinillmError):
    """A call with a cache that would give other logits than one without: what is cached depends on the length."""


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM asked a run to stop, and its checkpoint is written.

    Not an Exception, as KeyboardInterrupt is not: a sweep must end here and not go on with its next job.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(f"stopped by {signal.Signals(signum).name}")
        self.signum = signum

    @property
    def exit_code(self) -> int:
        """130 after Ctrl-C, 143 after SIGTERM: what a shell reports for a program that died of the signal."""
        return 128 + self.signum


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a misspelt `word`: ``" Did you mean 'window'?"``, or an empty string when nothing is near."""
    matches = difflib.get_close_matches(str(word), [str(k) for k in known], n=1)
    return f" Did you mean '{matches[0]}'?" if matches else ""
