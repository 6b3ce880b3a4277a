"""`eval/<suite>.json` of a run: `{suite, settings, rows}`, written whole or not at all, and reused if settings agree.

`settings` holds all that decides the rows: the suite's own settings, the weights (a digest), the step, the documents,
the arithmetic. So an interrupted evaluation of many runs goes on where it stopped, and a result of older weights is
never taken for a new one.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from minillm.errors import MinillmError
from minillm.training.run_folder import write_atomically


def read_result(folder: Path, suite: str) -> dict[str, Any] | None:
    """The suite's saved result, or None where there is none that can be read."""
    try:
        result = json.loads((folder / f"{suite}.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise MinillmError(f"{folder / suite}.json cannot be read ({error}). Delete it to measure again.") from None
    return result if isinstance(result, dict) and {"suite", "settings", "rows"} <= set(result) else None


def reusable(folder: Path, suite: str, settings: Mapping[str, Any]) -> dict[str, Any] | None:
    """The saved result if it was measured under exactly these settings."""
    result = read_result(folder, suite)
    if result is None or result["settings"] != as_json(settings):
        return None
    return result


def write_result(
    folder: Path, suite: str, settings: Mapping[str, Any], rows: list[dict[str, Any]], seconds: float
) -> dict[str, Any]:
    """Save and return the result; `seconds` says how long the measurement took."""
    result = {"suite": suite, "settings": as_json(settings), "rows": as_json(rows), "seconds": round(seconds, 1)}
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MinillmError(f"{folder} cannot be made: {error.strerror or error}.") from None
    write_atomically(folder / f"{suite}.json", json.dumps(result, indent=1, allow_nan=False) + "\n")
    return result


def as_json(value: Any) -> Any:
    """As it will be read back: tuples are lists, so that settings can be compared."""
    return json.loads(json.dumps(value))


def weights_digest(state: Mapping[str, torch.Tensor]) -> str:
    """Sixteen hex digits over names and values of all weights."""
    digest = hashlib.sha256()
    for name in sorted(state):
        digest.update(name.encode())
        digest.update(state[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
