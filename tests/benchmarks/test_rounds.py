"""How contestants are timed, and that the comparison with other projects runs from end to end."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder of a script is where its neighbours are found, as when it is run."""
    monkeypatch.syspath_prepend(str(FOLDER))
    yield
    for name in ("rounds", "peers", "train_step", "attention", "decode"):
        sys.modules.pop(name, None)


def test_contestants_take_turns_and_do_not_always_follow_the_same_neighbour(scripts: None) -> None:
    from rounds import alternate

    order: list[str] = []
    times = alternate({name: lambda name=name: order.append(name) for name in "abc"}, rounds=3, warmup=1)
    assert sorted("".join(order[i : i + 3]) for i in range(0, 12, 3)) == ["abc", "bca", "cab", "cab"]
    assert {name: len(seconds) for name, seconds in times.items()} == {"a": 3, "b": 3, "c": 3}


def test_a_ratio_is_the_median_of_those_within_rounds(scripts: None) -> None:
    """Seconds that double for everybody in one round leave it as it is."""
    from rounds import ratio, spread

    ours, theirs = [1.0, 2.0, 1.0, 1.0], [1.5, 3.0, 1.5, 9.0]
    assert ratio(theirs, ours) == 1.5
    assert spread(theirs, ours) == (1.5, 9.0)


def test_a_comparison_is_run_and_written_with_what_could_not_be_measured(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("transformers")
    import peers
    import train_step

    def absent(*_: Any) -> Any:
        raise ModuleNotFoundError("No module named 'litgpt'")

    monkeypatch.setitem(peers.BUILDERS, "litgpt", absent)
    small = peers.Shape(vocab_size=64, hidden_size=32, num_hidden_layers=4, head_dim=8, intermediate_size=48)
    monkeypatch.setattr(train_step, "Shape", lambda: small)
    known = [*train_step.BUILDERS]
    names = [name for name in known if name != "x-transformers"]
    arguments = ["--length", "16", "--batch", "2", "--modes", "eager", "--rounds", "2", "--precision", "fp32"]
    train_step.main([*arguments, "--out", str(tmp_path), "--only", *names])
    (path,) = tmp_path.glob("train_step-*.json")
    record = json.loads(path.read_text())
    rows = {row["name"]: row for row in record["rows"]}
    assert rows["litgpt"]["not_measured"] == "ModuleNotFoundError: No module named 'litgpt'"
    measured = [name for name in names if name != "litgpt"]
    for name in measured:
        assert rows[name]["tokens_per_second"] > 0
        assert len(rows[name]["seconds"]) == 2
        assert rows[name]["best_peer"].startswith("transformers")
    assert record["threads"] >= 1
    assert {"torch", "transformers"} <= record["versions"].keys()
    shown = capsys.readouterr().out
    assert all(name in shown for name in names)


def test_contestants_have_the_same_shape(scripts: None) -> None:
    """Parameters apart from norms: equal, but for a second embedding where a project cannot tie it."""
    pytest.importorskip("transformers")
    from peers import BUILDERS, Shape

    shape = Shape(vocab_size=64, hidden_size=32, num_hidden_layers=4, head_dim=8, intermediate_size=48)
    counts = {}
    for name in ("ours full", "ours 1:3 windows", "transformers Llama", "transformers Cohere2, 1:3 windows",
                 "transformers Gemma3, 1:3 windows"):  # fmt: skip
        model = BUILDERS[name](shape, 16, 4)
        counts[name] = sum(p.numel() for p in model.parameters() if p.ndim > 1)
    assert len(set(counts.values())) == 1, counts


def test_the_exponent_is_the_slope_of_the_logarithms(scripts: None) -> None:
    from attention import exponent

    assert exponent([1, 2, 4, 8], [3.0, 12.0, 48.0, 192.0]) == pytest.approx(2.0)
    assert exponent([10, 100], [5.0, 50.0]) == pytest.approx(1.0)


def test_the_attention_benchmark_runs_to_its_figure(scripts: None, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import attention

    attention.main(["--lengths", "32", "64", "--window", "8", "--rounds", "1", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("attention-*.json")
    rows = json.loads(path.read_text())["rows"]
    assert {row["name"] for row in rows} == set(attention.layers(8))
    assert path.with_suffix(".svg").read_text().startswith("<?xml")


def test_decoding_beside_transformers_gives_the_same_tokens(
    scripts: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    import decode
    import peers

    small = peers.Shape(vocab_size=64, hidden_size=32, num_hidden_layers=4, head_dim=8, intermediate_size=48)
    monkeypatch.setattr(decode, "Shape", lambda: small)
    decode.main(["--context", "40", "--window", "8", "--tokens", "5", "--rounds", "2", "--out", str(tmp_path)])
    (path,) = tmp_path.glob("decode-*.json")
    rows = [row for row in json.loads(path.read_text())["rows"] if row["name"] == "ours"]
    assert [row["model"] for row in rows] == ["cohere2", "gemma3"]
    for row in rows:
        assert row["same_tokens"]
        assert row["logits_differ_by"] < 1e-5
        assert row["times_transformers"] > 0
