"""Contestants measured side by side: warmed, in turn, round after round, so that what disturbs one disturbs all.

    times = alternate({"ours": step_of_ours, "theirs": step_of_theirs}, rounds=5)
    ratio(times["theirs"], times["ours"])           # median over rounds of theirs / ours

A ratio is taken within a round and the median over rounds reported: on a machine with other work, seconds drift by tens
of per cent between rounds, ratios of neighbours hardly.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from minillm.training.peak import device_name
from minillm.training.precision import bf16_unit

RESULTS = Path(__file__).parent / "results"


def alternate(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each contestant in each of `rounds`, after `warmup` rounds that do not count.

    `clock` may be time.process_time where one thread works: on a busy machine it counts what others take away less.
    The order is turned from round to round, so that nobody always follows the same neighbour.
    """
    names = list(contestants)
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-warmup, rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            begun = clock()
            contestants[name]()
            seconds = clock() - begun
            if number >= 0:
                times[name].append(seconds)
    return times


def ratio(numerator: Sequence[float], denominator: Sequence[float]) -> float:
    """The median over rounds of one contestant's seconds over another's."""
    return statistics.median(a / b for a, b in zip(numerator, denominator, strict=True))


def spread(numerator: Sequence[float], denominator: Sequence[float]) -> tuple[float, float]:
    """The smallest and largest of those ratios."""
    ratios = [a / b for a, b in zip(numerator, denominator, strict=True)]
    return min(ratios), max(ratios)


def versions(*packages: str) -> dict[str, str]:
    """Of Python, torch and those of `packages` that are installed."""
    found = {"python": platform.python_version(), "torch": torch.__version__}
    for package in packages:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def write(name: str, rows: list[dict[str, Any]], out: Path, packages: Sequence[str] = (), **facts: Any) -> Path:
    """`<out>/<name>-<date>.json`: rows with the command, hardware, threads, versions and load they were had under."""
    date = datetime.date.today().isoformat()
    record = {
        "benchmark": name,
        "date": date,
        "command": f"python benchmarks/{Path(sys.argv[0]).name} {' '.join(sys.argv[1:])}".strip(),
        "hardware": device_name("cpu"),
        "bf16_unit": bf16_unit("cpu"),
        "threads": torch.get_num_threads(),
        "load_average_at_the_end": round(os.getloadavg()[0], 1),
        "versions": versions(*packages),
        **facts,
        "rows": rows,
    }
    out.mkdir(parents=True, exist_ok=True)
    path = out / f"{name}-{date}.json"
    path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    print(f"written: {path}")
    return path
