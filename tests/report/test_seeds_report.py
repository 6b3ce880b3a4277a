"""What the report says over seeds: each number from its seeds, and in words where there is none."""

from __future__ import annotations

import csv
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from minillm.evaluation.evaluate import Evaluation
from minillm.report import content, figures, recall, seeds, tables, write_report
from minillm.report.blocks import Bullets, Heading, Table, Warnings
from minillm.report.collect import Subject, collect
from minillm.report.groups import changes, groups, over_rows, repeated

Make = Callable[..., Evaluation]
NEEDLE = "data=needle", "size.seq_len=96"


@pytest.fixture
def arm(make_evaluation: Make) -> Callable[..., list[Evaluation]]:
    def make(model: str, worse: dict[int, float], lift: float = 0.0) -> list[Evaluation]:
        """A run a seed, whose loss changes by that much with each doubling of the context."""
        return [
            make_evaluation(
                f"model={model}", f"seed={seed}", name=f"{model}-{seed}", worse=value, lift=lift, suites=TEXT
            )
            for seed, value in worse.items()
        ]

    return make


TEXT = ("length_perplexity",)


def needles(
    make_evaluation: Make, model: str, accuracies: dict[int, Sequence[float]], hits: int = 20
) -> list[Evaluation]:
    """A run a seed with these accuracies at 1x, 2x, ...: of 20 samples of one answer token, the first ones right, at
    0.1 nats each, and the others wrong, at 2 nats."""
    runs = []
    for seed, values in accuracies.items():
        rows: list[dict[str, Any]] = []
        for power, value in enumerate(values):
            right = [float(i < round(hits * value)) for i in range(hits)]
            nll = [0.1 if r else 2.0 for r in right]
            common = {
                "task": "needle", "length": 96 * 2**power, "multiple": 2**power, "chance": 0.25, "depth": None,
                "reach": None, "n": hits, "low": 0.0, "high": 1.0, "note": None, "sample_counts": [1] * hits,
            }  # fmt: skip
            share = {"value": sum(right) / hits, "sample_sums": right}
            rows += [{**common, "metric": metric, **share} for metric in ("token_accuracy", "exact")]
            rows.append({**common, "metric": "nll", "value": sum(nll) / hits, "sample_sums": nll})
            rows.append({**common, "metric": "token_accuracy", "value": value, "depth": 0.5, "sample_sums": None})
        run = make_evaluation(f"model={model}", f"seed={seed}", *NEEDLE, name=f"{model}-{seed}", suites=())
        settings = {"task": {"name": "needle"}, "samples": hits, "rules": 1, "train_length": 96}
        result = {"suite": "needle", "settings": settings, "rows": rows, "seconds": 1.0}
        runs.append(dataclasses.replace(run, results={"needle": result}))
    return runs


def line(found: Sequence[seeds.Line], variant: str, metric: str, multiple: float = 1, paired: bool = False) -> Any:
    (one,) = [
        found_line
        for found_line in found
        if (found_line.variant, found_line.measure.metric, found_line.multiple) == (variant, metric, multiple)
        and (found_line.against is not None) == paired
    ]
    return one


def by_first(table: Table | None) -> dict[str, dict[str, str]]:
    assert table is not None
    return {row[0]: dict(zip(table.header[1:], row[1:], strict=True)) for row in table.rows}


def test_a_variant_has_its_mean_its_points_and_its_interval(arm: Callable[..., list[Evaluation]]) -> None:
    found = seeds.lines(collect([*arm("rope", {1: 0.1, 2: 0.2, 3: 0.3}), *arm("nope", {1: 0.0, 2: 0.0, 3: 0.0})]))
    estimate = line(found, "rope", "nll_change", 4).estimate
    assert estimate.values == pytest.approx((0.2, 0.4, 0.6))
    # Documents agree on the change, so that three seeds alone decide: from the least to the most of them.
    assert (estimate.value, estimate.low, estimate.high) == pytest.approx((0.4, 0.2, 0.6))
    assert by_first(seeds.headline(found))["rope"]["same-target change at 4x"] == "+0.400 [+0.200, +0.600]"
    (table,) = [t for t in seeds.details(found) if "Change of the loss" in t.caption]
    assert table.header == ["variant", "length", "mean", "95 % interval", "each seed", "seeds"]
    assert table.rows[1] == ["rope", "4x", "+0.400", "[+0.200, +0.600]", "+0.200, +0.400, +0.600", "1, 2, 3"]


