"""`python train.py -m`: every job in its own folder and process, and a failing one stops no other."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from minillm.errors import ConfigError
from minillm.training.program import Sweep, main
from minillm.training.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[2]
SHORT = ("trainer.max_steps=2", "trainer.val_every=2", "trainer.sample_every=null", "eval_at_end=false")
Sweeping = Callable[..., tuple[int, str]]


@pytest.fixture
def sweep(
    overrides: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Sweeping:
    """Run a multirun with these arguments into tmp_path/sweep; its exit code and what it said on stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")
    kept = [o for o in overrides if not o.startswith("model=")]

    def start(*more: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["train.py", *kept, *SHORT, "hydra.sweep.dir=sweep", *more, "-m"])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return code, capfd.readouterr().err

    return start


def folders(sweep_dir: Path) -> list[RunFolder]:
    return [RunFolder(path) for path in sorted(sweep_dir.iterdir()) if path.is_dir()]


@pytest.mark.bug("B082")
@pytest.mark.bug("B086")
@pytest.mark.timeout(400)
def test_two_arms_and_two_seeds_give_exactly_four_complete_folders(sweep: Sweeping, tmp_path: Path) -> None:
    code, err = sweep("model=rope,rnope_swa", "seed=1,2")
    assert code == 0, err
    runs = folders(tmp_path / "sweep")
    assert [f.path.name.rpartition("-")[0] for f in runs] == [
        "rnope_swa-micro-files-s1",
        "rnope_swa-micro-files-s2",
        "rope-micro-files-s1",
        "rope-micro-files-s2",
    ]
    assert all(f.complete(2) for f in runs)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["sweep"], "nothing lies elsewhere"
    for folder in runs:
        saved = folder.read_config()
        assert saved["logger"]["group"] == "sweep"
        assert not any("hydra" in key for key in (*saved, *saved["choices"]))


@pytest.mark.bug("B087")
@pytest.mark.bug("B096")
def test_a_job_whose_settings_are_refused_fails_alone_in_its_own_folder(sweep: Sweeping, tmp_path: Path) -> None:
    code, err = sweep("model=rnope_swa", "model.layers.kinds.local.window=0,5")
    assert code == 1
    assert "1 of 2 jobs of this sweep failed" in err
    assert "Traceback" not in err
    bad, good = sorted(folders(tmp_path / "sweep"), key=lambda f: f.config.exists())
    assert [p.name for p in bad.path.iterdir()] == ["error.txt"]
    assert "window" in bad.error.read_text()
    assert "model.layers.kinds.local.window=0" in bad.error.read_text().splitlines()[0], "the job's overrides"
    assert good.complete(2)
    assert good.read_config()["model"]["layers"]["kinds"]["local"]["window"] == 5
    assert [layer["window"] for layer in json.loads(good.layers.read_text())["layers"]] == [5, 5, 5, None]
    assert not good.error.exists()


def test_an_arm_that_does_not_exist_stops_the_sweep_before_its_first_job(sweep: Sweeping, tmp_path: Path) -> None:
    code, err = sweep("model=rope,rop")
    assert code == 2
    assert "Did you mean 'rope'?" in err
    assert folders(tmp_path / "sweep") == []


@pytest.mark.bug("B091")
def test_a_bug_in_a_job_leaves_its_traceback_in_the_jobs_folder(tmp_path: Path) -> None:
    sweep = Sweep()
    try:
        raise ZeroDivisionError("ours")
    except ZeroDivisionError as error:
        sweep.failed(RunFolder(tmp_path / "a"), ["seed=1", "name=x y"], error)
    sweep.failed(RunFolder(tmp_path / "b"), [], ConfigError("seed = -1: must not be negative."))
    text = (tmp_path / "a" / "error.txt").read_text()
    assert text.startswith("overrides: seed=1 'name=x y'\n\nTraceback")
    assert text.endswith("ZeroDivisionError: ours\n")
    assert (tmp_path / "b" / "error.txt").read_text().endswith("seed = -1: must not be negative.\n")
    assert not RunFolder(tmp_path / "a").holds_a_run(), "the same job can be started again there"


@pytest.mark.bug("B062")
@pytest.mark.timeout(400)
def test_two_sweeps_at_once_with_two_devices_each_and_a_failing_first_job(
    overrides: list[str], tmp_path: Path, points: Callable[[Path], list[dict[str, Any]]]
) -> None:
    kept = [o for o in overrides if not o.startswith("optim.lr=")]
    arguments = [*kept, *SHORT, "trainer.strategy=ddp", "trainer.devices=2", "-m"]
    programs = {
        name: subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), f"hydra.sweep.dir={name}", f"optim.lr={rates}", *arguments],
            cwd=tmp_path,
            env={**os.environ, "HYDRA_FULL_ERROR": "0"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for name, rates in (("a", "1e15,0.01"), ("b", "0.01"))
    }
    try:
        said = {name: program.communicate(timeout=350)[0] for name, program in programs.items()}
    finally:
        for program in programs.values():
            program.kill()
    assert programs["a"].returncode == 1, said["a"]
    assert programs["b"].returncode == 0, said["b"]
    assert "1 of 2 jobs of this sweep failed" in said["a"]
    failed, done = sorted(folders(tmp_path / "a"), key=lambda f: f.complete(2))
    assert "The loss " in failed.error.read_text()
    (other,) = folders(tmp_path / "b")
    for folder in (done, other):
        assert folder.complete(2)
        assert not folder.error.exists()
        assert [p["step"] for p in points(folder.path)] == [1, 2]
        assert yaml.safe_load(folder.config.read_text())["optim"]["lr"] == 0.01
    assert done.path.name == other.path.name
