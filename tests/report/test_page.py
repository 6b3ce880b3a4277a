"""The written files: whole, self-contained, and nothing of a name is ever markup."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest

from minillm.errors import MinillmError
from minillm.evaluation.evaluate import Evaluation
from minillm.report import figures, markdown, page, write_report
from minillm.report.blocks import Bullets, Cell, Commands, Figure, Heading, Report, Strip, Table, Warnings
from minillm.report.collect import collect

Make = Callable[..., Evaluation]
NASTY = '<script>alert("x")</script> & | `code` [link](x)'


class Tags(HTMLParser):
    """The tags and the text of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]

    def handle_data(self, data: str) -> None:
        self.text += data


def test_no_text_of_any_block_becomes_markup(tmp_path: Path) -> None:
    (tmp_path / "f.png").write_bytes(bytes(24))
    cell = Cell(NASTY, "#000000", True, NASTY)
    blocks = [
        Heading(NASTY),
        Bullets([NASTY]),
        Warnings([NASTY]),
        Commands([NASTY, "```"]),
        Table([NASTY], [[NASTY]], NASTY),
        Figure("f.png", NASTY),
        Strip([(NASTY, [cell])], [("#000000", True, NASTY)]),
    ]
    parser = Tags()
    parser.feed(page.render(Report(NASTY, blocks), tmp_path))
    assert "script" not in parser.tags
    # title, h1, h2, li, p, pre, caption, th, td, figcaption, strip's th, td and legend
    assert parser.text.count(NASTY) == 13
    text = markdown.render(Report(NASTY, blocks))
    outside_code = re.sub(r"(?s)^(`{3,})\n.*?^\1$", "", text, flags=re.MULTILINE)
    assert "<script>" not in outside_code.replace("\\<", "")
    assert not re.search(r"(?<!\\)\[link(?<!\\)\]", outside_code)
    table = next(line for line in text.splitlines() if line.startswith("| "))
    assert len(re.findall(r"(?<!\\)\|", table)) == 2


def test_a_report_is_whole_and_needs_nothing_beside_it(make_evaluation: Make, tmp_path: Path) -> None:
    runs = [make_evaluation("model=rope", name="a", worse=0.4), make_evaluation("model=rnope_swa", name="b")]
    written = write_report(runs, tmp_path / "out", command="python eval.py")
    parser = Tags()
    parser.feed(written.page.read_text())
    assert parser.tags.count("img") == len(figures.FIGURES)
    assert all(link.startswith("data:image/png;base64,") for link in parser.links)
    assert {p.name for p in (tmp_path / "out" / "figures").iterdir()} == set(figures.FIGURES)
    text = (tmp_path / "out" / "report.md").read_text()
    for name in re.findall(r"\]\((.+?)\)", text):
        assert (tmp_path / "out" / name).is_file()
    assert written.notes == []
    columns = re.split(r"  +", written.summary.splitlines()[0])
    assert columns[:5] == ["run", "held-out loss", "bits per byte", "same targets, 1x", "change at 4x"]


def test_without_matplotlib_the_report_is_written_and_says_what_is_missing(
    make_evaluation: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [n for n in sys.modules if n.partition(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    written = write_report([make_evaluation("model=rope")], tmp_path / "out", command="python eval.py")
    assert written.notes == [
        "There are no figures, as matplotlib is not installed: pip install 'minillm[report]', then eval.py again."
    ]
    html = written.page.read_text()
    assert "matplotlib is not installed" in html
    assert "<img" not in html


def test_a_figure_without_data_is_not_drawn_and_an_old_one_is_removed(make_evaluation: Make, tmp_path: Path) -> None:
    evaluation = make_evaluation("model=rope", suites=("cost",), metrics=False)
    (tmp_path / "same_target.png").write_bytes(b"of an earlier report")
    assert set(figures.draw(collect([evaluation]), tmp_path)) == {"cost.png"}
    assert [p.name for p in tmp_path.glob("*.png")] == ["cost.png"]


def test_seeds_of_a_variant_are_drawn_as_one_colour_with_their_mean(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", f"seed={s}", name=f"r{s}", worse=0.1 * s) for s in (1, 2)]
    figure = figures.FIGURES["same_target.png"][0](collect([*runs, make_evaluation("model=nope", name="n")]))
    lines = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == 5]
    assert [line.get_color() for line in lines].count(figures.COLOURS[0]) == 3
    assert sorted(figure.axes[0].get_legend_handles_labels()[1]) == ["nope", "rope (mean of 2 seeds)"]
    mean = next(line for line in lines if line.get_linewidth() > 2)
    assert list(mean.get_ydata()) == pytest.approx([3.1 + 0.15 * i for i in range(5)])


def test_the_training_length_is_marked(make_evaluation: Make) -> None:
    for overrides, mark in (([], 256), (["data.seq_len=128"], 1)):
        runs = [
            make_evaluation("model=rope", name=f"a{mark}"),
            make_evaluation("model=nope", *overrides, name=f"b{mark}"),
        ]
        figure = figures.FIGURES["windows.png"][0](collect(runs))
        for axis in figure.axes:
            assert any(list(line.get_xdata()) == [mark, mark] for line in axis.get_lines())


def test_a_folder_that_cannot_be_written_is_named(make_evaluation: Make, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(MinillmError, match=r"out: the comparison cannot be written to .*file"):
        write_report([make_evaluation("model=rope")], tmp_path / "file", command="x")
