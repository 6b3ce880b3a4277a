"""Known bugs of this field and the tests that guard against them: writes docs/known-bugs.md from the test markers.

Public reports of people who train models with per-layer attention were restated for this project; each has an id, and
each test that guards against one is marked ``@pytest.mark.bug("B008")``. After adding or renaming such a test, run

    python -m tests.known_bugs
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "known-bugs.md"

BUGS = {
    "Attention masks, windows, caches, heads": {
        "B003": "window not passed to SDPA",
        "B005": "window of zero or negative",
        "B008": "prompt longer than the window in one pass",
        "B009": "which layers are local: direction and order",
        "B010": "window declared but no layer uses it",
        "B012": "rows that see nothing",
        "B014": "document boundary crossed by a local window",
        "B015": "packing detected from position ids",
        "B017": "grouped-query head order and axis",
        "B018": "head size independent of width",
        "B020": "order of QK-norm and rotation",
        "B021": "attention soft cap dropped in one backend",
        "B022": "attention dropout at evaluation",
        "B023": "FlexAttention masks of another length, CPU use",
        "B024": "FlexAttention backward with bias and window",
        "B025": "compile limits with unlike layers",
    },
    "Position encodings": {
        "B026": "NoPE interval: which layers",
        "B030": "frequencies after meta-device or FSDP initialisation",
        "B031": "evaluating past the table length",
        "B032": "rotary base per layer ignored",
        "B037": "YaRN range rounding",
        "B038": "Llama-3 style scaling",
        "B039": "partial rotation",
        "B041": "ALiBi bias in half precision",
        "B042": "rotation layout in export",
        "B043": "cache length counter moves too early",
        "B044": "NoPE temperature by position",
    },
    "Resume, accumulation, distribution, checkpoints": {
        "B047": "max_steps and resume",
        "B049": "relaunch replays the same data",
        "B051": "scheduler unit under accumulation",
        "B052": "scheduler after resume",
        "B053": "warm-up and decay edges",
        "B056": "logged loss divided by accumulation",
        "B057": "mean over ranks with unequal batches",
        "B059": "uneven streams",
        "B060": "streams duplicated by workers and ranks",
        "B062": "process group left behind between jobs",
        "B064": "unresolved interpolation in saved settings",
        "B065": "compiled module names",
        "B066": "clipping by norm under sharding",
        "B067": "sharded checkpoints afterwards",
        "B068": "tied weights under wrapping",
        "B070": "decay groups",
        "B071": "weight averaging and checkpoints",
        "B072": "which file is the last",
        "B073": "termination signals",
        "B074": "validation interval forms",
        "B075": "seeds of workers",
    },
    "Hydra and OmegaConf": {
        "B078": "lists are replaced, not merged",
        "B081": "folder names made of overrides",
        "B082": "two runs in one second",
        "B083": "working folder",
        "B085": "order of composition",
        "B086": "resolvers registered twice",
        "B087": "launcher chosen inside a swept configuration",
        "B088": "numbers that are strings",
        "B089": "config containers leaking out",
    },
    "wandb": {
        "B091": "failed job shown as finished",
        "B092": "one run per rank",
        "B093": "steps that go back",
        "B094": "resume to an earlier step",
        "B095": "offline runs and sync",
        "B096": "nested configuration",
        "B097": "no wandb at all",
    },
    "Tokenizer and data": {
        "B099": "vocabulary size asked and got",
        "B100": "ids beyond the base vocabulary",
        "B102": "end marker missing or doubled",
        "B104": "length type overflow",
        "B105": "BPE training on one huge line",
        "B108": "cache reused with another tokenizer",
        "B109": "cache never reused",
        "B110": "several processes preparing at once; interruption",
        "B111": "skip after split, shards not divisible",
        "B112": "shuffle buffer on resume",
    },
    "Evaluation and sampling": {
        "B115": "start marker rules",
        "B116": "loss in bf16",
        "B118": "needle tests: room and truncation",
        "B119": "needle tests: scoring",
        "B122": "sampling temperature",
    },
    "Export": {
        "B123": "tied head in safetensors",
    },
}

NOT_HERE = {
    "B022": "there is no attention dropout",
    "B023": "there is no FlexAttention backend",
    "B024": "there is no FlexAttention backend",
    "B025": "nothing is compiled",
    "B065": "nothing is compiled",
    "B067": "checkpoints are one file",
    "B071": "weights are not averaged",
    "B112": "training order is a pure function; there is no shuffle buffer",
}
"""Bugs of what this project does not have."""


@cache
def marked_tests() -> dict[str, list[str]]:
    """Tests by bug id, as ``tests/attention/test_cache.py::test_name``."""
    found: dict[str, list[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for function, decorator in _decorators(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.bug":
                for argument in decorator.args:
                    where = f"{path.relative_to(ROOT).as_posix()}::{function}"
                    found.setdefault(ast.literal_eval(argument), []).append(where)
    return found


def _decorators(tree: ast.Module) -> Iterator[tuple[str, ast.expr]]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            for decorator in node.decorator_list:
                yield node.name, decorator


def page() -> str:
    """The text of docs/known-bugs.md."""
    tests = marked_tests()
    lines = [
        "# Known bugs of this field, and our tests",
        "",
        "Reports of people who train models with per-layer attention, restated for this project. Each is a test, or",
        "the reason why it cannot happen. Written by `python -m tests.known_bugs` from the tests' `bug` markers.",
    ]
    for group, bugs in BUGS.items():
        lines += ["", f"## {group}", "", "| id | bug | tests |", "|---|---|---|"]
        for bug, title in bugs.items():
            shown = [f"`{where}`" for where in tests.get(bug, [])] or [NOT_HERE.get(bug, "")]
            lines.append(f"| {bug} | {title} | {'<br>'.join(shown)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
