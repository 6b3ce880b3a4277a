"""Rows of the suite: each task of lm-evaluation-harness, or of ours, at each length that it can be had at.

    rows = measure(adapter, tokenizer_folder, train_length=1024, settings=settings)
    # {"metric": "acc", "task": "minillm_vt_likelihood", "length": 1024, "value": 0.6, "n": 20, "low": ..., ...}

A task without lengths of its own has one row, of length null. What cannot be measured (data that no cache holds, a
length that is too short, a table of positions that ends) is a row without value, with the reason.
"""

from __future__ import annotations

import io
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import numpy as np
from lm_eval.evaluator import evaluate
from lm_eval.tasks import TaskManager
from lm_eval.tasks.manager import TaskDict

from minillm.errors import ConfigError, PositionUndefined, nearest
from minillm.evaluation.harness import TASKS
from minillm.evaluation.harness.adapter import Adapter
from minillm.evaluation.harness.offline import NLTK_DATA, is_expected, nltk_data, offline, reason
from minillm.evaluation.intervals import Estimate, Z, clustered_share
from minillm.evaluation.memory import out_of_memory
from minillm.evaluation.settings import HarnessSettings

Row = dict[str, Any]
CELL = 1000
"""What a task at a length counts in the progress bar."""
THEIRS_FROM = 1024
"""Tokens from which the harness's own RULER tasks are asked for: below, their generators may never find a fit."""
WITHOUT_ESSAYS = ("niah_single_1", "niah_multikey_2", "niah_multikey_3")
"""Needle tasks of the harness that cut no sentences and read no data."""
DRAWS = 1000
"""Of the harness's bootstrap, for metrics that are no means."""


def total(settings: HarnessSettings) -> int:
    """What `measure` reports to its callback in all."""
    return CELL * len(_names(settings)) * len(settings.lengths)


