"""One run through the suites: read its checkpoint and documents, reuse what was measured before, measure the rest.

evaluation = evaluate(run, config, say=print)
evaluation.results["length_perplexity"]["rows"]
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from minillm.config.schema import Config
from minillm.data.tasks.data import RULES, task_of
from minillm.errors import MinillmError
from minillm.evaluation import cost, length_perplexity, recall, store
from minillm.evaluation.attention import suite as attention
from minillm.evaluation.documents import Documents, from_files, held_out
from minillm.evaluation.progress import Progress
from minillm.evaluation.runs import OpenRun, Run, find_runs, open_run
from minillm.evaluation.settings import EvalConfig, default_config, settings_of
from minillm.evaluation.table import plain_length_table, plain_recall_table
from minillm.training.peak import device_name

Result = dict[str, Any]
RECALL_ROWS = 2
"""Counts versions of what the suites named after tasks keep: since 2, sums per sample."""
RULER_PROMPTS = 1
"""Counts versions of the suite's prompts: what was measured on other ones is measured again."""


@dataclass(frozen=True)
class Evaluation:
    """What a comparison knows of one run."""

    run: Run
    config: Config
    """As trained, with the real vocabulary size."""
    step: int
    decided: dict[str, Any]
    """Precision, attention backends, device and torch version of its training."""
    num_parameters: int
    results: dict[str, Result]
    """By suite: {suite, settings, rows, seconds}."""
    skipped: dict[str, str] = field(default_factory=dict)
    """Suites that do not apply to this run, with the reason."""


def evaluate(run: Run, config: EvalConfig, say: Callable[[str], None] = print) -> Evaluation:
    """Measure `run` by `config.suites`, saving each suite's result as soon as it is whole.

    Raises:
        MinillmError: no readable checkpoint, unfit documents, a folder that cannot be written.
    """
    device = choose_device(config.device)
    opened = open_run(run, config.variants.get(run.variant) if run.variant is not None else None)
    opened.model.to(device)
    results, skipped = {}, {}
    for suite in _own_suites(opened, config):
        try:
            results[suite] = _reuse_or_measure(suite, opened, config, device, say)
        except NotApplicable as reason:
            skipped[suite] = str(reason)
            say(f"{run.name}: {suite} is left out: {reason}")
    return Evaluation(
        run=run,
        config=opened.config,
        step=opened.step,
        decided=opened.decided,
        num_parameters=sum(p.numel() for p in opened.model.parameters()),
        results=results,
        skipped=skipped,
    )


def length_table(run_dir: str | Path) -> str:
    """Loss, or a task's accuracy, at 1x to 16x the training length as text: measured now with the shipped settings, or
    read if it was.

    Also writes `eval/length_perplexity.json` (or `eval/<task>.json`), which eval.py with the same settings then reuses.
    """
    config = default_config([str(run_dir)], ["recall"])
    (run,) = find_runs(config.runs)
    results = evaluate(run, config, say=lambda text: None).results
    if results:
        return plain_recall_table(*results.values())
    config = dataclasses.replace(config, suites=("length_perplexity",))
    return plain_length_table(evaluate(run, config, say=lambda text: None).results["length_perplexity"])


class NotApplicable(MinillmError):
    """A suite means nothing for this run; the comparison goes on without it."""


def choose_device(asked: str) -> str:
    """cpu or cuda; MinillmError where cuda is asked for and there is none."""
    if asked == "cuda" and not torch.cuda.is_available():
        raise MinillmError("device: cuda is asked for, but PyTorch sees no GPU here. Allowed here: auto, cpu.")
    return "cuda" if asked != "cpu" and torch.cuda.is_available() else "cpu"


@dataclass(frozen=True)
class Work:
    """A suite's measurement of one run, ready to begin."""

    settings: dict[str, Any]
    """All that the rows depend on besides the weights: a result of equal settings is reused."""
    total: int
    """What `measure` reports to its callback in all; the progress bar's length."""
    measure: Callable[[Callable[[int], None]], list[dict[str, Any]]]


def _length_perplexity(opened: OpenRun, config: EvalConfig, device: str) -> Work:
    own = config.suite.length_perplexity
    documents = _documents(opened, config)
    plan = length_perplexity.Plan([len(ids) for ids in documents.ids], opened.train_length, own)
    settings = {
        "source": documents.source,
        "documents": [documents.names[i] for i in plan.used],
        "documents_left_out": len(documents.names) - len(plan.used),
        "documents_digest": documents.digest(plan.used),
        "tokens_read": plan.num_tokens(),
        "start_marker": length_perplexity.START_MARKER,
    }

    token_bytes = opened.tokenizer.token_bytes()

    def measure(progress: Callable[[int], None]) -> list[dict[str, Any]]:
        return length_perplexity.measure(
            opened.model, documents.ids, opened.train_length, own, device, config.precision, progress, token_bytes
        )

    return Work(settings, plan.num_tokens(), measure)


