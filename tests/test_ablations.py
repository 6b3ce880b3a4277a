"""The ablations of conf/experiment are whole sweeps: every job of each, on text and on needles, is a valid run."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser

from minillm.config.compose import compose
from minillm.config.paths import conf_dir
from minillm.config.schema import Config

FOLDER = Path(str(conf_dir())) / "experiment"
ABLATIONS = sorted(p.stem for p in FOLDER.glob("ablate_*.yaml"))
ON_NEEDLES = {name: f"[needle_micro,{name}]" for name in ABLATIONS} | {
    "ablate_window": "[needle_micro,ablate_window,ablate_window_needle]",
    "ablate_window_needle": "[needle_micro,ablate_window,ablate_window_needle]",
}


def jobs(name: str) -> list[list[str]]:
    """The overrides of each job of the sweep that the file asks for."""
    asked: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())["hydra"]["sweeper"]["params"]
    parsed = OverridesParser.create().parse_overrides([f"{key}={value}" for key, value in asked.items()])
    choices = [
        [f"{o.get_key_element()}={v}" for v in (o.sweep_string_iterator() if o.is_sweep_override() else [])]
        for o in parsed
    ]
    return [list(job) for job in product(*choices)]


def plans(name: str, experiment: str) -> list[Config]:
    return [compose([f"experiment={experiment}", *job], warn=False) for job in jobs(name)]


@pytest.mark.parametrize("name", [n for n in ABLATIONS if not n.endswith("_needle")])
def test_every_job_on_text_has_a_plan_of_its_own(name: str) -> None:
    found = plans(name, name)
    assert len(found) >= 2
    assert len({config.model.layers for config in found}) == len(found)
    assert {config.data.source for config in found} == {"embedded"}


@pytest.mark.parametrize("name", [n for n in ABLATIONS if n != "ablate_window"])
def test_every_job_on_needles_has_a_plan_of_its_own(name: str) -> None:
    found = plans(name, ON_NEEDLES[name])
    assert len({config.model.layers for config in found}) == len(found) >= 2
    assert {config.data.source for config in found} == {"task"}
    windows = {spec.window for config in found for spec in config.model.layers} - {None}
    assert all(window < config.data.seq_len for window in windows for config in found)
    kinds = [{spec.kind for spec in config.model.layers} for config in found]
    assert all(len(own) == 2 for own in kinds), "each has layers of both kinds"