def test_differences_are_taken_seed_by_seed(arm: Callable[..., list[Evaluation]]) -> None:
    """The arms' seeds are far apart and the difference is 1 in each: it has no width."""
    runs = [*arm("rope", {1: 0.1, 2: 0.9}), *arm("nope", {2: 0.9, 1: 0.1}, lift=1.0)]
    found = seeds.lines(collect(runs))
    for metric, multiple in (("nll", 1), ("nll", 16), ("held_out_loss", 1)):
        estimate = line(found, "nope", metric, multiple, paired=True).estimate
        assert (estimate.value, estimate.low, estimate.high) == pytest.approx((1.0, 1.0, 1.0))
    assert not [one for one in found if one.variant == "rope" and one.against is not None]
    (table,) = [t for t in seeds.details(found) if t.caption.startswith("Minus rope")]
    assert table.rows[0] == ["nope", "held-out loss", "–", "+1.000", "[+1.000, +1.000]", "+1.000, +1.000", "1, 2"]  # noqa: RUF001


def test_other_seeds_are_not_paired_and_that_is_said(arm: Callable[..., list[Evaluation]]) -> None:
    found = seeds.lines(collect([*arm("rope", {1: 0.1, 2: 0.2}), *arm("nope", {1: 0.1, 3: 0.2})]))
    one = line(found, "nope", "nll", 4, paired=True)
    assert one.estimate is None
    assert one.note == "not paired: seeds differ (1, 3 and 1, 2)"
    assert any("not paired" in cell for t in seeds.details(found) for row in t.rows for cell in row)


def test_other_documents_are_not_paired(make_evaluation: Make, arm: Callable[..., list[Evaluation]]) -> None:
    other = [
        make_evaluation("model=nope", f"seed={s}", name=f"n{s}", settings={"documents_digest": "other"}) for s in (1, 2)
    ]
    found = seeds.lines(collect([*arm("rope", {1: 0.1, 2: 0.2}), *other]))
    assert line(found, "nope", "nll", 1, paired=True).note == "not paired: documents differ"
    assert line(found, "nope", "nll_change", 4).estimate is not None, "its own mean needs no other arm"


def test_a_single_seed_beside_several_has_no_interval_and_that_is_said(arm: Callable[..., list[Evaluation]]) -> None:
    found = seeds.lines(collect([*arm("rope", {1: 0.1, 2: 0.2}), *arm("nope", {1: 0.1})]))
    (table,) = [t for t in seeds.details(found) if "Change of the loss" in t.caption]
    rows = [row for row in table.rows if row[0] == "nope"]
    assert {row[3] for row in rows} == {"none: one seed"}


def test_single_runs_have_no_section_over_seeds(arm: Callable[..., list[Evaluation]], tmp_path: Path) -> None:
    runs = [*arm("rope", {1: 0.1}), *arm("nope", {1: 0.1})]
    assert seeds.lines(collect(runs)) == []
    assert seeds.headline([]) is None
    blocks = content.compose(collect(runs), {}, "x").blocks
    assert "Over seeds" not in [b.text for b in blocks if isinstance(b, Heading)]
    (tmp_path / "seeds.csv").write_text("of an earlier comparison")
    write_report(runs, tmp_path, "x")
    assert not (tmp_path / "seeds.csv").exists()


def test_from_five_seeds_on_students_interval_stands_beside(arm: Callable[..., list[Evaluation]]) -> None:
    found = seeds.lines(collect(arm("rope", {s: 0.1 * s for s in range(1, 6)})))
    (table,) = [t for t in seeds.details(found) if "Change of the loss" in t.caption]
    # 2x: 0.1 ... 0.5, of which the mean is 0.3 with 2.776 standard errors of 0.0707 on both sides.
    assert table.rows[0][table.header.index("Student's, over seeds")] == "[+0.104, +0.496]"


def test_a_seed_that_stands_twice_is_taken_once_and_said(arm: Callable[..., list[Evaluation]]) -> None:
    (copy,) = arm("rope", {1: 0.9})
    copied = dataclasses.replace(copy, run=dataclasses.replace(copy.run, name="a copy"))
    subjects = collect([copied, *[e for e in arm("nope", {1: 0.1}) if e], copy])
    assert [len(group.subjects) for group in groups(subjects)] == [1, 1]
    assert repeated(subjects) == ["rope-1: seed 1 of rope stands twice; means over seeds take the first one."]


