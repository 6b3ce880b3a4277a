"""A run handed to the harness: its model behind the adapter, its tokenizer as a folder, what the result depends on."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.checkpoint import end_ids
from minillm.errors import MinillmError
from minillm.evaluation.settings import EvalConfig
from minillm.hub.runs import write_tokenizer

if TYPE_CHECKING:
    from minillm.evaluation.runs import OpenRun


def facts(config: EvalConfig) -> dict[str, Any]:
    """What the rows depend on besides settings and weights.

    Raises:
        MinillmError: the extra is not installed, or `documents` cannot be read.
    """
    if importlib.util.find_spec("lm_eval") is None or importlib.util.find_spec("nltk") is None:
        raise MinillmError("The suite harness needs lm-evaluation-harness: pip install 'minillm[harness]'.")
    known: dict[str, Any] = {"lm_eval": importlib.metadata.version("lm_eval"), "documents": config.documents}
    if config.documents is not None:
        from minillm.data.files import FilesSource

        digest = hashlib.sha256()
        for document in FilesSource(Path(config.documents), "text").documents():
            digest.update(document.text.encode() + b"\0")
        known["documents_digest"] = digest.hexdigest()[:16]
    return known


def total(config: EvalConfig) -> int:
    """What `measure` reports to its callback in all."""
    from minillm.evaluation.harness import suite

    return suite.total(config.suite.harness)


def measure(opened: OpenRun, config: EvalConfig, progress: Callable[[int], None]) -> list[dict[str, Any]]:
    """Rows of the suite."""
    from minillm.evaluation.harness import suite
    from minillm.evaluation.harness.adapter import Adapter

    own = config.suite.harness
    adapter = Adapter(
        opened.model,
        opened.tokenizer,
        max_length=opened.train_length,
        batch_tokens=own.batch_tokens,
        precision=config.precision,
        start_marker=own.start_marker,
        end_ids=end_ids(opened.run.path, opened.tokenizer),
    )
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(opened.tokenizer, Path(folder), opened.train_length)
        return suite.measure(adapter, Path(folder), opened.train_length, own, config.documents, progress)
