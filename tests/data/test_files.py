"""A person's own files: text as it stands, in a fixed order, and errors that name the file and the line."""

from __future__ import annotations

import gzip
import json
import lzma
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from minillm.data.files import FilesSource
from minillm.errors import MinillmError


def read(root: Path, text_field: str = "text") -> dict[str, str]:
    return {d.name: d.text for d in FilesSource(root, text_field).documents()}


def jsonl(*rows: object) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def parquet(path: Path, **columns: list[object]) -> None:
    pyarrow.parquet.write_table(pyarrow.table(columns), path)


def test_every_kind_of_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"plain\r\ntext\n")
    (tmp_path / "b.md").write_bytes("# Überschrift".encode())
    (tmp_path / "c.jsonl").write_bytes(jsonl({"text": "one"}, {"text": "2024-01-31", "other": 5}) + b"\n")
    (tmp_path / "d.jsonl.gz").write_bytes(gzip.compress(jsonl({"text": "packed"})))
    (tmp_path / "e.txt.xz").write_bytes(lzma.compress(b"packed too"))
    parquet(tmp_path / "f.parquet", text=["row", None], n=[1, 2])
    assert read(tmp_path) == {
        "a.txt": "plain\r\ntext\n",
        "b.md": "# Überschrift",
        "c.jsonl:1": "one",
        "c.jsonl:2": "2024-01-31",
        "d.jsonl.gz:1": "packed",
        "e.txt.xz": "packed too",
        "f.parquet:0": "row",
        "f.parquet:1": "",
    }


def test_a_single_file_is_a_corpus_too(tmp_path: Path) -> None:
    (tmp_path / "book.TXT").write_text("Call me Ishmael.")
    assert read(tmp_path / "book.TXT") == {"book.TXT": "Call me Ishmael."}


def test_folders_are_read_with_their_subfolders_in_order(tmp_path: Path) -> None:
    for name in ("z.txt", "a/2.txt", "a/10.txt", "a.txt", ".hidden.txt", ".git/x.txt", "a/picture.png", "notes"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    assert list(read(tmp_path)) == ["a.txt", "a/10.txt", "a/2.txt", "z.txt"]


@pytest.mark.parametrize("name", ["a[1].parquet", "b, c=1.parquet", "d::e.parquet", "hub:f.parquet", "g*.parquet"])
def test_names_are_not_patterns_or_addresses(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    parquet(tmp_path / name, text=["row"])
    monkeypatch.chdir(tmp_path)
    assert read(Path()) == {f"{name}:0": "row"}


def test_the_text_may_stand_in_another_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(jsonl({"text": "no", "body": "yes"}))
    parquet(tmp_path / "b.parquet", text=["no"], body=["yes"])
    assert set(read(tmp_path, "body").values()) == {"yes"}


def corrupt_parquet(path: Path) -> None:
    parquet(path, text=["row"])
    path.write_bytes(path.read_bytes()[:-20])


def put(content: bytes):  # type: ignore[no-untyped-def]
    return lambda path: path.write_bytes(content)


BROKEN = {
    "text that is not UTF-8": ("a.txt", put(b"abc\xe9def"), r"a\.txt is not UTF-8 \(byte 0xe9 at offset 3\)"),
    "UTF-16": ("a.md", put("text".encode("utf-16")), r"a\.md is not UTF-8 \(byte 0xff at offset 0\)"),
    "a jsonl line that is not UTF-8": (
        "a.jsonl",
        put(jsonl({"text": "x"}) + b'{"text": "\xe9"}'),
        r"line 2 is not UTF",
    ),
    "a line that is not JSON": ("a.jsonl", put(jsonl({"text": "x"}) + b"{oops"), r"a\.jsonl, line 2: not JSON"),
    "a line that is no object": ("a.jsonl", put(b"[1]"), r"a\.jsonl, line 1: expected a JSON object"),
    "a missing field": ("a.jsonl", put(jsonl({"txt": "x"})), r"line 1: no field 'text' .* It has: txt"),
    "a field that is no text": ("a.jsonl", put(jsonl({"text": ["x"]})), r"a\.jsonl:1: field 'text' holds list"),
    "half a character pair": ("a.jsonl", put(b'{"text": "\\ud800"}'), r"a\.jsonl:1: field 'text' holds half"),
    "a broken gzip": ("a.txt.gz", put(gzip.compress(b"text" * 99)[:-9]), r"a\.txt\.gz cannot be read"),
    "no gzip at all": ("a.txt.gz", put(b"text"), r"a\.txt\.gz cannot be read"),
    "a broken xz": ("a.txt.xz", put(lzma.compress(b"text" * 99)[:-9]), r"a\.txt\.xz cannot be read"),
    "a broken parquet": ("a.parquet", corrupt_parquet, r"a\.parquet.* cannot be read"),
    "an empty parquet": ("a.parquet", put(b""), r"a\.parquet.* cannot be read"),
    "a parquet without the field": ("a.parquet", lambda p: parquet(p, body=["x"]), r"no field 'text' .* It has: body"),
    "a parquet of numbers": ("a.parquet", lambda p: parquet(p, text=[1]), r"a\.parquet:0: field 'text' holds int"),
}


@pytest.mark.parametrize(("name", "write", "message"), BROKEN.values(), ids=BROKEN.keys())
def test_broken_files_are_named(tmp_path: Path, name: str, write, message: str) -> None:  # type: ignore[no-untyped-def]
    write(tmp_path / name)
    with pytest.raises(MinillmError, match=message):
        read(tmp_path)


def test_a_path_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(MinillmError, match=r"data\.path: .*nowhere does not exist"):
        read(tmp_path / "nowhere")


def test_a_folder_without_text_says_what_would_be_read(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").touch()
    with pytest.raises(MinillmError, match=r"holds no text file\. Allowed: \.txt, \.md"):
        read(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").touch()
    with pytest.raises(MinillmError, match=r"a\.pdf is not a kind of file"):
        read(tmp_path / "a.pdf")


def test_a_link_to_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.txt").symlink_to(tmp_path / "gone.txt")
    with pytest.raises(MinillmError, match=r"a\.txt cannot be read"):
        FilesSource(tmp_path, "text").fingerprint()


def test_the_fingerprint_covers_content_names_and_field(tmp_path: Path) -> None:
    seen = set()
    for name, content in (("a.txt", "x"), ("a.txt", "y"), ("b.txt", "y")):
        for old in tmp_path.iterdir():
            old.unlink()
        (tmp_path / name).write_text(content)
        seen |= {FilesSource(tmp_path, field).fingerprint() for field in ("text", "body")}
    assert len(seen) == 6


def test_the_fingerprint_does_not_depend_on_where_the_folder_lies(tmp_path: Path) -> None:
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        (tmp_path / place / "a.txt").write_text("x")
    here, there = (FilesSource(tmp_path / place, "text").fingerprint() for place in ("here", "there"))
    assert here == there
