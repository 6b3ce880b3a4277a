"""What the report says: every number from its row, and every reason to doubt a comparison."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minillm.evaluation.evaluate import Evaluation
from minillm.report import content, tables
from minillm.report.blocks import Bullets, Heading, Table, Warnings
from minillm.report.collect import collect
from minillm.report.differences import differences
from minillm.report.strip import as_text, layer_strip

Make = Callable[..., Evaluation]


def cells(table: Table | None) -> dict[str, dict[str, str]]:
    assert table is not None
    return {row[0]: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}


def test_the_headline_has_the_numbers_of_each_run(make_evaluation: Make) -> None:
    subjects = collect([make_evaluation("model=rope", name="a", worse=0.5), make_evaluation("model=nope", name="b")])
    headline = cells(tables.headline(subjects))
    assert headline["rope"] == {
        "held-out loss": "2.100",
        "bits per byte": "1.900",
        "same targets, 1x": "3.100",
        "change at 4x": "+1.000 [+1.000, +1.000]",
        "change at 16x": "+2.000 [+2.000, +2.000]",
        "training tokens/s": "9,000",
        "decoding tokens/s": "800",
        "KV cache, MiB": "4.00",
    }
    assert headline["nope"]["change at 16x"] == "+0.000 [+0.000, +0.000]"
    table = tables.headline(subjects)
    assert table is not None
    assert "n = 300 tokens of 3 documents" in table.caption


def test_the_headline_leaves_out_what_was_not_measured_in_any_run(make_evaluation: Make) -> None:
    subjects = collect([make_evaluation("model=rope", suites=("length_perplexity",), metrics=False)])
    table = tables.headline(subjects)
    assert table is not None
    assert table.header == ["run", "same targets, 1x", "change at 4x", "change at 16x"]


def test_a_loss_stands_with_its_interval_under_its_length(make_evaluation: Make) -> None:
    subjects = collect([make_evaluation("model=rope", worse=0.5)])
    for protocol in ("same_target", "non_overlapping", "strided"):
        assert cells(tables.by_length(subjects, protocol))["rope"]["4x (1024)"] == "4.100 [4.050, 4.150]"


def test_runs_are_compared_on_the_same_documents_against_the_first(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", name="a", worse=0.5), make_evaluation("model=nope", name="b")]
    found = cells(tables.against_first(collect(runs)))
    assert list(found) == ["nope"]
    assert found["nope"]["1x (256)"] == "+0.000 [+0.000, +0.000]"
    # Documents differ by 0.1 nats and the runs by 1 in each of them: the paired interval has no width.
    assert found["nope"]["4x (1024)"] == "−1.000 [−1.000, −1.000]"  # noqa: RUF001


def test_runs_that_read_other_documents_are_not_paired(make_evaluation: Make) -> None:
    other = make_evaluation("model=nope", name="b", settings={"documents_digest": "other"})
    assert tables.against_first(collect([make_evaluation("model=rope", name="a"), other])) is None


def test_what_is_not_defined_is_said_and_has_no_number(make_evaluation: Make) -> None:
    subjects = collect(
        [make_evaluation("model=rope", name="a"), make_evaluation("model=learned", name="b", table=True)]
    )
    for protocol in ("same_target", "non_overlapping", "strided"):
        row = cells(tables.by_length(subjects, protocol))["learned"]
        assert list(row.values())[1:] == ["not defined"] * 4
    assert list(cells(tables.against_first(subjects))["learned"].values())[1:] == ["not defined"] * 4
    limits = content.compose(subjects, {}, "x").blocks
    assert any(
        "learned is not defined beyond 256 tokens" in item for b in limits if isinstance(b, Bullets) for item in b.items
    )


def test_positions_are_lines_and_runs_are_columns(make_evaluation: Make) -> None:
    table = tables.by_position(
        collect([make_evaluation("model=rope", name="a"), make_evaluation("model=nope", name="b")])
    )
    assert table is not None
    assert table.header == ["tokens of context", "rope", "nope"]
    assert [row[0] for row in table.rows] == ["1-256", "2-512", "4-1024", "8-2048", "16-4096"]


def test_a_run_whose_documents_are_too_short_for_a_length_stands_beside_one_that_was_measured(
    make_evaluation: Make,
) -> None:
    short = make_evaluation("model=nope", name="b")
    for row in short.results["length_perplexity"]["rows"]:
        if row["multiple"] == 16:
            row |= {"value": None, "note": "not measured: too few documents longer than 4096 tokens", "bin": None}
    subjects = collect([make_evaluation("model=rope", name="a"), short])
    assert cells(tables.by_length(subjects, "strided"))["nope"]["16x (4096)"] == "not measured"
    assert cells(tables.by_position(subjects))["16-4096"]["nope"] == "–"  # noqa: RUF001
    items = [item for b in content.compose(subjects, {}, "x").blocks if isinstance(b, Bullets) for item in b.items]
    assert "nope: not measured at 4096 tokens, as fewer than 2 documents are longer." in items


def test_lengths_are_multiples_where_training_lengths_differ(make_evaluation: Make) -> None:
    subjects = collect(
        [make_evaluation("model=rope", name="a"), make_evaluation("model=nope", "data.seq_len=128", name="b")]
    )
    table = tables.by_length(subjects, "same_target")
    assert table is not None
    assert table.header[1:] == ["1x", "2x", "4x", "8x", "16x"]
    assert tables.against_first(subjects) is None


def test_measured_bytes_stand_beside_the_formula(make_evaluation: Make) -> None:
    assert cells(tables.cache_bytes(collect([make_evaluation("model=rope")])))["rope"]["16x (4096)"] == "4.00 (4.00)"


def test_a_suite_that_was_not_measured_has_no_section(make_evaluation: Make) -> None:
    subjects = collect([make_evaluation("model=rope", suites=("cost",), metrics=False)])
    headings = [b.text for b in content.compose(subjects, {}, "x").blocks if isinstance(b, Heading)]
    assert "Cost" in headings
    assert "Loss beyond the training length" not in headings
    assert "Training" not in headings


def test_alike_runs_have_nothing_to_warn_of(make_evaluation: Make) -> None:
    assert (
        differences(collect([make_evaluation("model=rope", name="a"), make_evaluation("model=nope", name="b")])) == []
    )


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"decided": {"precision": "bf16", "device": "cpu", "torch": "2.13.0"}},
            "arithmetic of training: fp32 (rope); bf16",
        ),
        ({"decided": {"precision": "fp32", "device": "H200", "torch": "2.13.0"}}, "device of training"),
        ({"step": 300}, "nope is not trained to its end: 300 of 600 steps"),
        ({"step": 300}, "tokens trained on"),
        ({"settings": {"threads": 1}}, "threads of the speed measurements"),
        ({"settings": {"documents_digest": "other"}}, "documents evaluated"),
        ({"settings": {"precision": "bf16"}}, "arithmetic of the evaluation"),
    ],
    ids=["precision", "device", "unfinished", "fewer tokens", "threads", "other documents", "evaluation precision"],
)
def test_what_makes_a_comparison_unfair_is_said(changed: dict[str, object], said: str, make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", name="a"), make_evaluation("model=nope", name="b", **changed)]
    assert any(said in text for text in differences(collect(runs)))


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("optim.lr=0.5", "learning rate"),
        ("data.batch_size=8", "tokens trained on"),
        ("block=gemma3", "block: standard (rope); gemma3 (nope)"),
        ("model.backend=reference", "attention backend"),
    ],
)
def test_settings_besides_the_plan_that_differ_are_said(override: str, said: str, make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", name="a"), make_evaluation("model=nope", override, name="b")]
    assert any(said in text for text in differences(collect(runs)))


def test_a_warning_stands_before_the_numbers(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", name="a"), make_evaluation("model=nope", name="b", step=300)]
    kinds = [type(b) for b in content.compose(collect(runs), {}, "x").blocks]
    headline = next(
        i for i, b in enumerate(content.compose(collect(runs), {}, "x").blocks) if b == Heading("At a glance")
    )
    assert kinds.index(Warnings) < headline


def test_a_strip_has_a_cell_for_each_layer_and_says_what_it_sees(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rnope_swa", name="a"), make_evaluation("model=alibi", name="b")]
    strip = layer_strip(collect(runs))
    (_, hybrid), (_, alibi) = strip.rows
    assert [c.text for c in hybrid[:4]] == ["R 32", "R 32", "R 32", "N"]
    assert [c.local for c in hybrid[:4]] == [True, True, True, False]
    assert {c.text for c in alibi} == {"A"}
    assert "window 32" in hybrid[0].title
    assert {text for _, _, text in strip.legend} == {
        "rope, sliding window",
        "nope, full attention",
        "alibi, full attention",
    }
    assert as_text(strip).splitlines()[0].startswith("rnope_swa  R32  R32  R32  N    R32")


def test_embedding_schemes_are_named_beside_the_strip(make_evaluation: Make) -> None:
    assert layer_strip(collect([make_evaluation("model=learned")])).rows[0][0] == "learned (+ learned embeddings)"


def test_the_commands_that_made_the_numbers_are_on_the_page(make_evaluation: Make) -> None:
    report = content.compose(collect([make_evaluation("model=rope", "optim.lr=0.5")]), {}, "python eval.py runs=a")
    lines = report.blocks[-1].lines  # type: ignore[union-attr]
    assert "python train.py model=rope optim.lr=0.5" in lines
    assert lines[-1] == "python eval.py runs=a"
