"""The YAMLs are found beside the package in a checkout, inside the package in a wheel, and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minillm.config import paths
from minillm.errors import MinillmError


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty folder in which a package `minillm` is pretended to lie."""
    (tmp_path / "minillm" / "config").mkdir(parents=True)
    monkeypatch.setattr(paths, "__file__", str(tmp_path / "minillm" / "config" / "paths.py"))
    paths.conf_dir.cache_clear()
    yield tmp_path
    paths.conf_dir.cache_clear()


def add_conf(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.yaml").touch()
    return folder


def test_a_checkout_reads_the_conf_folder_at_its_top() -> None:
    paths.conf_dir.cache_clear()
    assert paths.conf_dir() == Path(__file__).resolve().parents[2] / "conf"


def test_an_installed_package_reads_its_own_conf_folder(site: Path) -> None:
    add_conf(site / "conf")  # somebody else's, in site-packages
    own = add_conf(site / "minillm" / "conf")
    assert paths.conf_dir() == own


def test_a_conf_folder_of_another_project_is_not_taken_for_ours(site: Path) -> None:
    (site / "conf").mkdir()
    with pytest.raises(MinillmError, match=r"train\.yaml is neither in"):
        paths.conf_dir()
