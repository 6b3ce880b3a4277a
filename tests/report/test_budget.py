"""Arms at equal tokens and at equal training FLOPs, and the learning rates that they were given."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import minillm
from minillm.evaluation.evaluate import Evaluation
from minillm.report import budget, learning_rates
from minillm.report.collect import collect

Make = Callable[..., Evaluation]


def cut(evaluation: Evaluation, step: int) -> Evaluation:
    """With held-out losses logged up to a step only."""
    folder = evaluation.run.folder
    assert folder is not None
    lines = (folder / "metrics.jsonl").read_text().splitlines()[:600]
    (folder / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines if json.loads(line)["step"] <= step))
    return evaluation


def test_at_equal_flops_the_costlier_arm_is_read_where_it_had_spent_as_much(make_evaluation: Make) -> None:
    subjects = collect([make_evaluation("model=rope", name="a"), make_evaluation("model=swa_only", name="b")])
    tokens, flops = budget.tables(subjects)
    price = {
        arm: 3 * minillm.cost(s.config.model, 256).forward_flops_per_token
        for arm, s in zip(("rope", "swa_only"), subjects, strict=True)
    }
    assert price["swa_only"] < price["rope"]
    assert [row[0] for row in tokens.rows] == ["rope", "swa_only"]
    assert [row[3] for row in tokens.rows] == ["2.100", "2.100"], "as trained"
    assert "same number for all" in tokens.caption
    # Losses fall by 1 in 100 steps of 4096 tokens. The cheapest run, of 600 steps, sets the budget.
    step = 600 * price["swa_only"] / price["rope"]
    assert flops.rows[0][4] == f"{8.1 - step / 100:.3f}"
    assert flops.rows[0][3] == f"{step / 600:.0%}"
    assert flops.rows[1][3:5] == ["100%", "2.100"]
    assert flops.rows[1][5] == f"−{6 - step / 100:.3f}"  # noqa: RUF001
    assert "schedules were not shortened" in flops.caption


def test_each_seed_is_read_at_the_same_flops(make_evaluation: Make) -> None:
    runs = [
        make_evaluation(f"model={model}", f"seed={seed}", name=f"{model}{seed}", lift=lift)
        for model, seed, lift in (("rope", 1, 0.0), ("rope", 2, 0.4), ("swa_only", 1, 0.1), ("swa_only", 2, 0.5))
    ]
    tokens, _ = budget.tables(collect(runs))
    assert tokens.header[-2:] == ["minus rope", "each seed"]
    assert tokens.rows[0][-1] == "2.100, 2.500"
    assert tokens.rows[1][-2] == "+0.100 [+0.100, +0.100]", "paired by seed"


def test_an_arm_that_saw_fewer_tokens_is_said_to_have(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", name="a"), cut(make_evaluation("model=swa_only", name="b"), 300)]
    tokens, flops = budget.tables(collect(runs))
    assert "not the same number for all" in tokens.caption
    assert tokens.rows[1][3] == "5.100"
    assert float(flops.rows[0][4]) > 5.1


def test_nothing_is_read_before_the_first_point(make_evaluation: Make) -> None:
    (subject,) = collect([make_evaluation("model=rope", name="a")])
    assert budget.at_tokens(subject, 99 * 4096) is None
    assert budget.at_tokens(subject, 150 * 4096) == pytest.approx(8.1 - 1.5)


def test_one_arm_or_no_curve_has_no_budgets_to_compare(make_evaluation: Make) -> None:
    assert budget.tables(collect([make_evaluation("model=rope", name="a")])) == []
    bare = [make_evaluation(f"model={m}", name=m, metrics=False) for m in ("rope", "nope")]
    assert budget.tables(collect(bare)) == []


def test_a_grid_of_learning_rates_is_shown_whole_with_the_best_in_distribution(make_evaluation: Make) -> None:
    runs = [
        make_evaluation("model=rope", f"optim.lr={lr}", f"seed={seed}", name=f"r{lr}{seed}", lift=lift, worse=worse)
        for lr, seed, lift, worse in (
            (0.001, 1, 0.3, 0.0), (0.001, 2, 0.5, 0.0), (0.002, 1, 0.0, 9.0), (0.002, 2, 0.1, 9.0),
            (0.004, 1, 0.4, 0.0), (0.004, 2, 0.4, 0.0),
        )
    ]  # fmt: skip
    subjects = collect(runs)
    table = learning_rates.grid(subjects)
    assert table is not None
    assert [row[:5] for row in table.rows] == [
        ["rope", "0.001", "1, 2", "2.500", "2.400, 2.600"],
        ["rope", "0.002", "1, 2", "2.150", "2.100, 2.200"],
        ["rope", "0.004", "1, 2", "2.500", "2.500, 2.500"],
    ]
    assert [row[-1] for row in table.rows] == ["", "chosen", ""], "whatever happens past the training length"
    assert learning_rates.note(subjects) is None


def test_a_best_rate_at_the_grids_edge_is_said_to_be_there(make_evaluation: Make) -> None:
    runs = [
        make_evaluation("model=rope", f"optim.lr={lr}", name=f"r{lr}", lift=lift) for lr, lift in ((0.1, 0.0), (0.2, 1))
    ]
    table = learning_rates.grid(collect(runs))
    assert table is not None
    assert table.rows[0][-1] == "chosen, at the grid's edge: extend it"


def test_one_rate_for_all_is_said_to_be_untuned(make_evaluation: Make) -> None:
    subjects = collect([make_evaluation("model=rope", name="a"), make_evaluation("model=nope", name="b")])
    assert learning_rates.grid(subjects) is None
    assert learning_rates.note(subjects) == "One learning rate, not tuned per arm: 0.003."


def test_rates_that_differ_without_a_grid_are_listed(make_evaluation: Make) -> None:
    runs = [make_evaluation("model=rope", name="a"), make_evaluation("model=nope", "optim.lr=0.01", name="b")]
    said = learning_rates.note(collect(runs))
    assert said is not None
    assert said.endswith("no grid of them is in this comparison: rope 0.003; nope 0.01.")
