"""Tokens that come one by one, as text that can be shown at once and stops before a stop string.

stream = TextStream(tokenizer, stop=["\n\n"])
for i in ids:
    print(stream.add(i), end="")          # nothing while a character or a stop string may be under way
print(stream.finish())
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer

REPLACEMENT = "\ufffd"
UNFINISHED = 3
"""Most replacement characters at the end of a text that may still become a character: UTF-8 has 4 bytes at most."""


class TextStream:
    """All pieces together are the text that the ids add to that of `before`, up to the first stop string."""

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str] = (), before: Sequence[int] = ()) -> None:
        """`before` are the prompt's ids: some tokenizers write a token that begins a text without its space."""
        self.text = ""
        """What was given out so far."""
        self.stopped = False
        """A stop string has come; ids after it are not looked at."""
        self._tokenizer = tokenizer
        self._stop = [one for one in stop if one]
        self._ids = list(before)
        # Ids before `_done` are shown; those from `_from` on are decoded again with the new ones, as what a token
        # is written as may depend on whether it begins the text.
        self._from, self._done = 0, len(before)
        self._shown = len(tokenizer.decode(before))
        self._held = ""

    def add(self, token: int) -> str:
        """The text that can be shown now that `token` has come."""
        if self.stopped:
            return ""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids[self._from :])
        whole = text.rstrip(REPLACEMENT)
        whole = text[: max(len(whole), len(text) - UNFINISHED)]
        new, self._shown = whole[self._shown :], max(self._shown, len(whole))
        if whole == text:
            self._from, self._done = self._done, len(self._ids)
            self._shown = len(self._tokenizer.decode(self._ids[self._from :]))
        return self._give(new)

    def finish(self) -> str:
        """The rest: what was held back for more to come."""
        if self.stopped:
            return ""
        rest = self._tokenizer.decode(self._ids[self._from :])[self._shown :]
        self._from = self._done = len(self._ids)
        self._shown = 0
        return self._give(rest, last=True)

    def _give(self, new: str, last: bool = False) -> str:
        self._held += new
        found = [place for place in (self._held.find(one) for one in self._stop) if place >= 0]
        if found:
            self.stopped = True
            ready, self._held = self._held[: min(found)], ""
        else:
            keep = 0 if last else max((_begun(self._held, one) for one in self._stop), default=0)
            ready, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        self.text += ready
        return ready


def _begun(text: str, stop: str) -> int:
    """How many characters at the end of `text` may be the beginning of `stop`."""
    for size in range(min(len(text), len(stop) - 1), 0, -1):
        if text.endswith(stop[:size]):
            return size
    return 0
