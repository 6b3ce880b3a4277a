"""What was measured is kept whole, and reused under the same settings only."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from minillm.errors import MinillmError
from minillm.evaluation.store import read_result, reusable, weights_digest, write_result

ROWS = [{"metric": "nll", "length": 16, "depth": None, "value": 1.5, "n": 3, "low": None, "high": None}]


def test_a_result_is_suite_settings_and_rows(tmp_path: Path) -> None:
    write_result(tmp_path / "eval", "cost", {"lengths": (1, 2)}, ROWS, seconds=1.0)
    saved = json.loads((tmp_path / "eval" / "cost.json").read_text())
    assert (saved["suite"], saved["settings"], saved["rows"]) == ("cost", {"lengths": [1, 2]}, ROWS)


def test_equal_settings_reuse_and_others_do_not(tmp_path: Path) -> None:
    write_result(tmp_path, "cost", {"lengths": (1, 2), "weights": "a"}, ROWS, seconds=1.0)
    known = reusable(tmp_path, "cost", {"lengths": (1, 2), "weights": "a"})
    assert known is not None
    assert known["rows"] == ROWS
    assert reusable(tmp_path, "cost", {"lengths": (1, 2), "weights": "b"}) is None
    assert reusable(tmp_path, "cost", {"lengths": (1,), "weights": "a"}) is None
    assert reusable(tmp_path, "length_perplexity", {"lengths": (1, 2), "weights": "a"}) is None


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    write_result(tmp_path, "cost", {}, ROWS, seconds=1.0)
    before = (tmp_path / "cost.json").read_bytes()
    with pytest.raises(ValueError, match="JSON"):
        write_result(tmp_path, "cost", {}, [{"value": float("nan")}], seconds=1.0)
    assert (tmp_path / "cost.json").read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["cost.json"]


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cost.json").write_text('{"suite": "co')
    with pytest.raises(MinillmError, match=r"cost\.json cannot be read .* Delete it"):
        read_result(tmp_path, "cost")


def test_other_weights_have_another_digest() -> None:
    state = {"a": torch.zeros(3), "b": torch.ones(2, 2, dtype=torch.bfloat16)}
    assert weights_digest(state) == weights_digest({k: v.clone() for k, v in state.items()})
    state["b"][1, 1] = 2
    assert weights_digest(state) != weights_digest({"a": torch.zeros(3), "b": torch.ones(2, 2, dtype=torch.bfloat16)})
