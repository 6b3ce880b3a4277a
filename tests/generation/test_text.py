"""Text that is shown while its tokens come: whole characters only, and nothing of a stop string."""

from __future__ import annotations

import pytest
import torch

from minillm.data.tokenizer import Tokenizer
from minillm.generation.text import TextStream

TEXTS = ["the sea, the sea", "naïve café — 漢字かな 🙂👩‍👩‍👧 end", "🙂", " \n\n the\ttab", "Ωμέγα"]


def shown(tokenizer: Tokenizer, ids: list[int], stop: list[str] | None = None) -> list[str]:
    stream = TextStream(tokenizer, stop or [])
    pieces = [stream.add(i) for i in ids]
    pieces.append(stream.finish())
    assert stream.text == "".join(pieces)
    return pieces


@pytest.mark.parametrize("text", TEXTS)
def test_the_pieces_are_the_text_and_each_is_whole_characters(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    pieces = shown(tokenizer, ids)
    assert "".join(pieces) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert pieces[-1] == "", "what is whole is not held back"


def test_a_character_of_four_tokens_comes_with_its_last(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🙂b")
    assert len(ids) == 6
    assert shown(tokenizer, ids) == ["a", "", "", "", "🙂", "b", ""]


@pytest.mark.parametrize("seed", range(20))
def test_any_ids_whatever_give_what_decoding_them_at_once_gives(tokenizer: Tokenizer, seed: int) -> None:
    """Random bytes are mostly no characters: they are shown as such, in their place."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(tokenizer.vocab_size, (120,), generator=generator).tolist()
    assert "".join(shown(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_cut_character_at_the_end_is_shown_as_one_that_is_none(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a🙂")[:-1]
    pieces = shown(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == "a\ufffd"
    assert pieces[-1] == "\ufffd"


def test_a_tokenizer_that_strips_the_first_space_keeps_the_others() -> None:
    from tokenizers import Tokenizer as Raw
    from tokenizers import decoders, models

    words = {"<s>": 0, "▁the": 1, "▁sea": 2, "s": 3, "<0xE6>": 4, "<0xBC>": 5, "<0xA2>": 6}
    raw = Raw(models.WordLevel(words, unk_token="<s>"))
    raw.add_special_tokens(["<s>"])
    raw.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer = Tokenizer(raw, "<s>")
    ids = [1, 2, 3, 1, 4, 5, 6, 2]
    assert "".join(shown(tokenizer, ids)) == tokenizer.decode(ids) == "the seas the漢 sea"
    assert shown(tokenizer, ids)[4:7] == ["", "", "漢"]
    behind = TextStream(tokenizer, before=[0, 1])
    assert [behind.add(i) for i in (2, 3, 1, 2)] == [" sea", "s", " the", " sea"]


@pytest.mark.parametrize(
    ("stop", "left"),
    [
        (["sea"], "the union of the "),
        (["states", "sea"], "the union of the "),
        (["e "], "th"),
        (["the union"], ""),
        (["nothing of it", "sea!"], "the union of the sea, the sea"),
        ([", the sea"], "the union of the sea"),
    ],
)
def test_text_ends_before_the_first_stop_string(tokenizer: Tokenizer, stop: list[str], left: str) -> None:
    text = "the union of the sea, the sea"
    assert "".join(shown(tokenizer, tokenizer.encode(text), stop)) == left


def test_the_beginning_of_a_stop_string_is_held_back_until_it_is_none(tokenizer: Tokenizer) -> None:
    ids = tokenizer.encode("a|b||c")
    assert len(ids) == 6
    assert shown(tokenizer, ids, ["||c"]) == ["a", "", "|b", "", "", "", ""]
    assert shown(tokenizer, ids[:-1], ["||c"]) == ["a", "", "|b", "", "", "||"]
    stream = TextStream(tokenizer, ["||"])
    for i in ids:
        stream.add(i)
    assert (stream.stopped, stream.text, stream.add(ids[0]), stream.finish()) == (True, "a|b", "", "")


def test_a_stop_string_in_the_prompt_ends_nothing(tokenizer: Tokenizer) -> None:
    stream = TextStream(tokenizer, ["sea"], before=tokenizer.encode("the sea"))
    pieces = [stream.add(i) for i in tokenizer.encode(", the sea")]
    assert pieces[0] == ","
    assert (stream.stopped, stream.text) == (True, ", the ")


def test_special_tokens_are_not_shown(tokenizer: Tokenizer) -> None:
    ids = [tokenizer.bos_id, *tokenizer.encode("the"), tokenizer.bos_id]
    assert "".join(shown(tokenizer, ids)) == "the"
