"""docs/configuration.md is what the dataclasses and the files of conf/ say now, and leaves nothing out."""

from __future__ import annotations

import re
from typing import Any

import pytest

from minillm.config.compose import compose_plain
from tests.configuration_reference import PAGE, page


@pytest.fixture(scope="module")
def text() -> str:
    return page()


def test_the_page_is_current(text: str) -> None:
    assert PAGE.read_text(encoding="utf-8") == text, "run: python -m tests.configuration_reference"


def test_every_key_has_a_type_and_a_meaning(text: str) -> None:
    lines = re.findall(r"^\| `.*$", text, flags=re.MULTILINE)
    assert len(lines) > 150
    for line in lines:
        _, key, kind, _, meaning, _ = (cell.strip() for cell in re.split(r"(?<!\\)\|", line))
        assert meaning, f"{key}: give the field a docstring"
        assert kind or key == "`model.attention`"


@pytest.mark.parametrize("program", ["train", "eval"])
def test_every_key_of_a_program_is_there(text: str, program: str) -> None:
    sections = dict(re.findall(r"^## ([^\n]+)\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    top = sections["The run" if program == "train" else "Evaluation: `python eval.py`"]
    plain: dict[str, Any] = compose_plain([], config_name=program)
    suites = plain.pop("suite", {})
    inner = {f"suite.{name}": given for name, given in suites.items()}
    inner |= {name: given for name, given in plain.items() if isinstance(given, dict) and f"`{name}`" in sections}
    for name in plain:
        assert name in inner or name == "choices" or f"| `{name}` |" in top
    for section, given in inner.items():
        for key in given:
            prefix = "model." if section == "model" else ""
            assert f"| `{prefix}{key}" in sections[f"`{section}`"], f"{section}.{key}"
