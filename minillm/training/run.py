"""One run from its settings to its last number: refuse, prepare, start or go on, train, measure, say what came out.

    train(plain)                                   # as `python train.py`; returns the final validation loss

Nothing is written before the settings, the folder and the data have been found good.
"""

from __future__ import annotations

import dataclasses
import shlex
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.config.parse import parse_config
from minillm.config.schema import Config
from minillm.errors import MinillmError
from minillm.training import dry_run, identity, launch, resume
from minillm.training.launch import Ranks
from minillm.training.resume import Decision
from minillm.training.run_folder import RunFolder
from minillm.training.train_only import trained_sizes

if TYPE_CHECKING:
    from minillm.data import TrainingData
    from minillm.training.init_from import Start

METRIC = "final/loss"
"""What a run returns, for a sweeper to minimise: the validation loss when all steps are done."""


def train(plain: Mapping[str, Any], overrides: Sequence[str] = (), sweep_dir: Path | None = None) -> float | None:
    """Carry out the run that `plain` describes.

    Args:
        plain: the resolved configuration, as `Config.plain`.
        overrides: what the user changed on the command line, for starts.jsonl.
        sweep_dir: where run folders lie when this is a job of a multirun.

    Returns:
        The validation loss at the end, None for a dry run.

    Raises:
        MinillmError: what the user can mend. Nothing was lost.
        Interrupted: Ctrl-C or SIGTERM; the checkpoint is written.
    """
    cfg = parse_config(plain)
    if cfg.train_only is not None:
        trained_sizes(cfg.model, cfg.train_only)  # refuses a pattern that matches nothing
    if cfg.dry_run:
        cfg, start = _begin(cfg, sweep_dir)
        say(dry_run.describe(cfg, sweep_dir))
        if start is not None:
            say(f"\n{start.describe()}")
        return None
    ranks = launch.started_ranks()
    launch.check(cfg, ranks, in_sweep=sweep_dir is not None)
    if ranks is not None and ranks.rank > 0:
        return _follow(ranks)
    tell = _announcer(ranks)
    try:
        return _lead(cfg, overrides, sweep_dir, tell)
    except MinillmError as error:
        tell(error=str(error))
        raise


def _begin(cfg: Config, sweep_dir: Path | None) -> tuple[Config, Start | None]:
    """The settings with what given weights decide, and how the run would begin with them."""
    if cfg.init_from is None:
        return cfg, None
    from minillm.training import init_from

    plain, source = init_from.resolve(cfg.plain, sweep_dir)
    cfg = parse_config(plain)
    return cfg, None if source is None else init_from.check(source, cfg)


def _lead(cfg: Config, overrides: Sequence[str], sweep_dir: Path | None, tell: Callable[..., None]) -> float:
    """The run as the only process, or as the first of several: this one decides, writes and speaks."""
    from minillm.training import begin, init_from, summary

    cfg, start = _begin(cfg, sweep_dir)
    folder = RunFolder(identity.run_path(cfg.plain, sweep_dir))
    resume.check(folder, cfg.plain, cfg.resume)
    # Bad data must not leave a folder behind; a run that exists may be complete and need no data.
    prepared = None if folder.holds_a_run() else _prepare(cfg, folder, start)
    with folder.lock():
        decision = resume.decide(folder, cfg.plain, cfg.resume, cfg.trainer.max_steps, cfg.trainer.stop_at_step, say)
        if decision.action in ("complete", "stopped"):
            tell(done=True)
            return _nothing_to_do(cfg, folder, decision)
        if cfg.init_from is not None and start is None and decision.checkpoint is None:
            raise init_from.missing(cfg, folder)
        prepared = prepared or _prepare(cfg, folder, start)
        init_from.check_vocabulary(cfg, prepared.tokenizer)
        real = dataclasses.replace(cfg, model=begin.real_model(cfg, prepared.tokenizer))
        data = prepared.fingerprint
        if decision.checkpoint is not None:
            resume.check_data(folder, data, cfg.resume)
            if cfg.resume == "force":
                resume.check_weights(decision.checkpoint, real.model, cfg.train_only)
        folder.error.unlink(missing_ok=True)
        folder.write(real, prepared.tokenizer)
        folder.note_start(
            command=shlex.join(sys.argv),
            overrides=list(overrides),
            step=decision.step,
            changed=[str(change) for change in decision.changed],
            data=data,
            host=socket.gethostname(),
        )
        say(summary.start(real, folder, decision, prepared))
        checkpoint = decision.checkpoint
        if checkpoint is None and start is not None:
            say(start.describe())
            checkpoint = begin.lay_down(folder, real, start, prepared.tokenizer)
        del start  # the source's weights: training has its own
        tell(run_dir=str(folder.path), resume_from=checkpoint and str(checkpoint))
        xz = prepared.xz_bits_per_byte
        del prepared
        metrics = _train(cfg, folder, checkpoint, in_sweep=sweep_dir is not None)
        folder.write_result(metrics, cfg.trainer.max_steps, xz)
        complete = int(metrics["step"]) >= cfg.trainer.max_steps
        say(summary.end(cfg, folder, metrics, xz, _lengths(cfg, folder) if complete else None))
        return float(metrics.get(METRIC, float("nan")))


