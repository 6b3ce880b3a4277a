"""`dry_run=true` says what a run would be, quickly, and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.config.compose import compose
from minillm.config.schema import Config
from minillm.model.cost import cost
from minillm.training import dry_run, identity

ROOT = Path(__file__).resolve().parents[2]
Compose = Callable[..., Config]

LOOK = """
import sys
sys.argv = ["train.py", "dry_run=true", "size=large", "model=gemma3"]
from minillm.training.program import main
main()
heavy = {"lightning", "wandb", "datasets", "tokenizers", "matplotlib", "torch._dynamo"} & set(sys.modules)
assert not heavy, heavy
"""


def test_a_dry_run_of_a_large_model_is_quick_loads_no_heavy_library_and_writes_nothing(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stderr
    # Processor seconds, not the clock's: the machine may be busy with other things.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 6
    assert "parameters" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_it_names_every_layer_every_cost_and_the_folder(tiny: Compose) -> None:
    cfg = tiny("model.layers.overrides={2:{window:3}}")
    text = dry_run.describe(cfg)
    rows = [line.split() for line in text.splitlines() if line[:1].isdigit()]
    assert [(row[1], row[4]) for row in rows] == [("local", "4"), ("local", "4"), ("local", "3"), ("global", "full")]
    assert dry_run.count(cost(cfg.model, 32).flops_per_token) in text
    for multiple in (1, 2, 4, 8, 16):
        assert f"{32 * multiple} tokens  " in text
    assert f"outputs/{identity.run_name(cfg.plain)}" in text
    assert f"sweeps/{identity.run_name(cfg.plain)}" in dry_run.describe(cfg, Path("sweeps"))


def test_warnings_stand_in_it(tiny: Compose) -> None:
    assert "warning: " in dry_run.describe(tiny("model.layers.kinds.local.window=32"))


@pytest.mark.parametrize("length", [1, 31, 32, 500])
def test_the_cache_is_priced_as_the_cost_function_prices_it(tiny: Compose, length: int) -> None:
    assert dry_run.cache(tiny().model, length) == cost(tiny().model, length).kv_bytes


def test_memory_falls_with_accumulation_and_with_sharding() -> None:
    one = dry_run.memory(compose(["size=mini"], warn=False))
    assert dry_run.memory(compose(["size=mini", "trainer.accumulate=4"], warn=False)) < one
    ddp = dry_run.memory(compose(["size=mini", "trainer=ddp"], warn=False))
    fsdp = dry_run.memory(compose(["size=mini", "trainer=fsdp"], warn=False))
    assert fsdp < ddp < one


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0"), (999, "999"), (1000, "1.00k"), (2_097_152, "2.10M"), (1.5e13, "15.00T")]
)
def test_counts_read_as_people_say_them(number: float, text: str) -> None:
    assert dry_run.count(number) == text


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.50 KiB"), (3 * 2**30, "3.00 GiB")]
)
def test_sizes_read_as_people_say_them(number: float, text: str) -> None:
    assert dry_run.size(number) == text
