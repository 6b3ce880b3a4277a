"""The tokenizer loses no text, says its real size, and has one marker."""

from __future__ import annotations

import json
import random
import string
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer as RawTokenizer
from tokenizers import decoders, models, pre_tokenizers, processors

from minillm.config.schema import TokenizerConfig
from minillm.data import Prepared, Tokenizer, asked_vocab_size
from minillm.data.tokenizer import CHUNK, MARKER, chunks
from minillm.errors import ConfigError, MinillmError

TEXT = "The quick brown fox jumps over the lazy dog. " * 20
ODD_TEXTS = {
    "empty": "",
    "white space": " \n\t  \r\n ",
    "line ends of every kind": "a\r\nb\rc\nd\u2028e\x85f\x1cg",
    "the marker spelt out": f"before {MARKER} after{MARKER}",
    "several scripts": "日本語のテキスト العربية हिन्दी 👩‍👩‍👧‍👦 e\u0301",
    "nothing printable": "".join(map(chr, range(32))) + "\x7f\ufeff\ufffe\U0010ffff",
    "long runs": "a" * 1000 + " " * 1000 + "1" * 1000 + "?!" * 500,
    "contractions and numbers": "it's 1847's, don't; 1,234,567.89",
}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT, "Numbers like 1847 and 23. " * 9], vocab_size=300)


@pytest.mark.parametrize("text", ODD_TEXTS.values(), ids=ODD_TEXTS.keys())
def test_odd_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text, bos=True)) == text


@given(text=st.text(st.characters(codec="utf-8")))
def test_any_text_comes_back_as_it_was(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text())
def test_the_bytes_of_tokens_add_up_to_those_of_the_text(tokenizer: Tokenizer, text: str) -> None:
    sizes = tokenizer.token_bytes()
    assert sizes is not None
    assert sizes[tokenizer.encode(text, bos=True)].sum() == len(text.encode())


def test_tokens_that_are_no_bytes_have_no_number_of_them() -> None:
    raw = RawTokenizer(models.WordLevel({"a": 0, MARKER: 1}, unk_token="a"))
    raw.add_special_tokens([MARKER])
    raw.decoder = decoders.WordPiece()
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    assert Tokenizer(raw).token_bytes() is None


def test_held_out_speeches_come_back_as_they_were(embedded: Prepared) -> None:
    for i in range(len(embedded.val)):
        text = embedded.tokenizer.decode(embedded.val.document(i))
        assert len(text.encode()) == embedded.val.document_bytes[i]


@pytest.mark.bug("B102")
def test_a_document_has_the_marker_once_even_if_its_text_spells_it(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode(f"{MARKER}a {MARKER}", bos=True)
    assert ids.count(tokenizer.bos_id) == 1
    assert ids[0] == tokenizer.bos_id
    assert tokenizer.encode("a") == tokenizer.encode("a", bos=True)[1:]


def test_the_marker_shows_when_asked(tokenizer: Tokenizer) -> None:
    assert tokenizer.decode([tokenizer.bos_id], skip_special_tokens=False) == MARKER
    assert tokenizer.decode([tokenizer.bos_id]) == ""


@pytest.mark.bug("B099")
def test_fewer_tokens_than_bytes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"tokenizer\.vocab_size: 100 is not allowed\. Allowed: 257"):
        Tokenizer.train([TEXT], vocab_size=100)


@pytest.mark.bug("B099")
@pytest.mark.parametrize(("asked", "got"), [(257, 257), (280, 280), (50_000, 291)])
def test_the_size_is_what_training_gave(asked: int, got: int) -> None:
    tokenizer = Tokenizer.train([TEXT], vocab_size=asked)
    assert tokenizer.vocab_size == got
    assert max(tokenizer.encode(TEXT, bos=True)) < got


