"""What is declared is what is used: dependencies, exact versions, and all that a wheel must carry."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
MODULES = sorted((ROOT / "minillm").rglob("*.py"))
PROVIDED_BY = {
    "hydra": "hydra-core",
    "omegaconf": "hydra-core",
    "yaml": "pyyaml",
}  # where the import's name is not the package's


def requirements() -> dict[str, list[Requirement]]:
    """Declared requirements by extra; the empty name holds those of the package itself."""
    listed = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return {extra: [Requirement(line) for line in lines] for extra, lines in listed.items()}


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    parted = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in parted}


def imported(path: Path) -> set[str]:
    """Top-level names of the packages outside the standard library that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names.add(node.module.split(".")[0])
    return names - sys.stdlib_module_names - {"minillm", "__future__"}


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_import_is_a_declared_dependency(path: Path) -> None:
    declared = {canonicalize_name(r.name) for extra, reqs in requirements().items() if extra != "dev" for r in reqs}
    used = {canonicalize_name(PROVIDED_BY.get(name, name)) for name in imported(path)}
    assert used <= declared


@pytest.mark.parametrize("folder", ["model", "attention", "position"])
def test_model_code_imports_nothing_but_torch_and_jaxtyping(folder: str) -> None:
    files = [*(ROOT / "minillm" / folder).rglob("*.py")]
    files += [ROOT / "minillm" / "config" / f"{name}.py" for name in ("fields", "layers", "expand", "schema")]
    assert {str(f.relative_to(ROOT)): names for f in files if (names := imported(f) - {"torch", "jaxtyping"})} == {}


def test_every_requirement_has_an_exact_version_within_its_range() -> None:
    pinned = pins()
    wrong = [
        str(requirement)
        for listed in requirements().values()
        for requirement in listed
        if requirement.name != "minillm"
        and not requirement.specifier.contains(pinned.get(canonicalize_name(requirement.name), "0"))
    ]
    assert wrong == []
    assert pinned["torch"] == "2.13.0"


def test_the_constraints_name_versions_only() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    other = [line for line in lines if not re.fullmatch(r"#.*|[A-Za-z0-9._-]+==[0-9][0-9a-z.]*", line)]
    assert other == []


def test_every_folder_of_code_is_a_package() -> None:
    folders = {path.parent for path in MODULES}
    assert [str(f.relative_to(ROOT)) for f in folders if not (f / "__init__.py").is_file()] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_help_lists_the_targets() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    targets = [
        "help",
        "setup",
        "train",
        "compare",
        "bench-setup",
        "bench-quick",
        "figures",
        "test",
        "gpu-check",
        "pretrained",
        "check",
        "clean",
    ]
    assert re.findall(r"^  make ([\w-]+)", shown, flags=re.MULTILINE) == targets


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which the wheel of this tree was installed. Built from a copy: building writes there."""
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("minillm", "conf"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check"]
    # Without isolation and index: the pinned setuptools is here, and nothing may be downloaded.
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", folder, source], check=True)
    target = folder / "installed"
    (wheel,) = folder.glob("minillm-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--no-index", "--target", target, wheel], check=True)
    return target


@pytest.mark.slow
def test_the_wheel_holds_every_module_yaml_and_text_of_the_tree(installed: Path) -> None:
    wanted = {p.relative_to(ROOT) for p in MODULES}
    wanted |= {Path("minillm") / p.relative_to(ROOT) for p in (ROOT / "conf").rglob("*.yaml")}
    wanted |= {p.relative_to(ROOT) for p in (ROOT / "minillm" / "data" / "corpus").iterdir() if p.is_file()}
    assert {str(p) for p in wanted if not (installed / p).is_file()} == set()


@pytest.mark.slow
def test_the_installed_package_trains_in_any_folder(installed: Path, tmp_path: Path) -> None:
    # The path comes before the editable install of the checkout, whose import hook is asked last.
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    code = "import minillm; print(minillm.__file__); from minillm.training.program import main; main()"
    toy = "experiment=smoke trainer.max_steps=2 logger=none eval_at_end=false"
    run = subprocess.run(
        [sys.executable, "-c", code, *toy.split()],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith(str(installed))
    assert len(list(tmp_path.glob("outputs/*/checkpoints/last.ckpt"))) == 1
