"""The README's commands are run as written, at toy size, in the order in which a reader meets them."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.readme_tree import with_tree

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PLANS = (ROOT / "docs" / "layer-plans.md").read_text(encoding="utf-8")

TOY = [
    "size.hidden_size=32",
    "size.intermediate_size=64",
    "size.num_hidden_layers=8",
    "size.num_attention_heads=2",
    "size.num_key_value_heads=1",
    "size.head_dim=16",
    "size.seq_len=32",
    "size.window=4",
    "data.batch_size=4",
    "tokenizer.vocab_size=400",
    "trainer.max_steps=4",
    "trainer.val_every=2",
    "trainer.val_batches=2",
    "trainer.checkpoint_every=2",
    "trainer.sample_every=4",
    "trainer.sample_tokens=4",
    "schedule.warmup_steps=1",
]
TOY_EVAL = ["suite.length_perplexity.max_documents=2", "suite.cost.seconds=0.1"]


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(text: str) -> list[str]:
    """The lines of the shell blocks."""
    return [line for block in blocks(text, "bash") for line in block.splitlines() if line.strip()]


def at_toy_size(command: str) -> list[str]:
    """The command's words, as they are run here: this interpreter, this checkout, small settings."""
    words = shlex.split(command)
    assert words[0] == "python", command
    if words[1] == "-m":
        return [sys.executable, *words[1:]]
    words = [word.replace("trainer.stop_at_step=400", "trainer.stop_at_step=2") for word in words]
    program = ROOT / words[1]
    assert program.is_file(), command
    toy = TOY if program.name == "train.py" else TOY_EVAL
    return [sys.executable, str(program), *words[2:], *toy]


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    named = set(re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE))
    assert {"train", "test", "help", "compare"} <= named <= targets


def test_the_tree_is_the_one_that_the_files_make() -> None:
    assert with_tree(README) == README, "run: python -m tests.readme_tree"


def test_every_arm_block_and_size_of_the_readme_is_shipped() -> None:
    for group in ("model", "block", "size"):
        for path in (ROOT / "conf" / group).glob("*.yaml"):
            assert f"`{path.stem}`" in README, f"{group}={path.stem}"


def test_the_plan_shown_is_the_plan_shipped() -> None:
    shown = blocks(README, "yaml")[0]
    shipped = (ROOT / "conf" / "model" / "rnope_swa.yaml").read_text(encoding="utf-8")
    strip = [line.split("#")[0].rstrip() for line in shipped.splitlines()]
    assert [line.split("#")[0].rstrip() for line in shown.splitlines()] == [line for line in strip if line]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_every_command_of_the_readme_runs_in_order(tmp_path: Path) -> None:
    texts = tmp_path / "my_texts"
    texts.mkdir()
    for number in range(4):
        (texts / f"{number}.txt").write_text(f"Text number {number}. " + "The river runs to the sea. " * 80)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    for command in commands(README) + commands(PLANS):
        if command.startswith("make "):
            continue
        done = subprocess.run(
            at_toy_size(command), cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert (tmp_path / "outputs" / "comparison" / "report.html").is_file()
    assert len(list((tmp_path / "multirun").glob("*/*/checkpoints/last.ckpt"))) == 4


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_python_of_the_readme_runs(tmp_path: Path) -> None:
    overrides = ["model=alibi", "eval_at_end=false", *TOY]
    subprocess.run([sys.executable, str(ROOT / "train.py"), *overrides], cwd=tmp_path, check=True, timeout=300)
    (run,) = (tmp_path / "outputs").iterdir()
    code = blocks(README, "python")[0].replace("outputs/alibi-micro-embedded-s1-...", str(run))
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
