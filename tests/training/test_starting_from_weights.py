"""The commands of docs/starting-from-weights.md run as written, at toy size, in the order of the page."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from minillm.config.compose import compose
from minillm.training import run

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "starting-from-weights.md").read_text(encoding="utf-8")
TWO_STEPS = ("trainer.max_steps=2", "trainer.val_batches=1", "trainer.sample_every=null", "eval_at_end=false")


def commands() -> list[list[str]]:
    """The words of each line of the shell blocks."""
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE, flags=re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def test_every_command_of_the_page_runs(overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    toy = [text for text in overrides if not text.startswith("model=")]  # it would win over the experiment's
    for python, program, *words in commands():
        assert [python, program] == ["python", "train.py"]
        run.train(compose([*toy, *words, *TWO_STEPS], warn=False).plain, words)
    begun = [json.loads(path.read_text()) for path in Path("outputs").glob("*/init_from.json")]
    assert len(begun) == sum(any(word.startswith("init_from=") for word in words) for words in commands())
    new = {name for record in begun for name in record["new"]}
    assert new == {f"layers.{i}.attention.temperature.scale" for i in range(4)}
    assert [record["resized"] for record in begun if record["resized"]] == [{"embed_positions.table.weight": [512, 16]}]
