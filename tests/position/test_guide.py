"""`docs/adding-a-position-scheme.md` as a newcomer follows it: its blocks go where it says, in a copy of the tree."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GUIDE = ROOT / "docs" / "adding-a-position-scheme.md"

TRAIN_TWO_STEPS = """
import torch, minillm
cfg = minillm.compose(["model=kerple", "size=micro", "size.num_hidden_layers=2"])
model = minillm.build_model(cfg.model, seed=0)
assert [spec.to_dict()["position"] for spec in model.layer_specs] == [{"scheme": "kerple", "start": 0.5}] * 2
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
tokens = torch.arange(65).remainder(7)[None]
losses = []
for _ in range(2):
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    loss.backward()
    assert model.layers[1].attention.position.log_r2.grad.abs().min() > 0
    optimizer.step()
    losses.append(loss.item())
assert losses[1] < losses[0], losses
try:
    minillm.compose(["model=kerple", "model.layers.kinds.full.position.start=0"])
except minillm.ConfigError as error:
    print(error)
"""


def blocks() -> dict[str, str]:
    """The guide's fenced blocks by the path in their first line."""
    found = re.findall(r"^```\w+\n# (\S+)\n(.*?)^```$", GUIDE.read_text(), flags=re.MULTILINE | re.DOTALL)
    return dict(found)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what a scheme touches, with the guide's three steps done."""
    ignore = shutil.ignore_patterns("__pycache__", "corpus")
    for name in ("minillm", "conf"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignore)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/position/test_in_a_model.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    scheme, arm, parameter = (
        "minillm/position/kerple.py",
        "conf/model/kerple.yaml",
        "tests/position/test_in_a_model.py",
    )
    written = blocks()
    assert set(written) == {scheme, arm, parameter}
    (tmp_path / scheme).write_text(written[scheme])
    (tmp_path / arm).write_text(written[arm])
    tests = (tmp_path / parameter).read_text()
    opening = "SCHEMES: dict[str, Callable[[], ModelConfig]] = {\n"
    assert opening in tests
    (tmp_path / parameter).write_text(tests.replace(opening, opening + written[parameter]))
    return tmp_path


def run(project: Path, *arguments: str) -> str:
    done = subprocess.run([sys.executable, *arguments], cwd=project, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_following_the_guide_gives_a_scheme_that_trains_and_passes_its_tests(project: Path) -> None:
    assert "start = 0.0: must be above 0" in run(project, "-c", TRAIN_TWO_STEPS)
    passed = run(project, "-m", "pytest", "-q", "tests/position", "-k", "kerple", "-p", "no:cacheprovider")
    assert "6 passed" in passed


def test_the_guide_stays_short() -> None:
    code = blocks()["minillm/position/kerple.py"].splitlines()
    assert len([line for line in code if line.strip() and "import" not in line]) <= 30