def measure(
    adapter: Adapter,
    tokenizer: Path,
    train_length: int,
    settings: HarnessSettings,
    documents: str | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> list[Row]:
    """Rows of the suite, see above.

    Args:
        tokenizer: a folder that transformers reads the model's tokenizer from.
        documents: file or folder of text for our tasks' haystacks; None takes the embedded corpus.

    Raises:
        ConfigError: a task that the harness does not know.
    """
    with offline():
        manager = Manager(tokenizer, settings, documents)
        manager.check(_names(settings))
        rows: list[Row] = []
        without_lengths: set[str] = set()
        for length in settings.lengths:
            for name in _names(settings):
                meter = Meter(progress)
                if name not in without_lengths:
                    adapter.progress = meter.advance
                    found = _cell(manager, adapter, name, length, settings)
                    if found[0]["length"] is None:
                        without_lengths.add(name)
                    rows += [{**row, "multiple": _multiple(row["length"], train_length)} for row in found]
                meter.finish()
    return rows


class Meter:
    """One cell of the progress bar, whatever its calls report."""

    def __init__(self, progress: Callable[[int], None]) -> None:
        self._progress, self._share, self._said = progress, 0.0, 0

    def advance(self, share: float) -> None:
        self._share += share
        self._say(min(CELL, int(CELL * self._share)))

    def finish(self) -> None:
        self._say(CELL)

    def _say(self, done: int) -> None:
        if done > self._said:
            self._progress(done - self._said)
            self._said = done


class Manager:
    """The harness's TaskManager over our tasks and, where any other is asked for, its own; loads them at a length."""

    def __init__(self, tokenizer: Path, settings: HarnessSettings, documents: str | None) -> None:
        self._metadata: dict[str, Any] = {"tokenizer": str(tokenizer), "documents": documents}
        if settings.limit is not None:
            self._metadata["num_samples"] = settings.limit
        theirs = any(not name.startswith("minillm_") for name in settings.tasks)
        # It keeps this very dictionary, so that the length can be changed without reading its 15,000 files again.
        self._manager = TaskManager(include_path=str(TASKS), include_defaults=theirs, metadata=self._metadata)
        self._settings = settings

    def check(self, names: Sequence[str]) -> None:
        """Raise ConfigError for names that are no task, group or tag."""
        for name in names:
            if name not in self._manager.all_tasks:
                hint = nearest(name, self._manager.all_tasks)
                raise ConfigError(f"suite.harness.tasks: unknown task '{name}'.{hint} `lm_eval ls tasks` lists them.")

    def load(self, name: str, length: int) -> TaskDict:
        """Task, group or tag at a length, ready to be evaluated."""
        self._metadata["max_seq_lengths"] = [length]
        with redirect_stdout(io.StringIO()):  # some tasks of others print
            loaded = self._manager.load([name])
        for task in loaded["tasks"].values():
            shots = task.get_config("num_fewshot")
            if shots is None or (self._settings.num_fewshot is not None and shots != 0):
                task.set_config("num_fewshot", self._settings.num_fewshot or 0)
            task.set_fewshot_seed(seed=0)
        return loaded

    def obstacle(self, name: str, length: int) -> str | None:
        """Why a task must not even be loaded."""
        for leaf in self._leaves(name):
            entry = self._manager.task_index[leaf]
            source = str((entry.cfg or {}).get("custom_dataset", ""))
            on_essays = "niah_utils." in source and source.rpartition(".")[2] not in WITHOUT_ESSAYS
            if on_essays and not nltk_data():
                mend = "python -m nltk.downloader punkt_tab"
                return f"not measured: the harness's {leaf} wants nltk's {NLTK_DATA}, which is not here: {mend}"
            if "lm_eval/tasks/ruler/" in source and length < THEIRS_FROM:
                return f"not measured: the harness's {leaf} may not end below {THEIRS_FROM} tokens"
        return None

    def _leaves(self, name: str) -> Iterator[str]:
        entry = self._manager.task_index.get(name)
        if entry is None:
            return
        children = (entry.cfg or {}).get("task")
        if isinstance(children, list):
            for child in children:
                if isinstance(child, str):
                    yield from self._leaves(child)
        elif entry.cfg is None and entry.tags:
            for child in sorted(entry.tags):
                yield from self._leaves(child)
        else:
            yield name


def _names(settings: HarnessSettings) -> list[str]:
    """Our groups by their tasks, so that one that does not fit a length leaves the others; each name once."""
    names: list[str] = []
    for name in settings.tasks:
        names += our_group(name) or [name]
    return list(dict.fromkeys(names))


def our_group(name: str) -> list[str]:
    """The tasks of one of our groups; empty for any other name."""
    import yaml

    file = TASKS / f"{name}.yaml"
    if not name.startswith("minillm_ruler") or not file.is_file():
        return []
    return list(yaml.safe_load(file.read_text(encoding="utf-8"))["task"])


def _multiple(length: int | None, train_length: int) -> float | None:
    return None if length is None else length / train_length


def _cell(manager: Manager, adapter: Adapter, name: str, length: int, settings: HarnessSettings) -> list[Row]:
    """All rows of a name at a length; its own length is None where it has none."""
    own = length if name.startswith("minillm_") else None
    obstacle = manager.obstacle(name, length)
    if obstacle is not None:
        return [_row("score", name, length, note=obstacle)]
    _seed()
    try:
        loaded = manager.load(name, length)
    except Exception as error:  # whatever a task of others, datasets or the hub raise
        return [_row("score", name, own, note=reason(error))]
    tasks = loaded["tasks"]
    if any("max_length" in getattr(task, "features", ()) for task in tasks.values()):
        own = length
    for task in tasks.values():
        if getattr(task, "UNSAFE_CODE", False) or getattr(task, "MULTIMODAL", False):
            what = (
                "runs code that a model wrote"
                if getattr(task, "UNSAFE_CODE", False)
                else "asks about pictures or sound"
            )
            return [_row("score", name, own, note=f"not measured: {task.task_name} {what}")]
    try:
        results = evaluate(adapter, loaded, limit=settings.limit, bootstrap_iters=DRAWS)
    except PositionUndefined:
        return [_row("score", name, own, note="not defined")]
    except Exception as error:
        if out_of_memory(error):
            return [_row("score", name, own, note="not measured: it does not fit the memory")]
        if not is_expected(error):
            raise
        return [_row("score", name, own, note=reason(error))]
    return list(_rows(results, own))


def _seed() -> None:
    """Some of the harness's tasks draw from the global streams: each then draws the same, whichever came before."""
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002


def _rows(results: Mapping[str, Any], length: int | None) -> Iterator[Row]:
    """Of each task, then of each group, each metric under each filter."""
    for task, metrics in {**results["results"], **results.get("groups", {})}.items():
        samples = results["samples"].get(task, [])
        for key, value in metrics.items():
            metric, comma, how = key.partition(",")
            if not comma or metric.endswith("_stderr") or not isinstance(value, int | float):
                continue
            if metric.isdigit():  # the harness's RULER tasks call their score by its length
                if int(metric) != length:
                    continue
                label = "score"
            else:
                label = metric
            values = [s[metric] for s in samples if s["filter"] == how and metric in s]
            n = len(values) or results.get("n-samples", {}).get(task, {}).get("effective", 0)
            estimate = _estimate(float(value), values, n, metrics.get(f"{metric}_stderr,{how}"))
            note = None if estimate.value is not None else "not finite"
            yield {**_row(label, task, length, estimate, note), "filter": None if how == "none" else how}


def _estimate(value: float, values: Sequence[Any], n: int, stderr: Any) -> Estimate:
    """Wilson's interval for means of shares; of other metrics the harness's standard error; none where it has none."""
    if not math.isfinite(value):
        return Estimate(None, n, None, None)
    numbers = [float(v) for v in values if isinstance(v, int | float)]
    if numbers and len(numbers) == len(values) and all(0 <= v <= 1 for v in numbers):
        share = clustered_share(numbers, [1] * n)
        if share.value is not None and math.isclose(share.value, value, abs_tol=1e-9):
            return share
    if isinstance(stderr, int | float) and math.isfinite(stderr):
        return Estimate(value, n, value - Z * stderr, value + Z * stderr)
    return Estimate(value, n, None, None)


def _row(metric: str, task: str, length: int | None, estimate: Estimate | None = None, note: str | None = None) -> Row:
    value = estimate or Estimate(None, 0, None, None)
    return {"metric": metric, "task": task, "length": length, "depth": None, **value._asdict(), "note": note}
