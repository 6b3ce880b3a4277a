"""Where documents come from: the embedded corpus, a person's files, or the Hugging Face hub.

A source says what it is (`description`), which bytes it is made of (`fingerprint`, without parsing them), and gives
its documents in a fixed order, again and again.

    source = open_source(cfg.data)
    for document in source.documents(): print(document.name, len(document.text))
"""

from __future__ import annotations

import glob
import hashlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from minillm.config.schema import DataConfig
from minillm.errors import MinillmError

CORPUS = Path(__file__).parent / "corpus" / "presidents-and-persuasion.jsonl.xz"

HELD_OUT = (
    "1794-Washington-1",
    "1801-Jefferson-1",
    "1812-Madison-1",
    "1818-Monroe-1",
    "1826-Adams-1",
    "1834-Jackson-1",
    "1841-Tyler-1",
    "1847-Polk-1",
)
"""The embedded corpus' validation documents: spread over its years, 12 % of its bytes, of 3,455 to 19,107
GPT-2 tokens, four of them over 9,000. Fixed, so that losses of all runs can be compared."""


@dataclass(frozen=True)
class Document:
    """A text that stands for itself. It is empty where its source has an empty entry; those are counted and dropped."""

    name: str
    text: str


class Source(Protocol):
    """What `prepare` needs to know of a corpus."""

    description: str
    """What errors and the manifest call it."""
    held_out: frozenset[str] | None
    """Names of the documents kept for validation, where the corpus fixes them."""

    def fingerprint(self) -> str:
        """Hex digest over everything that decides which documents come, in which order."""
        ...

    def documents(self) -> Iterator[Document]:
        """All documents, in a fixed order."""
        ...


class EmbeddedSource:
    """State of the Union messages of 1790-1850 and *Persuasion* (`corpus/NOTICE.md`)."""

    description = "the embedded corpus"
    held_out: frozenset[str] | None = frozenset(HELD_OUT)

    def __init__(self) -> None:
        self._rows: list[Document] = []

    def fingerprint(self) -> str:
        return hashlib.sha256(CORPUS.read_bytes()).hexdigest()

    def documents(self) -> Iterator[Document]:
        if not self._rows:
            from datasets import load_dataset

            name = glob.escape(str(CORPUS))  # it takes names for patterns
            with tempfile.TemporaryDirectory() as cache:  # it writes a lock file even where it caches nothing
                rows = load_dataset("json", data_files=name, split="train", streaming=True, cache_dir=cache)
                self._rows = [Document(row["id"], row["text"]) for row in rows]
        yield from self._rows


class HubSource:
    """A dataset that `datasets.load_dataset` knows: a name on the hub, or a folder in its layout."""

    held_out: frozenset[str] | None = None

    def __init__(self, name: str, config: str | None, split: str, text_field: str) -> None:
        self.description = f"the dataset {name}" + (f" ({config})" if config else "") + f", split {split}"
        self.name, self.config, self.split, self.text_field = name, config, split, text_field
        self._rows: Any = None

    def _load(self) -> Any:
        """Loaded once; `datasets` keeps it as a memory-mapped file in its own cache."""
        if self._rows is None:
            from datasets import load_dataset

            try:
                self._rows = load_dataset(self.name, self.config, split=self.split)
            except Exception as error:  # it raises its own, the hub's, and the network's
                raise MinillmError(f"data.hub_name: cannot load {self.description}: {error}") from error
            if self.text_field not in self._rows.column_names:
                raise MinillmError(
                    f"data.text_field: {self.description} has no field {self.text_field!r}. "
                    f"Allowed: {', '.join(self._rows.column_names)}."
                )
        return self._rows

    def fingerprint(self) -> str:
        return hashlib.sha256(repr((self._load()._fingerprint, self.text_field)).encode()).hexdigest()

    def documents(self) -> Iterator[Document]:
        for i, row in enumerate(self._load().select_columns([self.text_field])):
            name = f"{self.name}:{self.split}:{i}"
            yield Document(name, as_text(row[self.text_field], name, self.text_field))


def as_text(value: object, where: str, field: str) -> str:
    """A field's value as text: null is empty; anything else, and text that UTF-8 cannot hold, is refused by name."""
    if value is None:
        return ""
    if not isinstance(value, str):
        raise MinillmError(f"{where}: field {field!r} holds {type(value).__name__}, not text.")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError as error:
        raise MinillmError(
            f"{where}: field {field!r} holds half a character pair, which is not text: {error}."
        ) from None
    return value


def open_source(data: DataConfig) -> Source:
    """The source that `data`, already checked, asks for."""
    from minillm.data.files import FilesSource  # it reads Document from here

    if data.source == "files":
        assert data.path is not None
        return FilesSource(Path(data.path).expanduser(), data.text_field)
    if data.source == "hub":
        assert data.hub_name is not None
        return HubSource(data.hub_name, data.hub_config, data.hub_split, data.text_field)
    return EmbeddedSource()
