"""No download, whatever a task of the harness would like: flags, and a refusal of all that ignores them.

with offline():
    task = manager.load("hellaswag")       # from the cache of `datasets`, or an error that `reason` puts in words
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from minillm.errors import MinillmError, PositionUndefined

FLAGS = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "HF_EVALUATE_OFFLINE", "TRANSFORMERS_OFFLINE")
NLTK_DATA = "tokenizers/punkt_tab"
LOCAL = ("localhost", "127.0.0.1", "::1")
NOT_THERE = ("OfflineModeIsEnabled", "LocalEntryNotFoundError", "DatasetNotFoundError", "DataFilesNotFoundError")
"""What `datasets` and `huggingface_hub` raise where a cache lacks something, besides ConnectionError."""
SHOWN = 200
"""Characters of an error that a row quotes."""


class Refused(ConnectionError):
    """A download that was not attempted."""


@contextmanager
def offline() -> Iterator[None]:
    """Hugging Face reads its caches alone; nltk's downloader does nothing; any other connection raises Refused.

    The harness speaks only where something is wrong, and all bars but ours are hidden.
    """
    import datasets
    import datasets.config
    import huggingface_hub.constants
    import lm_eval.api.task
    import nltk

    log = logging.getLogger("lm_eval")
    level, bars = log.level, not datasets.are_progress_bars_disabled()
    changes: list[Any] = [
        patch.dict(os.environ, dict.fromkeys(FLAGS, "1")),
        patch.object(datasets.config, "HF_DATASETS_OFFLINE", True),
        patch.object(datasets.config, "HF_HUB_OFFLINE", True),
        patch.object(huggingface_hub.constants, "HF_HUB_OFFLINE", True),
        # The harness's RULER tasks call it as they are imported, and most need nothing of it.
        patch.object(nltk, "download", lambda *_, **__: False),
        patch.object(socket, "getaddrinfo", _local_only(socket.getaddrinfo)),
        patch.object(lm_eval.api.task, "tqdm", lambda items, **_: items),
    ]
    with ExitStack() as stack:
        for change in changes:
            stack.enter_context(change)
        log.setLevel(logging.ERROR)
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            log.setLevel(level)
            if bars:
                datasets.enable_progress_bars()


def _local_only(real: Any) -> Any:
    def getaddrinfo(host: Any, *rest: Any, **named: Any) -> Any:
        if host not in LOCAL:
            raise Refused(f"a connection to {host} was refused")
        return real(host, *rest, **named)

    return getaddrinfo


def nltk_data() -> bool:
    """Whether nltk can cut sentences, as the harness's RULER tasks on essays do."""
    import nltk

    try:
        nltk.data.find(NLTK_DATA)
    except LookupError:
        return False
    return True


def reason(error: BaseException) -> str:
    """Why a task could not be loaded, for its row: ``not cached: ...`` where that is it."""
    seen: list[BaseException] = []
    found: BaseException | None = error
    while found is not None and found not in seen:
        seen.append(found)
        found = found.__cause__ or found.__context__
    missing = any(
        isinstance(e, ConnectionError | FileNotFoundError)
        or type(e).__name__ in NOT_THERE
        or "Couldn't find cache" in str(e)
        for e in seen
    )
    if missing:
        return f"not cached: {_first_line(error)}"
    if isinstance(error, MinillmError):
        return f"not measured: {_first_line(error)}"
    return f"not measured: {type(error).__name__}: {_first_line(error)}"


def is_expected(error: BaseException) -> bool:
    """Whether an error while measuring is the task's, or the data's that it lacks, and no bug of ours."""
    if isinstance(error, PositionUndefined):
        return False
    return isinstance(error, MinillmError) or reason(error).startswith("not cached")


def _first_line(error: BaseException) -> str:
    text = str(error).strip().partition("\n")[0] or type(error).__name__
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."
