"""The figures of the position schemes show what the schemes do, and are the same from run to run."""

from __future__ import annotations

import cmath
import math
import re
from pathlib import Path

import pytest
import torch

from minillm.position.alibi import ALiBi
from minillm.position.deberta import DeBERTa
from minillm.position.rope import RoPE
from minillm.position.scaling_by_length import LongRoPE
from minillm.position.shaw import Shaw
from minillm.position.t5 import T5
from minillm.report.rope_figures import FACTOR, PHI3, TRAINED, WIDTH
from minillm.report.scheme_figures import FIGURES, draw
from minillm.report.scheme_numbers import alibi_fade, bias_weight, decay_bound, rotated_score, table_row

COMMITTED = Path(__file__).resolve().parents[2] / "docs" / "figures"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures")
    assert {path.name for path in draw(folder)} == set(FIGURES)
    return folder


def test_alibis_heads_fade_to_one_percent_at_the_known_distances() -> None:
    assert alibi_fade(8) == (9, 18, 37, 74, 147, 295, 589, 1179)
    at = bias_weight(ALiBi(), 8, torch.tensor(alibi_fade(8))).diagonal()
    before = bias_weight(ALiBi(), 8, torch.tensor([d // 2 for d in alibi_fade(8)])).diagonal()
    assert at.sub(0.01).abs().max() < 0.0012
    assert before.sub(0.1).abs().max() < 0.04


def test_the_decay_bound_is_the_papers_sum() -> None:
    theta, width = 50.0, 10
    frequencies = [theta ** (-2 * i / width) for i in range(width // 2)]
    for distance in (0, 1, 7, 300):
        partial = [sum(cmath.exp(1j * distance * f) for f in frequencies[: j + 1]) for j in range(width // 2)]
        bound = decay_bound(RoPE(theta=theta), width, torch.tensor([distance])).item()
        assert bound == pytest.approx(sum(map(abs, partial)) / len(partial), abs=1e-9)
        cosine = sum(math.cos(distance * f) for f in frequencies) / len(frequencies)
        assert rotated_score(RoPE(theta=theta), width, torch.tensor([0, distance]))[1].item() == pytest.approx(
            cosine, abs=1e-4
        )


def test_a_table_is_read_at_the_row_of_its_distance() -> None:
    distance = torch.arange(200)
    edges = [16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]
    rows = table_row(T5(), distance, 32)
    assert [int((rows < bucket).sum()) for bucket in range(16, 32)] == edges
    assert torch.equal(table_row(Shaw(max_distance=9), distance, 10), distance.clamp(max=9))
    assert torch.equal(table_row(DeBERTa(terms=("c2p",), max_distance=50), distance, 50), distance.clamp(max=49))
    assert torch.equal(table_row(DeBERTa(terms=("p2c",), max_distance=50), distance, 50), distance.clamp(max=49))


def test_the_longrope_factors_drawn_are_those_of_a_model_of_that_width() -> None:
    scaled = RoPE(scaling=LongRoPE(FACTOR, TRAINED, 1.0, PHI3)).frequencies(WIDTH, TRAINED + 1)
    plain = RoPE().frequencies(WIDTH, 0)
    assert [p / s for p, s in zip(plain, scaled, strict=True)] == pytest.approx(PHI3)


def test_drawing_again_gives_the_same_bytes(drawn: Path, tmp_path: Path) -> None:
    for path in draw(tmp_path, ["alibi.svg", "sinusoidal.svg"]):
        assert path.read_bytes() == (drawn / path.name).read_bytes(), path.name


def test_the_figures_in_docs_are_those_that_the_code_draws(drawn: Path) -> None:
    """To the hundredth of a point: the last digits may differ between processors, names made of them too."""
    assert {path.name for path in COMMITTED.iterdir()} == set(FIGURES), "run: make figures"
    for name in FIGURES:
        ours, theirs = ((folder / name).read_text() for folder in (drawn, COMMITTED))
        if re.findall(r"Matplotlib v[\d.]+", ours) != re.findall(r"Matplotlib v[\d.]+", theirs):
            pytest.skip("docs/figures was drawn with another version of matplotlib")
        texts = [
            re.sub(r'base64,[^"]*|(?<=["#(])[mpi][0-9a-f]{10}|image[0-9a-f]{10}', "", text) for text in (ours, theirs)
        ]
        assert NUMBER.sub("", texts[0]) == NUMBER.sub("", texts[1]), f"{name} has changed; run: make figures"
        numbers = [torch.tensor([float(n) for n in NUMBER.findall(text)]) for text in texts]
        assert torch.allclose(*numbers, atol=0.02), f"{name} has changed; run: make figures"


def test_figures_are_small_and_hold_no_date(drawn: Path) -> None:
    for name in FIGURES:
        assert (drawn / name).stat().st_size < 120_000, name
        assert "dc:date" not in (drawn / name).read_text()
