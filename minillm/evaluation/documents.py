"""The text a run is measured on, as token ids: its own held-out documents, or files given by hand.

documents = held_out(opened)              # those the run never trained on
documents.ids[0]                          # int64, start marker first, then the text's tokens
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from minillm.errors import MinillmError

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer
    from minillm.evaluation.runs import OpenRun


@dataclass(frozen=True)
class Documents:
    """Documents of one source, in its order."""

    source: str
    names: list[str]
    ids: list[np.ndarray]
    """Token ids of each, (n,) int64, start marker first."""

    def digest(self, which: list[int]) -> str:
        """Sixteen hex digits over the tokens of some of them."""
        digest = hashlib.sha256()
        for i in which:
            digest.update(np.int64(len(self.ids[i])).tobytes() + np.ascontiguousarray(self.ids[i]).tobytes())
        return digest.hexdigest()[:16]


def held_out(opened: OpenRun) -> Documents:
    """The run's own held-out documents, from its data cache (prepared again if it is gone)."""
    from minillm.data import prepare

    prepared = prepare(opened.config.data, opened.config.tokenizer, opened.tokenizer)
    ids = [prepared.val.document(i) for i in range(len(prepared.val))]
    if prepared.tokenizer.to_json() != opened.tokenizer.to_json():
        # Prepared by another version of the tokenizer's trainer: the text is the same, so cut it as the model knows it.
        texts = [prepared.tokenizer.decode(document[1:]) for document in ids]
        ids = opened.tokenizer.encode_many(texts, bos=True)
    return Documents(f"held-out documents of {prepared.manifest['description']}", list(prepared.val.names), ids)


def from_files(path: str, tokenizer: Tokenizer, text_field: str) -> Documents:
    """All documents of a file or folder, as `data=files data.path=...` reads them. MinillmError for unfit text."""
    from minillm.data.files import FilesSource

    try:
        found = [d for d in FilesSource(Path(path), text_field).documents() if d.text.strip()]
    except MinillmError as error:
        raise MinillmError(str(error).replace("data.path:", "documents:")) from None
    if not found:
        raise MinillmError(f"documents: {path} holds no text.")
    return Documents(path, [d.name for d in found], tokenizer.encode_many([d.text for d in found], bos=True))