def _attention(opened: OpenRun, config: EvalConfig, device: str) -> Work:
    own = config.suite.attention
    source: attention.Source
    settings: dict[str, Any]
    if opened.config.data.source == "task":
        from minillm.data.tasks.data import task_of

        source = attention.Recall(task_of(opened.config.data), own)
        settings = {"source": source.name, "task": opened.config.data.task}
    else:
        documents = _documents(opened, config)
        source = attention.Text(documents.ids, own)
        used = sorted({i for multiple in own.lengths for i in source.used(multiple * opened.train_length)})
        settings = {
            "source": documents.source,
            "cases": source.name,
            "documents": [documents.names[i] for i in used],
            "documents_digest": documents.digest(used),
        }

    def measure(progress: Callable[[int], None]) -> list[dict[str, Any]]:
        return attention.measure(opened.model, opened.train_length, own, source, device, config.precision, progress)

    return Work(settings, attention.num_tokens(opened.train_length, own, source), measure)


def _cost(opened: OpenRun, config: EvalConfig, device: str) -> Work:
    own = config.suite.cost

    def measure(progress: Callable[[int], None]) -> list[dict[str, Any]]:
        return cost.measure(opened.model, opened.train_length, own, device, config.precision, progress)

    return Work(machine(device), 2 * len(own.lengths), measure)


def _recall(opened: OpenRun, config: EvalConfig, device: str) -> Work:
    own = config.suite.recall
    data = opened.config.data
    if data.source != "task":
        raise NotApplicable("it was trained on text, not on a task.")
    task = task_of(data)

    def measure(progress: Callable[[int], None]) -> list[dict[str, Any]]:
        return recall.measure(
            opened.model, task, opened.train_length, own, opened.model.layer_specs, device, config.precision, progress
        )

    settings = {"task": data.task, "rules": RULES, "row_version": RECALL_ROWS}
    return Work(settings, recall.total_tokens(opened.train_length, own), measure)


def _ruler(opened: OpenRun, config: EvalConfig, device: str) -> Work:
    from minillm.evaluation.ruler import suite as ruler
    from minillm.evaluation.ruler.fit import Text
    from minillm.evaluation.ruler.materials import gather

    own, text = config.suite.ruler, Text(opened.tokenizer)
    documents = _documents(opened, config)
    materials, facts = gather(documents, opened.tokenizer, own)
    solver = ruler.ModelSolver(opened.model, text, own, device, config.precision)

    def measure(progress: Callable[[int], None]) -> list[dict[str, Any]]:
        return ruler.measure(solver, materials, text, opened.train_length, own, progress)

    return Work({**facts, "prompts": RULER_PROMPTS}, ruler.total_tokens(own), measure)


def _harness(opened: OpenRun, config: EvalConfig, device: str) -> Work:
    if opened.config.data.source == "task":
        raise NotApplicable("it was trained on a task and knows no text. suites=[recall] measures it.")
    from minillm.evaluation.harness.run import facts, measure, total

    def measured(progress: Callable[[int], None]) -> list[dict[str, Any]]:
        return measure(opened, config, progress)

    return Work({**facts(config), "prompts": RULER_PROMPTS}, total(config), measured)


def _own_suites(opened: OpenRun, config: EvalConfig) -> list[str]:
    """The suites asked for; `recall` is that of the run's task."""
    task = (opened.config.data.task or {}).get("name", "recall")
    return list(dict.fromkeys(task if suite == "recall" else suite for suite in config.suites))


SUITES: dict[str, Callable[[OpenRun, EvalConfig, str], Work]] = {
    "length_perplexity": _length_perplexity,
    "attention": _attention,
    "cost": _cost,
    "recall": _recall,
    "ruler": _ruler,
    "harness": _harness,
}
"""How each suite of `SuiteSettings` is prepared for a run; those named after tasks are prepared as `recall`."""


def _reuse_or_measure(
    suite: str, opened: OpenRun, config: EvalConfig, device: str, say: Callable[[str], None]
) -> Result:
    asked = opened.config.data.task
    if suite not in SUITES and asked is not None and asked["name"] != suite:
        raise NotApplicable(f"it was trained on the task {asked['name']}.")
    run, work = opened.run, SUITES.get(suite, _recall)(opened, config, device)
    settings = {
        **dataclasses.asdict(settings_of(config.suite, suite)),
        **_common(opened, config, device),
        **work.settings,
    }
    known = None if config.again else store.reusable(run.eval_folder, suite, settings)
    if known is not None:
        say(f"{run.name}: {suite} as measured before ({run.eval_folder / suite}.json)")
        return known
    start = time.monotonic()
    with Progress(f"{run.name}: {suite}", work.total) as progress:
        rows = work.measure(progress.advance)
    result = store.write_result(run.eval_folder, suite, settings, rows, time.monotonic() - start)
    say(f"{run.name}: {suite} measured in {result['seconds']:.0f} s ({run.eval_folder / suite}.json)")
    return result


def _documents(opened: OpenRun, config: EvalConfig) -> Documents:
    if opened.config.data.source == "task":
        raise NotApplicable("it was trained on a task and knows no text. suites=[recall] measures it.")
    if config.documents is None:
        return held_out(opened)
    data = opened.config.data
    return from_files(config.documents, opened.tokenizer, data.text_field)


def _common(opened: OpenRun, config: EvalConfig, device: str) -> dict[str, Any]:
    variant = opened.run.variant
    return {
        **({} if variant is None else {"variant": config.variants[variant]}),
        "train_length": opened.train_length,
        "step": opened.step,
        "weights": opened.digest,
        "device": device,
        "precision": config.precision,
    }


def machine(device: str) -> dict[str, Any]:
    """What speeds depend on besides the model."""
    return {"machine": device_name(device), "threads": torch.get_num_threads(), "torch": str(torch.__version__)}