def test_runs_of_other_steps_are_no_seeds_of_one_variant(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", f"seed={s}", name=f"r{s}", step=step) for s, step in ((1, 600), (2, 300))]
    assert [s.label for s in collect(runs)] == ["rope, steps=600", "rope, steps=300"]


def test_runs_that_differ_in_many_settings_are_no_seeds_of_one_variant(make_evaluation: Make) -> None:
    many = [f"optim.{key}" for key in ("beta1=0.8", "beta2=0.9", "eps=1e-6", "weight_decay=0.2")]
    last = [*many[:3], "optim.weight_decay=0.3"]
    subjects = collect([make_evaluation("model=rope", *own, name=f"r{i}") for i, own in enumerate(([], many, last))])
    assert len({s.variant for s in subjects}) == 3


def test_of_undertrained_seeds_nothing_is_averaged_beyond_the_training_length(make_evaluation: Make) -> None:
    rope = needles(make_evaluation, "rope", {1: (1.0, 0.5), 2: (1.0, 0.9), 3: (0.7, 0.0)})
    nope = needles(make_evaluation, "nope", {1: (0.5, 0.0), 2: (0.6, 0.0), 3: (0.7, 0.0)})
    subjects = collect([*rope, *nope])
    found = seeds.lines(subjects)
    at_1x, at_2x = (line(found, "rope", "token_accuracy", m) for m in (1, 2))
    assert at_1x.estimate.values == (1.0, 1.0, 0.7)
    assert (at_2x.estimate.values, at_2x.estimate.seeds) == (pytest.approx((0.5, 0.9)), (1, 2))
    assert at_2x.note == "2 of 3 seeds trained"
    gold = line(found, "rope", "gold_log_probability", 2).estimate
    assert gold.values == pytest.approx((-(0.5 * 0.1 + 0.5 * 2.0), -(0.9 * 0.1 + 0.1 * 2.0)))
    none = line(found, "nope", "token_accuracy", 2)
    assert (none.estimate, none.note) == (None, "undertrained")
    assert line(found, "nope", "gold_log_probability", 2, paired=True).note == "undertrained"
    warned = [text for b in content.compose(subjects, {}, "x").blocks if isinstance(b, Warnings) for text in b.items]
    assert any("rope: 2 of 3 seeds trained; seed 3 stayed below 98%" in text for text in warned)
    assert any("nope: 0 of 3 seeds trained; seeds 1, 2, 3 stayed" in text for text in warned)
    headline = by_first(seeds.headline(found))
    assert [headline[arm]["seeds"] for arm in ("rope", "nope")] == ["3, 2 trained", "3, 0 trained"]
    assert headline["rope"]["token accuracy at 2x"].startswith("0.700 [")
    assert headline["nope"]["token accuracy at 2x"] == "undertrained"


def test_where_every_seed_is_always_right_the_interval_is_wilsons(make_evaluation: Make) -> None:
    from minillm.evaluation.intervals import wilson

    found = seeds.lines(collect(needles(make_evaluation, "rope", {1: (1.0, 1.0), 2: (1.0, 1.0)})))
    estimate = line(found, "rope", "exact", 2).estimate
    assert (estimate.low, estimate.high) == wilson(1.0, 20)


def test_the_csv_has_every_number(arm: Callable[..., list[Evaluation]], tmp_path: Path) -> None:
    runs = [*arm("rope", {1: 0.1, 2: 0.2}), *arm("nope", {1: 0.1, 3: 0.2})]
    write_report(runs, tmp_path, "x")
    with (tmp_path / "seeds.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    (row,) = [r for r in rows if (r["variant"], r["metric"], r["multiple"]) == ("rope", "nll_change", "16.0")]
    assert [float(row[key]) for key in ("mean", "low", "high")] == pytest.approx([0.6, 0.4, 0.8])
    assert (row["seeds"], row["against"], row["t_low"]) == ("1 2", "", "")
    assert [float(v) for v in row["values"].split()] == pytest.approx([0.4, 0.8])
    assert [r["note"] for r in rows if r["against"]] == ["not paired: seeds differ (1, 3 and 1, 2)"] * 6


def drawn(axis: Any, label: str) -> Any:
    (found,) = [one for one in axis.get_lines() if str(one.get_label()).startswith(label)]
    return found


def test_seeds_are_thin_lines_and_their_mean_is_thick_in_the_band_over_seeds(
    arm: Callable[..., list[Evaluation]],
) -> None:
    pytest.importorskip("matplotlib")
    subjects = collect(arm("rope", {1: 0.1, 2: 0.3}))
    figure = figures.FIGURES["same_target.png"][0](subjects)
    axis = figure.axes[1]
    mean = drawn(axis, "rope (mean of 2 seeds)")
    assert list(mean.get_ydata()) == pytest.approx([0.0, 0.2, 0.4, 0.6, 0.8])
    thin = [one for one in axis.get_lines() if len(one.get_xdata()) == 5 and one is not mean]
    assert [one.get_ydata()[-1] for one in thin] == pytest.approx([0.4, 1.2])
    assert max(one.get_linewidth() for one in thin) < mean.get_linewidth()
    (band,) = axis.collections
    edges = band.get_paths()[0].vertices[:, 1]
    at_16x = over_rows(subjects, lambda s: changes(s)[-1])
    assert at_16x is not None
    assert (edges.min(), edges.max()) == pytest.approx((0.0, at_16x.high))


def test_a_seed_that_did_not_learn_is_a_point_and_in_no_mean(make_evaluation: Make) -> None:
    pytest.importorskip("matplotlib")
    subjects = collect(needles(make_evaluation, "rope", {1: (1.0, 0.5), 2: (1.0, 0.9), 3: (0.7, 0.0)}))
    axis = recall.figure(subjects).axes[1]
    assert list(drawn(axis, "rope (mean of 2 of 3 seeds)").get_ydata()) == pytest.approx([1.0, 0.7])
    assert [list(one.get_ydata()) for one in axis.get_lines() if len(one.get_xdata()) == 1] == [[0.7]]
    assert "mean of 2 of 3" in recall.depths(subjects).axes[0].get_title().replace("\n", " ")


def test_seeds_share_one_line_of_the_plans(arm: Callable[..., list[Evaluation]]) -> None:
    subjects: list[Subject] = collect([*arm("rope", {1: 0.1, 2: 0.2}), *arm("nope", {1: 0.1, 2: 0.2})])
    report = content.compose(subjects, {}, "x")
    assert report.title == "rope against nope, 2 seeds each"
    (card,) = [b for b in report.blocks if isinstance(b, Table) and b.caption.startswith("The runs.")]
    assert [(row[0], row[7]) for row in card.rows] == [("rope", "1, 2"), ("nope", "1, 2")]
    listed = next(b for b in report.blocks if isinstance(b, Bullets))
    assert len([item for item in listed.items if item.startswith("rope")]) == 1


def test_loss_by_position_has_a_column_a_variant(arm: Callable[..., list[Evaluation]]) -> None:
    runs = [*arm("rope", {1: 0.1, 2: 0.3}), *arm("nope", {1: 0.1, 2: 0.1})]
    for row in runs[-1].results["length_perplexity"]["rows"]:
        if row["protocol"] == "position" and row["multiple"] == 16:
            row |= {"value": None, "note": "not finite"}
    table = tables.by_position(collect(runs))
    assert table is not None
    assert table.header[1:] == ["rope", "nope"]
    assert table.rows[1][1].startswith("3.300 ["), "3.1, and 0.1 or 0.3 more at 2x"
    assert table.rows[4][2] == "not finite", "one seed without a number is no mean of the other"
    assert tables.against_first(collect(runs)) is None, "seeds are compared with their own kind"


@pytest.mark.parametrize("same_steps", [True, False])
def test_training_curves_are_put_together_by_update(arm: Callable[..., list[Evaluation]], same_steps: bool) -> None:
    pytest.importorskip("matplotlib")
    one, other = collect([*arm("rope", {1: 0.1}), *arm("rope", {2: 0.1}, lift=0.4)])
    moved = [{**m, "tokens": m["tokens"] + 2048, "step": m["step"] + (not same_steps)} for m in other.metrics]
    axis = figures.FIGURES["training.png"][0]([one, dataclasses.replace(other, metrics=moved)]).axes[0]
    if not same_steps:
        assert [t.get_text() for t in axis.figure.legends[0].get_texts()] == ["rope (2 seeds)"], "no mean, but a name"
        return
    mean = drawn(axis, "rope (mean of 2 seeds)")
    assert list(mean.get_xdata()) == pytest.approx([(s * 4096 + 1024) / 1e6 for s in range(100, 601, 100)])
    assert list(mean.get_ydata()) == pytest.approx([8.3 - s / 100 for s in range(100, 601, 100)])
