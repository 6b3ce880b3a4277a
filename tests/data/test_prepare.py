"""Preparing: once for the same input, anew for any other, whole or not at all."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.data import Prepared, Tokenizer, build, prepare
from minillm.errors import ConfigError, MinillmError

MakeData = Callable[..., DataConfig]
BPE = TokenizerConfig("train", vocab_size=300)
PROGRAM = """
import sys, json
from minillm.config.schema import DataConfig, TokenizerConfig
from minillm.data import prepare
data, tokenizer = json.loads(sys.argv[1])
prepared = prepare(DataConfig(**data), TokenizerConfig(**tokenizer))
print(json.dumps({"folder": str(prepared.folder), "reused": prepared.reused, "files": prepared.manifest["files"]}))
"""


@pytest.fixture
def texts(tmp_path: Path, make_data: MakeData) -> Path:
    """Thirty documents in tmp_path/text, where `make_data` looks."""
    for i in range(30):
        (tmp_path / "text" / f"{i:02}.txt").write_text(f"Document {i} says: {i} times {i} is {i * i}. " * 9)
    return tmp_path / "text"


def start(data: DataConfig, tokenizer: TokenizerConfig = BPE) -> subprocess.Popen[str]:
    """`prepare` in another process."""
    arguments = json.dumps([dataclasses.asdict(data), dataclasses.asdict(tokenizer)])
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def finish(process: subprocess.Popen[str]) -> dict[str, object]:
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    return dict(json.loads(out))


def all_text(prepared: Prepared) -> list[str]:
    shards = (prepared.train, prepared.val)
    return [prepared.tokenizer.decode(s.document(i)) for s in shards for i in range(len(s))]


def test_every_document_is_there_once_with_its_bytes_and_marker(texts: Path, make_data: MakeData) -> None:
    prepared = prepare(make_data(held_out=3), BPE)
    assert sorted(all_text(prepared)) == sorted(path.read_text() for path in texts.iterdir())
    assert (len(prepared.train), len(prepared.val)) == (27, 3)
    assert prepared.train.num_bytes + prepared.val.num_bytes == sum(p.stat().st_size for p in texts.iterdir())
    assert set(prepared.train.names) | set(prepared.val.names) == {path.name for path in texts.iterdir()}
    for shards in (prepared.train, prepared.val):
        assert (shards.tokens == prepared.tokenizer.bos_id).nonzero()[0].tolist() == shards.offsets[:-1].tolist()


@pytest.mark.bug("B102")
def test_five_documents_of_which_one_is_empty_have_four_markers(tmp_path: Path, make_data: MakeData) -> None:
    rows = ["one", "", "two\n", "three <|endoftext|>", "four"]
    (tmp_path / "text" / "a.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    prepared = prepare(make_data(), BPE)
    markers = sum(int((s.tokens == prepared.tokenizer.bos_id).sum()) for s in (prepared.train, prepared.val))
    assert markers == 4
    assert sorted(all_text(prepared)) == sorted(row for row in rows if row)
    assert "1 documents dropped: nothing but white space." in prepared.notes


@pytest.mark.bug("B109")
def test_the_second_time_does_no_work_in_another_process_too(
    texts: Path, make_data: MakeData, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    data = make_data()
    first = prepare(data, BPE)
    elsewhere = finish(start(data))
    assert (first.reused, elsewhere["reused"]) == (False, True)
    assert elsewhere["folder"] == str(first.folder)
    capfd.readouterr()
    # `minillm.data.prepare` is the function; its module is reached by name. Called, None would fail.
    monkeypatch.setattr(importlib.import_module("minillm.data.prepare"), "build", None)
    again = prepare(data, BPE)
    assert again.reused
    assert again.folder == first.folder
    assert capfd.readouterr() == ("", "")


@pytest.mark.bug("B108")
@pytest.mark.parametrize(
    "change",
    [
        lambda texts, data, tokenizer: ((texts / "00.txt").write_text("changed"), data, tokenizer)[1:],
        lambda texts, data, tokenizer: ((texts / "00.txt").rename(texts / "zz.txt"), data, tokenizer)[1:],
        lambda texts, data, tokenizer: (dataclasses.replace(data, held_out=2), tokenizer),
        lambda texts, data, tokenizer: (data, dataclasses.replace(tokenizer, vocab_size=301)),
        lambda texts, data, tokenizer: (data, dataclasses.replace(tokenizer, bos_token="<s>")),
    ],
    ids=["a file's content", "a file's name", "the held-out count", "the vocabulary", "the marker"],
)
def test_another_input_gives_other_data(texts: Path, make_data: MakeData, change) -> None:  # type: ignore[no-untyped-def]
    first = prepare(make_data(), BPE)
    data, tokenizer = change(texts, make_data(), BPE)
    second = prepare(data, tokenizer)
    assert not second.reused
    assert second.folder != first.folder


@pytest.mark.bug("B108")
def test_a_tokenizer_changed_in_place_gives_other_data(texts: Path, make_data: MakeData, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    config = TokenizerConfig("file", path=str(path))
    text = (texts / "00.txt").read_text()
    found = []
    for vocab_size in (260, 270):
        Tokenizer.train([text], vocab_size).save(path)
        found.append(prepare(make_data(), config))
    assert [p.reused for p in found] == [False, False]
    assert [p.tokenizer.vocab_size for p in found] == [260, 270]
    assert all(int(p.train.tokens.max()) < p.tokenizer.vocab_size for p in found)


@pytest.mark.bug("B108")
def test_a_changed_rule_gives_other_data(texts: Path, make_data: MakeData, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(make_data(), BPE)
    monkeypatch.setitem(build.RULES, "document", "no marker")
    assert prepare(make_data(), BPE).folder != first.folder


def test_another_block_length_reads_the_same_tokens(texts: Path, make_data: MakeData) -> None:
    assert prepare(make_data(seq_len=8), BPE).folder == prepare(make_data(seq_len=9), BPE).folder


@pytest.mark.bug("B110")
def test_four_at_once_agree_and_one_does_the_work(texts: Path, make_data: MakeData, tmp_path: Path) -> None:
    processes = [start(make_data()) for _ in range(4)]
    found = [finish(process) for process in processes]
    assert all(f["files"] == found[0]["files"] and f["folder"] == found[0]["folder"] for f in found)
    assert sorted(bool(f["reused"]) for f in found) == [False, True, True, True]
    assert sorted(p.suffix for p in (tmp_path / "cache").iterdir()) == ["", ".lock"]


@pytest.mark.bug("B110")
def test_a_killed_preparation_is_made_again(texts: Path, make_data: MakeData, tmp_path: Path) -> None:
    # Stop it where its folder is full but not yet renamed, which is where half of it could be taken for whole.
    hang = "import minillm.data.build as b, time\nb._checksums = lambda folder: time.sleep(99)\n"
    arguments = json.dumps([dataclasses.asdict(make_data()), dataclasses.asdict(BPE)])
    killed = subprocess.Popen([sys.executable, "-c", hang + PROGRAM, arguments], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not list((tmp_path / "cache").glob(".*.tmp/val/bytes.npy")):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    os.kill(killed.pid, signal.SIGKILL)
    killed.wait()
    prepared = prepare(make_data(), BPE)
    assert not prepared.reused
    assert len(all_text(prepared)) == 30
    assert list((tmp_path / "cache").glob(".*.tmp")) == [], "what the killed process left is still there"


@pytest.mark.bug("B110")
@pytest.mark.parametrize("name", ["train/tokens.bin", "val/offsets.npy", "tokenizer.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["cut", "removed"])
def test_a_damaged_cache_is_made_again(texts: Path, make_data: MakeData, name: str, damage: str) -> None:
    first = prepare(make_data(), BPE)
    text = all_text(first)
    if damage == "cut":
        os.truncate(first.folder / name, (first.folder / name).stat().st_size - 3)
    else:
        (first.folder / name).unlink()
    again = prepare(make_data(), BPE)
    assert not again.reused
    assert all_text(again) == text


@pytest.mark.bug("B100")
def test_a_tokenizer_swapped_inside_the_cache_is_not_used(texts: Path, make_data: MakeData) -> None:
    first = prepare(make_data(), BPE)
    wanted = first.tokenizer.to_json()
    (first.folder / "tokenizer.json").write_text(wanted.replace("endoftext", "endoftaxt"))  # of the same size
    again = prepare(make_data(), BPE)
    assert not again.reused
    assert again.tokenizer.to_json() == wanted


@pytest.mark.bug("B099")
def test_a_smaller_vocabulary_than_asked_is_noted(texts: Path, make_data: MakeData) -> None:
    prepared = prepare(make_data(), TokenizerConfig("train", vocab_size=50_000))
    assert prepared.tokenizer.vocab_size < 1000
    (note,) = prepared.notes
    assert f"The tokenizer has {prepared.tokenizer.vocab_size} tokens, not the 50000 asked" in note


def test_a_lone_file_holds_out_its_tail_and_says_so(tmp_path: Path, make_data: MakeData) -> None:
    text = "".join(f"Line {i} of the book.\n" for i in range(200))
    (tmp_path / "text" / "book.txt").write_text(text)
    prepared = prepare(make_data(held_out=0.1), BPE)
    assert "".join(all_text(prepared)) == text
    assert any("single document: its tail is held out" in note for note in prepared.notes)


def test_a_tokenizer_that_loses_text_is_said(texts: Path, make_data: MakeData, tmp_path: Path) -> None:
    from tokenizers import normalizers

    tokenizer = Tokenizer.train(["text"], 257)
    tokenizer.raw.normalizer = normalizers.Lowercase()  # type: ignore[assignment]
    tokenizer.save(tmp_path / "tokenizer.json")
    prepared = prepare(make_data(), TokenizerConfig("file", path=str(tmp_path / "tokenizer.json")))
    assert any("does not give a text back as it was" in note for note in prepared.notes)


def test_a_big_corpus_trains_its_tokenizer_on_a_part(
    texts: Path, make_data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    train = Tokenizer.train
    monkeypatch.setattr("minillm.data.build.TRAINING_CHARACTERS", 3000)
    monkeypatch.setattr(Tokenizer, "train", lambda texts, *rest: train(seen.extend(texts) or seen, *rest))
    prepared = prepare(make_data(), BPE)
    assert 1500 < sum(map(len, seen)) <= 3000
    assert any("was trained on every 4. piece" in note for note in prepared.notes)


REFUSED = {
    "an empty file": (b"", {}, "text is empty"),
    "white space alone": (b" \n\n", {}, "text is empty"),
    "a file that is not UTF-8": (b"caf\xe9", {}, r"a\.txt is not UTF-8"),
    "a corpus shorter than a block": (
        b"A few words.\n" * 5,
        {"seq_len": 4096},
        r"text is shorter than a block: .*4097",
    ),
    "one document, none to hold out": (b"A few words.\n" * 5, {"held_out": 1}, "leaves nothing to train on"),
}


@pytest.mark.parametrize(("content", "changes", "message"), REFUSED.values(), ids=REFUSED.keys())
def test_text_that_cannot_be_used_is_refused_and_leaves_nothing(
    tmp_path: Path, make_data: MakeData, content: bytes, changes: dict[str, object], message: str
) -> None:
    (tmp_path / "text" / "a.txt").write_bytes(content)
    with pytest.raises(MinillmError, match=message):
        prepare(make_data(**{"held_out": 0.5, **changes}), BPE)
    assert not (tmp_path / "cache").exists()


def test_a_cached_corpus_shorter_than_a_block_is_refused_too(texts: Path, make_data: MakeData) -> None:
    prepare(make_data(), BPE)
    with pytest.raises(MinillmError, match=r"shorter than a block: .* data\.seq_len=100000 needs 100001"):
        prepare(make_data(seq_len=100_000), BPE)


def test_refused_text_leaves_other_data_alone(texts: Path, make_data: MakeData, tmp_path: Path) -> None:
    kept = prepare(make_data(), BPE)
    (texts / "bad.txt").write_bytes(b"\xff")
    with pytest.raises(MinillmError):
        prepare(make_data(), BPE)
    assert {p.name for p in (tmp_path / "cache").iterdir()} == {kept.folder.name, f"{kept.folder.name}.lock"}


def test_text_that_changes_while_it_is_read_is_refused(
    texts: Path, make_data: MakeData, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode = build._encode

    def change_then_encode(*arguments):  # type: ignore[no-untyped-def]
        (texts / "00.txt").write_text("changed")
        return encode(*arguments)

    monkeypatch.setattr("minillm.data.build._encode", change_then_encode)
    with pytest.raises(MinillmError, match="changed while it was being read"):
        prepare(make_data(), BPE)


def test_a_cache_that_cannot_be_written_is_named(texts: Path, make_data: MakeData, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(MinillmError, match=r"data\.cache_dir: cannot prepare data in .*file/cache"):
        prepare(make_data(cache_dir=str(tmp_path / "file" / "cache")), BPE)


def test_settings_are_checked_before_anything_is_read(make_data: MakeData, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size: 100"):
        prepare(make_data(path="nowhere"), TokenizerConfig("train", vocab_size=100))
    assert not (tmp_path / "cache").exists()


def test_a_tilde_is_the_home_folder(
    texts: Path, make_data: MakeData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    Tokenizer.train(["text"], 257).save(tmp_path / "tokenizer.json")
    prepared = prepare(make_data(path="~/text", cache_dir="~/cache"), TokenizerConfig("file", path="~/tokenizer.json"))
    assert prepared.folder.parent == tmp_path / "cache"