def _nothing_to_do(cfg: Config, folder: RunFolder, decision: Decision) -> float:
    """Say so, with what was measured when the run got there."""
    from minillm.training import summary

    result = folder.read_result() or {"metrics": {"step": decision.step}}
    metrics, xz = result["metrics"], result.get("xz_bits_per_byte")
    if decision.action == "complete":
        say(f"This run is complete: all {cfg.trainer.max_steps} steps are done, and nothing is left to do.")
        say(summary.end(cfg, folder, metrics, xz, _lengths(cfg, folder)))
    else:
        say(f"trainer.stop_at_step={cfg.trainer.stop_at_step} is reached: {decision.step} steps are done.")
        say(summary.end(cfg, folder, metrics, xz, None))
    return float(metrics.get(METRIC, float("nan")))


def _train(cfg: Config, folder: RunFolder, resume_from: Path | None, in_sweep: bool) -> dict[str, float]:
    if launch.started_ranks() is None and launch.needs_processes(cfg, in_sweep):
        return launch.launch(cfg, folder, resume_from)
    from minillm.training.worker import train_rank

    return train_rank(cfg, folder.path, resume_from)


def _prepare(cfg: Config, folder: RunFolder, start: Start | None) -> TrainingData:
    from minillm.data import open_data
    from minillm.training.begin import own_tokenizer

    own = own_tokenizer(cfg, folder.path) if start is None else start.source.tokenizer
    return open_data(cfg.data, cfg.tokenizer, own)


def _lengths(cfg: Config, folder: RunFolder) -> str | None:
    """Loss against length, far beyond the training length: measured now, or read where it was measured before."""
    if not cfg.eval_at_end:
        return None
    from minillm.evaluation import length_table

    return length_table(folder.path)


def _follow(ranks: Ranks) -> float | None:
    """A rank that torchrun started beside the first: do what the first decides, quietly."""
    from minillm.training.worker import train_rank

    decided = launch.share(ranks, None)
    if decided.get("error"):
        sys.exit(2)  # rank 0 says why
    if decided.get("done"):
        return None
    folder, checkpoint = RunFolder(decided["run_dir"]), decided["resume_from"]
    # The first rank's settings: they hold what given weights decided.
    metrics = train_rank(parse_config(folder.read_config()), folder.path, checkpoint and Path(checkpoint))
    return metrics.get(METRIC)


def _announcer(ranks: Ranks | None) -> Callable[..., None]:
    """Tells the other ranks, if there are any, what was decided; only the first word counts."""
    told = False

    def tell(**decided: Any) -> None:
        nonlocal told
        if ranks is not None and not told:
            launch.share(ranks, decided)
        told = True

    return tell


def say(text: str) -> None:
    print(text, flush=True)
