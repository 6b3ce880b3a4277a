"""Text samples during training."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize("model", ["learned", "binary"])
def test_a_sample_ends_where_the_positions_of_the_model_end(
    train: Callable[..., Any], tmp_path: Path, model: str
) -> None:
    more = ["model.embedding.position={scheme:binary,bits:5}"] if model == "binary" else []
    train(
        tmp_path, f"model={model}", *more, "trainer.max_steps=2", "trainer.sample_every=1", "trainer.sample_tokens=99"
    )
    assert (tmp_path / "checkpoints/last.ckpt").is_file()
    assert "=== step 2 ===" in (tmp_path / "samples.txt").read_text()


def test_a_prompt_as_long_as_the_table_says_so_and_the_run_goes_on(train: Callable[..., Any], tmp_path: Path) -> None:
    prompt = "trainer.sample_prompt='" + "the of and to in a is that it was for on as with " * 4 + "'"
    train(tmp_path, "model=learned", "trainer.max_steps=1", "trainer.sample_every=1", prompt)
    assert "no room to go on" in (tmp_path / "samples.txt").read_text()
    assert (tmp_path / "checkpoints/last.ckpt").is_file()
