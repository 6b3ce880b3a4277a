"""`make gpu-check` at toy size on CPU, where nothing but torch and jaxtyping can be imported."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import minillm
from minillm.config.expand import Heads, expand

ROOT = Path(__file__).resolve().parents[1]
BLOCKED = """
import runpy, sys

ABSENT = {"hydra", "omegaconf", "lightning", "pytorch_lightning", "wandb", "datasets", "tokenizers", "transformers",
          "yaml", "rich", "beartype"}

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
sys.argv = ["benchmarks/gpu_check.py", *sys.argv[1:]]
runpy.run_path("benchmarks/gpu_check.py", run_name="__main__")
"""


def check(out: Path, *arguments: str) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Run the script as on a bare machine; what it printed, and the file it wrote."""
    command = [sys.executable, "-W", "ignore", "-c", BLOCKED, "--device", "cpu", "--toy", "--out", str(out), *arguments]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    (path,) = out.glob("gpu-check-*-toy.json")
    assert path.with_suffix(".md").read_text() in run.stdout
    return run, json.loads(path.read_text())


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    run, record = check(tmp_path_factory.mktemp("results"), "--no-compile", "--minutes", "30")
    return run.stdout, record


@pytest.fixture
def parity(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_parity")


@pytest.mark.timeout(900)
def test_every_backend_that_runs_here_is_compared_and_agrees(toy: tuple[str, dict[str, Any]]) -> None:
    _, record = toy
    rows = record["parity"]
    assert {row["backend"] for row in rows} == {"reference", "sdpa", "banded", "flex"}
    assert all(row["ok"] for row in rows)
    assert {row["layout"] for row in rows} == {"one document", "packed documents", "padded rows"}
    for row in rows:
        assert (row["backward_error"] is None) == (row["backend"] == "flex")  # which has no backward pass on CPU


@pytest.mark.timeout(900)
def test_the_tables_hold_every_plan_length_and_backend(toy: tuple[str, dict[str, Any]]) -> None:
    printed, record = toy
    cells = {(row["plan"], row["length"]) for row in record["training"]}
    assert cells == {(plan, length) for plan in ("rope", "rnope_swa", "gemma3") for length in (96, 160)}
    assert all(row["tokens_per_second"] > 0 and 0 < row["mfu"] < 2 for row in record["training"])
    assert {row["backend"] for row in record["attention"]} == {"sdpa", "banded"}
    assert all(row["milliseconds"] > 0 for row in record["attention"])
    for heading in ("## Parity with reference", "## One layer's attention", "## Training steps", "MFU: ", "| toy "):
        assert heading in printed


@pytest.mark.timeout(900)
def test_what_is_left_out_is_named_with_its_reason(toy: tuple[str, dict[str, Any]]) -> None:
    left = "\n".join(toy[1]["left_out"])
    assert "parity of 'varlen': not here, its kernel runs on NVIDIA GPUs" in left
    assert "one layer by 'flex': not here, flex_attention has no backward pass on CPU" in left
    assert "compiled training steps: asked for by --no-compile" in left


@pytest.mark.timeout(900)
def test_without_time_everything_is_left_out_and_named(tmp_path: Path) -> None:
    _, record = check(tmp_path, "--minutes", "0", "--no-compile")
    assert record["parity"] == record["attention"] == record["training"] == []
    left = "\n".join(record["left_out"])
    assert "parity of 'flex': no time left" in left
    assert "training toy, gemma3, 96 tokens, eager: no time left" in left
    assert record["seconds"] < 60


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compiled_steps_are_measured_where_there_is_a_compiler(tmp_path: Path) -> None:
    from minillm.training.compilation import missing_compiler

    missing = missing_compiler("cpu")
    if missing is not None:
        pytest.skip(missing)
    _, record = check(tmp_path, "--minutes", "30")
    assert {row["state"] for row in record["training"]} == {"eager", "compiled"}
    assert not any("raised" in row for row in record["training"])


def test_a_wrong_or_endless_number_fails_parity(parity: Any) -> None:
    wanted = [torch.tensor([1e-3, 2e-3])]
    assert parity.error([torch.tensor([1e-3, 2e-3])], wanted) == 0
    assert parity.error([torch.tensor([1e-3, 1e-3])], wanted) == pytest.approx(0.5)
    assert parity.error([torch.tensor([1e-3, float("nan")])], wanted) == float("inf")


def test_a_kernel_that_raises_is_a_failed_case(parity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parity, "attend", lambda *args: 1 / 0)
    case = parity.cases(parity.TOY_SHAPE)[0]
    row = parity.compare("sdpa", case, parity.TOY_SHAPE, "cpu", backward=True)
    assert not row["ok"]
    assert row["raised"] == "ZeroDivisionError: division by zero"


def test_what_was_compared_before_the_time_was_over_is_kept(parity: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class OutOfTime(BaseException):
        pass

    own = parity.compare

    def three_only(*args: Any) -> Any:
        if len(rows) == 3:
            raise OutOfTime
        return own(*args)

    monkeypatch.setattr(parity, "compare", three_only)
    rows: list[Any] = []
    left: list[str] = []
    with pytest.raises(OutOfTime):
        parity.check(parity.TOY_SHAPE, "cpu", lambda seconds: True, rows, left)
    assert len(rows) == 3


@pytest.mark.bug("B024")
def test_the_tail_of_a_block_with_bias_and_window_comes_first_on_a_gpu(parity: Any) -> None:
    for name in ("window", "ALiBi and window"):
        (case, *_) = [case for case in parity.cases(parity.GPU_SHAPE) if case.name == name]
        assert case.length == 1025
        assert case.dtype == torch.bfloat16
        assert case.urgent == 0


@pytest.mark.parametrize("size", ["small", "base", "medium"])
def test_sizes_and_plans_are_those_of_the_shipped_yaml(size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    plans = importlib.import_module("gpu_plans")
    for plan in plans.PLANS:
        shipped = minillm.compose([f"model={plan}", f"size={size}"])
        assert plans.SIZES[size] == shipped.size
        model = plans.model(shipped.size, plan, shipped.size.seq_len, shipped.size.window)
        assert model.layers == shipped.model.layers
        assert model.block == shipped.model.block
        assert model.hidden_size == shipped.model.hidden_size
    heads = Heads(8, 4, 64)
    layers, _ = expand(plans.plan("rnope_swa", 256), {}, 12, heads, 2048)
    assert [spec.window for spec in layers[:4]] == [256, 256, 256, None]
