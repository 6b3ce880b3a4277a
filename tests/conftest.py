"""What holds in every test: shapes are checked at run time, one thread, the same seed, no network, no account.

Markers are declared in pyproject.toml: `bug(id)` names the known bug that a test guards against, `slow` keeps a test
out of `make test`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from jaxtyping import install_import_hook

# Set before torch is imported, and inherited by every program that a test starts.
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_SILENT"] = "true"
os.environ.pop("WANDB_API_KEY", None)
os.environ.pop("WANDB_MODE", None)

# Wrong shapes and types in these packages raise where they happen. The hook must be there before their first import.
install_import_hook(["minillm.model", "minillm.attention", "minillm.position"], "beartype.beartype")

import torch  # noqa: E402
from hypothesis import settings  # noqa: E402

torch.set_num_threads(1)
# No deadline: the first example of a test pays for imports. The same examples every time: a red test stays red.
settings.register_profile("minillm", deadline=None, derandomize=True)
settings.load_profile("minillm")


@pytest.fixture(autouse=True)
def same_seed() -> Iterator[None]:
    """Every test starts from seed 0, whatever ran before it, and leaves the default dtype alone."""
    torch.manual_seed(0)
    yield
    assert torch.get_default_dtype() == torch.float32, "the test left another default dtype behind"