@pytest.mark.bug("B100")
def test_the_size_counts_tokens_added_after_training(tokenizer: Tokenizer, tmp_path: Path) -> None:
    raw = RawTokenizer.from_str(tokenizer.to_json())
    raw.add_special_tokens(["<extra>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert raw.token_to_id("<extra>") == loaded.vocab_size - 1 == tokenizer.vocab_size


def test_saving_and_loading_changes_nothing(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    loaded = Tokenizer.load(tmp_path / "tokenizer.json")
    assert loaded.to_json() == tokenizer.to_json()
    text = f"{TEXT} {MARKER} ü"
    assert loaded.encode(text, bos=True) == tokenizer.encode(text, bos=True)
    assert [p.name for p in tmp_path.iterdir()] == ["tokenizer.json"]


def test_a_marker_of_another_name_is_found_again(tmp_path: Path) -> None:
    Tokenizer.train([TEXT], vocab_size=300, bos_token="<s>").save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").bos_token == "<s>"


def test_training_is_the_same_in_another_process() -> None:
    program = f"from minillm.data import Tokenizer; print(Tokenizer.train([{TEXT!r}], 300).to_json())"
    printed = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert json.loads(printed) == json.loads(Tokenizer.train([TEXT], 300).to_json())


@given(words=st.lists(st.text(st.sampled_from("ab1.\n\t \u2003\x1c'")), max_size=30), size=st.integers(1, 20))
def test_cutting_a_text_loses_nothing_and_keeps_to_the_size(words: list[str], size: int) -> None:
    text = "".join(words)
    pieces = list(chunks(text, size))
    assert "".join(pieces) == text
    assert all(len(piece) <= size for piece in pieces)


def test_cutting_a_text_does_not_change_its_tokens(embedded: Prepared) -> None:
    text = embedded.tokenizer.decode(embedded.val.document(7))
    assert len(text) > 2 * CHUNK
    whole = embedded.tokenizer.raw.encode(text, add_special_tokens=False).ids
    assert embedded.tokenizer.encode(text) == whole


def test_many_texts_are_encoded_as_one_by_one(tokenizer: Tokenizer) -> None:
    texts = ["one", "", TEXT * 60, "two"]
    many = tokenizer.encode_many(texts, bos=True)
    assert [ids.tolist() for ids in many] == [tokenizer.encode(text, bos=True) for text in texts]
    assert all(ids.dtype == np.int64 for ids in many)


@pytest.mark.bug("B105")
@pytest.mark.parametrize("kind", ["letters", "digits", "signs", "spaces", "CJK"])
def test_no_word_is_longer_than_32_characters(tokenizer: Tokenizer, kind: str) -> None:
    run = {"letters": "x", "digits": "7", "signs": "-", "spaces": " ", "CJK": "日"}[kind] * 5000
    assert tokenizer.raw.pre_tokenizer is not None
    words = tokenizer.raw.pre_tokenizer.pre_tokenize_str(run)
    assert max(end - start for _, (start, end) in words) <= 32


@pytest.mark.bug("B105")
def test_a_line_of_a_megabyte_without_spaces_trains_and_comes_back() -> None:
    line = "".join(random.Random(0).choices(string.ascii_lowercase, k=1_000_000))
    tokenizer = Tokenizer.train([line], vocab_size=400)
    assert tokenizer.decode(tokenizer.encode(line)) == line


@pytest.mark.slow
@pytest.mark.bug("B105")
@pytest.mark.timeout(600)
@pytest.mark.parametrize("alphabet", [string.ascii_lowercase, "".join(map(chr, range(0x4E00, 0x5600)))])
def test_a_line_of_20_megabytes_takes_under_4_gigabytes_and_5_minutes(alphabet: str) -> None:
    program = f"""
import random, resource
from minillm.data import Tokenizer
size = {20_000_000 // len(alphabet[0].encode())}
line = "".join(random.Random(0).choices({alphabet!r}, k=size))
tokenizer = Tokenizer.train([line], 2048)
assert tokenizer.decode(tokenizer.encode(line)) == line
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    start = time.monotonic()
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) * 1024 < 4e9
    assert time.monotonic() - start < 300


def foreign(template: bool = True) -> RawTokenizer:
    """Like a published file: an unlike pre-tokenizer, a template with <s>, truncation and padding left on."""
    vocab = {t: i for i, t in enumerate(["<unk>", "<s>", "</s>", "a", "b", "▁", "▁a", "▁b"])}
    raw = RawTokenizer(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    raw.add_special_tokens(["<unk>", "<s>", "</s>"])
    if template:
        raw.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    raw.enable_truncation(4)
    raw.enable_padding(length=9)
    return raw


def test_a_file_from_elsewhere_tells_its_marker_and_cuts_no_text() -> None:
    tokenizer = Tokenizer.from_json(foreign().to_str())
    assert (tokenizer.bos_token, tokenizer.bos_id, tokenizer.vocab_size) == ("<s>", 1, 8)
    assert tokenizer.encode("a b a b a", bos=True) == [1, 6, 7, 6, 7, 6], "truncated, padded, or marked twice"


def test_a_file_from_elsewhere_gets_each_text_whole() -> None:
    # Its pre-tokenizer puts a mark at the beginning of whatever it is given: cutting would add marks.
    tokenizer = Tokenizer.from_json(foreign().to_str())
    assert tokenizer.encode("a" * 3 * CHUNK) == [6, *[3] * (3 * CHUNK - 1)]


def test_a_marker_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(MinillmError, match=r"'<\|endoftext\|>' is not in the tokenizer\. .* <unk>, <s>, </s>"):
        Tokenizer.from_json(foreign(template=False).to_str())
    assert Tokenizer.from_json(foreign(template=False).to_str(), bos_token="</s>").bos_id == 2


def test_bpe_dropout_is_refused() -> None:
    raw = foreign()
    raw.model.dropout = 0.1  # type: ignore[attr-defined]
    with pytest.raises(MinillmError, match="dropout"):
        Tokenizer.from_json(raw.to_str())


@pytest.mark.parametrize("content", [None, b"", b"{}", b"[1, 2", b"\xff\xfe"])
def test_a_file_that_is_no_tokenizer_is_named(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "tokenizer.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(MinillmError, match=r"The tokenizer .*tokenizer\.json"):
        Tokenizer.load(path)


def test_a_model_is_planned_with_the_size_asked_or_that_of_the_file(tokenizer: Tokenizer, tmp_path: Path) -> None:
    tokenizer.save(tmp_path / "tokenizer.json")
    assert asked_vocab_size(TokenizerConfig("train", vocab_size=4096)) == 4096
    assert asked_vocab_size(TokenizerConfig("file", path=str(tmp_path / "tokenizer.json"))) == 300


def test_a_word_that_a_task_does_not_have_is_named() -> None:
    raw = RawTokenizer(models.WordLevel({"<bos>": 0, "a": 1}))
    raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words = Tokenizer(raw, "<bos>")
    assert words.encode("a a") == [1, 1]
    with pytest.raises(MinillmError, match="cannot encode the text 'a copy'"):
        words.encode_many(["a", "a copy", "a"])
