"""A person's own text: a file or a folder of .txt, .md, .jsonl (also .gz, .xz) and .parquet.

A .txt or .md file is one document; a .jsonl line or a .parquet row is one. Folders are read with their subfolders,
files in the order of their names; hidden files and other kinds are left out. Text is taken as it stands, byte for
byte. `datasets` has readers for these files too; they rewrite line ends, guess types (a text that looks like a date
becomes one), take file names for patterns, and cannot say which line of which file is broken.

    source = FilesSource(Path("my_texts"), text_field="text")
"""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from minillm.data.sources import Document, as_text
from minillm.errors import MinillmError

KINDS = (".txt", ".md", ".jsonl", ".parquet")
PACKINGS = (".gz", ".xz")
ALLOWED = ".txt, .md and .jsonl, each also with .gz or .xz behind, and .parquet"


def kind_of(path: Path) -> str | None:
    """`.txt`, `.md`, `.jsonl` or `.parquet`, or None for a file that is not text of ours."""
    suffixes = [s.lower() for s in path.suffixes]
    packed = bool(suffixes) and suffixes[-1] in PACKINGS
    if packed:
        suffixes.pop()
    kind = suffixes[-1] if suffixes else ""
    return kind if kind in KINDS and not (packed and kind == ".parquet") else None


def find_files(root: Path) -> list[Path]:
    """The files of a corpus in reading order. Raises MinillmError where `root` is missing or holds none."""
    if root.is_file():
        if kind_of(root) is None:
            raise MinillmError(f"data.path: {root} is not a kind of file that can be read. Allowed: {ALLOWED}.")
        return [root]
    if not root.exists():
        raise MinillmError(f"data.path: {root} does not exist.")
    found: list[Path] = []
    for folder, subfolders, names in os.walk(root, onerror=_refuse_folder):
        subfolders[:] = [s for s in subfolders if not s.startswith(".")]
        found.extend(Path(folder, n) for n in names if not n.startswith(".") and kind_of(Path(n)))
    if not found:
        raise MinillmError(f"data.path: {root} holds no text file. Allowed: {ALLOWED}.")
    return sorted(found, key=lambda p: p.relative_to(root).as_posix())


def _refuse_folder(error: OSError) -> None:
    raise MinillmError(f"data.path: {error.filename} cannot be read: {error.strerror}.")


class FilesSource:
    """Documents of the files under `root`."""

    held_out: frozenset[str] | None = None

    def __init__(self, root: Path, text_field: str) -> None:
        self.description = str(root)
        self.root, self.text_field = root, text_field
        self.files = find_files(root)

    def name_of(self, path: Path) -> str:
        """How documents call their file: relative to the root, so that a moved folder keeps its names."""
        return path.name if path == self.root else path.relative_to(self.root).as_posix()

    def fingerprint(self) -> str:
        digest = hashlib.sha256(repr(("text_field", self.text_field)).encode())
        for path in self.files:
            digest.update(repr(self.name_of(path)).encode())
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise MinillmError(f"{path} cannot be read: {error.strerror}.") from error
        return digest.hexdigest()

    def documents(self) -> Iterator[Document]:
        readers = {".jsonl": self._jsonl, ".parquet": self._parquet}
        for path in self.files:
            reader = readers.get(kind_of(path) or "", self._text)
            try:
                yield from reader(path)
            except MinillmError:
                raise
            except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
                raise MinillmError(f"{path} cannot be read: {_reason(error)}.") from error

    def _text(self, path: Path) -> Iterator[Document]:
        with _open(path) as file:
            yield Document(self.name_of(path), _decode(file.read(), str(path)))

    def _jsonl(self, path: Path) -> Iterator[Document]:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    row = self._row(line, f"{path}, line {number}")
                    yield self._document(row[self.text_field], f"{self.name_of(path)}:{number}")

    def _row(self, line: bytes, where: str) -> dict[str, Any]:
        try:
            row = json.loads(_decode(line, where).removeprefix("\ufeff"))
        except ValueError as error:
            raise MinillmError(f"{where}: not JSON: {_reason(error)}.") from None
        if not isinstance(row, dict):
            raise MinillmError(f"{where}: expected a JSON object with a field {self.text_field!r}.")
        self._need_field(row, where)
        return row

    def _parquet(self, path: Path) -> Iterator[Document]:
        import pyarrow
        import pyarrow.parquet

        number = 0
        try:
            with path.open("rb") as handle:  # a path would be read as a URI where it looks like one
                file = pyarrow.parquet.ParquetFile(handle)
                self._need_field(file.schema_arrow.names, str(path))
                for batch in file.iter_batches(batch_size=64, columns=[self.text_field]):
                    for value in batch.column(0):
                        yield self._document(value.as_py(), f"{self.name_of(path)}:{number}")
                        number += 1
        except (pyarrow.ArrowException, UnicodeDecodeError) as error:
            raise MinillmError(f"{path}, row {number}: cannot be read as parquet: {_reason(error)}.") from error

    def _need_field(self, names: Iterable[str], where: str) -> None:
        if self.text_field not in names:
            raise MinillmError(
                f"{where}: no field {self.text_field!r} (data.text_field). It has: {', '.join(names) or 'none'}."
            )

    def _document(self, value: object, name: str) -> Document:
        return Document(name, as_text(value, name, self.text_field))


def _open(path: Path) -> BinaryIO | gzip.GzipFile | lzma.LZMAFile:
    packing = path.suffix.lower()
    if packing == ".gz":
        return gzip.open(path, "rb")
    if packing == ".xz":
        return lzma.open(path, "rb")
    return path.open("rb")


def _decode(raw: bytes, where: str) -> str:
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise MinillmError(
            f"{where} is not UTF-8 (byte 0x{raw[error.start]:02x} at offset {error.start}). "
            f"Convert it, for example with iconv -f ISO-8859-1 -t UTF-8."
        ) from None


def _reason(error: Exception) -> str:
    return str(error).strip().rstrip(".")
