"""The same weights under another setting, each a row of its own."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from minillm.errors import ConfigError, MinillmError
from minillm.evaluation import variants
from minillm.evaluation.program import program
from minillm.evaluation.runs import find_runs, open_run, with_variants

YARN = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 16}
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "yarn": {"local": {"position": {"scaling": YARN}}},
    "log_n": {"global": {"temperature": {"type": "log_n", "base": 3.0}}},
    "wide": {"local": {"window": 14}},
    "kept": {"local": {"sink_tokens": 2}},
}


@pytest.fixture
def run(make_run: Callable[..., Path], tmp_path: Path) -> Path:
    return make_run(tmp_path / "a", "model=rnope_swa", "size.window=5")


def test_a_variant_changes_the_layers_of_its_kind_and_nothing_else(run: Path) -> None:
    (trained,) = find_runs([str(run)])
    model = open_run(trained).model
    tokens = torch.arange(2 * 60).reshape(2, 60) % 50
    with torch.no_grad():
        plain = model(tokens)
    for name, changes in CHANGES.items():
        own = with_variants([trained], [name])[1]
        opened = open_run(own, changes)
        assert own.name == f"a +{name}"
        assert own.eval_folder == run / "eval" / "variants" / name
        (kind,) = changes
        for before, after in zip(model.layer_specs, opened.model.layer_specs, strict=True):
            assert (before == after) == (before.kind != kind)
        assert all(torch.equal(opened.model.state_dict()[k], v) for k, v in model.state_dict().items())
        with torch.no_grad():
            assert (opened.model(tokens) - plain).abs().max() > 1e-4
    scaled = open_run(with_variants([trained], ["yarn"])[1], CHANGES["yarn"]).model.layer_specs[0].position
    assert scaled.theta == model.layer_specs[0].position.theta  # type: ignore[attr-defined]  # the rest of it stays


def test_all_means_every_kind(run: Path) -> None:
    (trained,) = find_runs([str(run)])
    opened = open_run(with_variants([trained], ["t"])[1], {"all": {"window": 3}})
    assert {spec.window for spec in opened.model.layer_specs} == {3}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"locl": {"window": 3}}, "variants.v.locl: no such kind. Did you mean 'local'? Kinds: local, global, all."),
        ({"local": {"window": 5}}, "variants.v: changes no layer of this run"),
        ({"local": {"windw": 5}}, "model.layers.kinds.local.windw = 5: unknown layer field. Did you mean 'window'?"),
        ({"global": {"temperature": "per_head"}}, "variants.v asks for a model with other weights."),
        ({"global": {"position": {"scaling": YARN}}}, "'nope' has no such field"),
    ],
    ids=["kind", "nothing", "field", "weights", "scheme"],
)
def test_a_variant_that_cannot_be_had_is_refused(run: Path, changes: dict[str, Any], message: str) -> None:
    (trained,) = find_runs([str(run)])
    with pytest.raises(MinillmError) as caught:
        open_run(with_variants([trained], ["v"])[1], changes)
    assert message in str(caught.value)


@pytest.mark.parametrize("given", [{"../x": {"a": {"window": 1}}}, {"x": 3}, {"x": {}}, {"x": {"a": 4}}], ids=str)
def test_what_is_no_variant_is_refused_before_any_run_is_read(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"^variants\."):
        variants.check(given)


def test_a_variant_is_a_row_of_its_own_beside_the_run(run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    arguments = [
        f"runs={run}", f"out={out}", "suites=[length_perplexity]", "suite.length_perplexity.lengths=[1,4]",
        "+variants.wide.local.window=14",
    ]  # fmt: skip
    assert program(arguments) == 0
    settings = json.loads((run / "eval" / "variants" / "wide" / "length_perplexity.json").read_text())["settings"]
    assert settings["variant"] == {"local": {"window": 14}}
    assert "variant" not in json.loads((run / "eval" / "length_perplexity.json").read_text())["settings"]
    with (out / "table.csv").open() as file:
        assert {row["variant"] for row in csv.DictReader(file)} == {"rnope_swa", "rnope_swa +wide"}
