"""Every shipped YAML composes, every arm and every block trains, every key says what it does."""

from __future__ import annotations

import dataclasses
import re
import warnings
from pathlib import Path

import pytest
import torch
import yaml

from minillm import build_model
from minillm.config import parse
from minillm.config.compose import compose, compose_plain
from minillm.config.schema import BlockConfig, Config
from minillm.data import Tokenizer
from minillm.errors import ConfigError

ROOT = Path(__file__).resolve().parents[1]
CONF = ROOT / "conf"
ARMS = (
    "rope", "rope_qknorm", "nope", "alibi", "rnope", "rnope_1to3", "rnope_swa", "swa_only", "gemma3", "gemma3_1to3",
    "smollm3", "llama4", "swan", "olmo3", "learned", "sinusoidal", "t5", "alibi_learned", "shaw", "transformer_xl",
    "deberta", "integer", "binary", "dynamic_ntk", "yarn", "longrope", "p_rope", "nope_uniform", "nope_per_head",
    "nope_ssmax", "ministral", "rope_qkvbias",
)  # fmt: skip
BLOCKS = ("standard", "cohere2", "gemma3", "olmo2", "gpt2")
SIZES = ("micro", "mini", "small", "base", "medium", "large")
FILES = sorted(CONF.rglob("*.yaml"))


def root_of(group: str) -> str:
    """The root whose defaults list names `group`: train or eval."""
    for root in ("train", "eval"):
        entries = yaml.safe_load((CONF / f"{root}.yaml").read_text(encoding="utf-8")).get("defaults", [])
        names = {str(name) for entry in entries if isinstance(entry, dict) for name in entry}
        if group in {name.removeprefix("optional ").partition("@")[0] for name in names}:
            return root
    raise AssertionError(f"no root lists the group {group}")


def test_an_experiment_that_begins_with_weights_asks_for_them() -> None:
    with pytest.raises(ConfigError, match="init_from: missing"):
        compose(["experiment=drope"])


def named(path: Path) -> str:
    return str(path.relative_to(CONF))


def train_two_steps(config: Config) -> list[float]:
    """Losses before, between and after two updates on one small batch."""
    model = build_model(config.model, seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    tokens = torch.randint(config.model.vocab_size, (2, config.data.seq_len + 1))
    losses = []
    for _ in range(3):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        assert [name for name, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()] == []
        optimizer.step()
    return losses


@pytest.mark.parametrize(("group", "expected"), [("model", ARMS), ("block", BLOCKS), ("size", SIZES)])
def test_the_promised_options_are_there(group: str, expected: tuple[str, ...]) -> None:
    assert set(expected) <= {path.stem for path in (CONF / group).glob("*.yaml")}


@pytest.mark.parametrize("path", [p for p in FILES if p.parent != CONF], ids=named)
def test_every_option_composes(path: Path, tmp_path: Path) -> None:
    group = path.parent.relative_to(CONF).as_posix()
    if root_of(group) == "eval":
        assert path.stem in compose_plain([f"suite@suite.{path.stem}={path.stem}"], "eval")["suite"]
        return
    given = tmp_path / "tokenizer.json"
    Tokenizer.train(["text"], vocab_size=257).save(given)
    text = path.read_text(encoding="utf-8")
    together = ["data=needle"] if named(path) == "tokenizer/task.yaml" else []
    prefix = "" if text.startswith("# @package _global_") else f"{group}."
    asked = [f"{prefix}{key}={given}" for key, value in yaml.safe_load(text).items() if value in ("???", parse.NEEDED)]
    assert compose([f"{group}={path.stem}", *asked, *together], warn=False).choices[group] == path.stem


@pytest.mark.parametrize("path", [p for p in FILES if p.parent == CONF], ids=named)
def test_every_root_composes(path: Path) -> None:
    assert compose_plain([], path.stem)


@pytest.mark.parametrize("arm", ARMS)
def test_no_arm_warns_at_size_micro(arm: str) -> None:
    assert compose([f"model={arm}", "size=micro"], warn=False).warnings == ()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("arm", ["gemma3", "rnope_swa"])
def test_every_size_takes_whole_groups_and_windows_within_an_eighth_of_its_length(arm: str, size: str) -> None:
    config = compose([f"model={arm}", f"size={size}"], warn=False)
    assert config.warnings == ()
    assert config.data.seq_len >= 8 * config.size.window


@pytest.mark.parametrize("size", SIZES)
def test_every_size_builds_without_memory(size: str) -> None:
    model = build_model(compose([f"size={size}"], warn=False).model, device="meta")
    assert all(p.is_meta for p in model.parameters())


@pytest.mark.parametrize("arm", ARMS)
def test_every_arm_learns_in_two_steps(arm: str) -> None:
    losses = train_two_steps(compose([f"model={arm}", "size=micro", "tokenizer.vocab_size=512"], warn=False))
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_learns_in_two_steps(block: str) -> None:
    losses = train_two_steps(compose([f"block={block}", "size=micro", "tokenizer.vocab_size=512"], warn=False))
    assert losses[2] < losses[1] < losses[0]


@pytest.mark.parametrize("path", [p for p in FILES if p.parent.name != "model"], ids=named)
def test_every_key_says_what_it_does(path: Path) -> None:
    ours, _, _ = path.read_text(encoding="utf-8").partition("\nhydra:\n")  # Hydra documents its own keys
    lines = ours.splitlines()
    silent = []
    for above, line in zip(["", *lines], lines, strict=False):
        has_value = re.match(r"\s*[\w.]+: *[^ ]", line)  # a key whose value follows on other lines lets them speak
        if has_value and "#" not in line and not above.strip().startswith("#"):
            silent.append(line)
    assert silent == []


@pytest.mark.parametrize("path", sorted((CONF / "model").glob("*.yaml")), ids=named)
def test_an_arm_holds_a_layer_plan_and_nothing_else(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.startswith("#"), "its first line says what the plan is and where it comes from"
    arm = yaml.safe_load(text)
    assert set(arm) <= {"layers", "embedding"}
    assert {"kinds", "pattern"} <= set(arm["layers"]) <= {"kinds", "pattern", "overrides", "no_rope_layer_interval"}
    assert set(arm.get("embedding", {})) <= {"position"}


@pytest.mark.parametrize("group", [*parse.SECTIONS, "block"])
def test_every_field_of_the_schema_stands_in_a_yaml(group: str) -> None:
    schema = {**parse.SECTIONS, "block": BlockConfig}[group]
    shown: set[str] = set()
    for path in (CONF / group).glob("*.yaml"):
        shown |= set(yaml.safe_load(path.read_text(encoding="utf-8")))
    assert {f.name for f in dataclasses.fields(schema)} - shown == set()


def test_composing_twice_gives_the_same_configuration() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compose(["model=gemma3"]) == compose(["model=gemma3"])
