"""The compressor's bar: xz -9e in bits per byte."""

from __future__ import annotations

import random

import pytest

from minillm.data import Prepared, xz_bits_per_byte


def test_noise_takes_all_its_bits_and_repetition_few() -> None:
    noise = "".join(random.Random(0).choices("0123456789abcdef", k=20_000))
    assert 4 <= xz_bits_per_byte([noise]) < 4.6
    assert xz_bits_per_byte(["again and " * 2000]) < 0.1


def test_texts_are_compressed_together() -> None:
    text = "".join(random.Random(0).choices("0123456789abcdef", k=20_000))
    assert xz_bits_per_byte([text, text]) < 0.6 * xz_bits_per_byte([text])


def test_only_the_first_bytes_count_when_there_are_many() -> None:
    assert xz_bits_per_byte(["ä" * 50, "x" * 10_000], limit=100) == xz_bits_per_byte(["ä" * 50])


def test_the_held_out_speeches_take_about_2_2_bits(embedded: Prepared) -> None:
    assert embedded.xz_bits_per_byte == pytest.approx(2.179, abs=0.01)


def test_nothing_cannot_be_compressed() -> None:
    with pytest.raises(ValueError, match="No text"):
        xz_bits_per_byte(["", ""])
