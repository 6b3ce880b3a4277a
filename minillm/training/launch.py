"""Start the processes of a run, one per device, and bring back how they ended.

    metrics = launch(cfg, folder, resume_from)

The processes are `minillm.training.rank`, started by torchrun's machinery (`torch.distributed.run` as a library) inside
this process: a free port for each job, one process group, no second copy of Hydra. Lightning's own `ddp` launcher would
run this program's command line again in every child, which in a multirun starts a sweep in each.

A program that is itself started by torchrun (several machines) is a rank already: `started_ranks` says so, and `share`
lets its first rank decide for all.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import minillm
from minillm.config.schema import Config
from minillm.errors import ConfigError, Interrupted, MinillmError
from minillm.training.run_folder import RunFolder

STOP_SECONDS = 120
"""How long ranks may take for their last checkpoint after Ctrl-C or SIGTERM. A second signal kills at once."""


class Ranks(NamedTuple):
    """This process's place among those that torchrun started."""

    rank: int
    world_size: int


class RankError(Exception):
    """A process of the run crashed: a bug, or it was killed. The message holds its traceback, or says where to look."""


def started_ranks() -> Ranks | None:
    """Our place where torchrun (or another launcher with its variables) started us, else None."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    return Ranks(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))


def needs_processes(cfg: Config, in_sweep: bool) -> bool:
    """Whether the run gets processes of its own. Jobs of a multirun do: nothing of one is left behind in the next."""
    return in_sweep or cfg.trainer.devices > 1 or cfg.trainer.strategy != "auto"


def check(cfg: Config, ranks: Ranks | None, in_sweep: bool) -> None:
    """Refuse what cannot be started here, before anything is written.

    Raises:
        ConfigError: devices that do not exist, several nodes without torchrun, a multirun under torchrun.
    """
    import torch

    trainer = cfg.trainer
    asked = trainer.devices * trainer.num_nodes
    gpus = torch.cuda.device_count()
    if trainer.accelerator == "gpu" and not gpus:
        raise ConfigError("trainer.accelerator = gpu: PyTorch sees no GPU here. Allowed: auto, cpu.")
    if trainer.accelerator != "cpu" and gpus and trainer.devices > gpus:
        raise ConfigError(
            f"trainer.devices = {trainer.devices}: this machine has {gpus} GPU(s). "
            "Give fewer devices, or trainer.accelerator=cpu for processes on the processor."
        )
    if ranks is None:
        if trainer.num_nodes > 1:
            raise ConfigError(
                f"trainer.num_nodes = {trainer.num_nodes}: several machines are started from outside, on each of them: "
                f"torchrun --nnodes={trainer.num_nodes} --nproc-per-node={trainer.devices} "
                "--rdzv-backend=c10d --rdzv-endpoint=FIRST_HOST:29500 train.py ..."
            )
    elif in_sweep:
        raise ConfigError("-m (--multirun) under torchrun: start it with plain python, which starts each job's ranks.")
    elif ranks.world_size != asked:
        raise ConfigError(
            f"torchrun started {ranks.world_size} processes, but trainer.devices * trainer.num_nodes = {asked}. "
            "Make them equal; several need trainer=ddp or trainer=fsdp."
        )


def launch(cfg: Config, folder: RunFolder, resume_from: Path | None) -> dict[str, float]:
    """Run `train_rank` in `cfg.trainer.devices` new processes; config.yaml in `folder` must hold `cfg`.

    Returns:
        What rank 0's `train_rank` returned.

    Raises:
        MinillmError: what a rank raised as such.
        Interrupted: after Ctrl-C or SIGTERM, which every rank was told of once.
        RankError: a rank crashed or was killed.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    with tempfile.TemporaryDirectory(prefix="minillm-") as reports, _own_environment(cfg.trainer.devices):
        config = LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=cfg.trainer.devices,
            run_id=uuid.uuid4().hex,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",  # any free port: jobs of two sweeps on one machine do not meet
            local_addr="127.0.0.1",
            max_restarts=0,
            logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
            signals_to_handle="SIGTERM,SIGINT",
            shutdown_timeout=STOP_SECONDS,
        )
        command = ["-m", "minillm.training.rank", str(folder.path), reports, str(os.getpid())]
        if resume_from is not None:
            command.append(str(resume_from))
        failure: str | None = None
        try:
            elastic_launch(config, sys.executable)(*command)
        except SignalException as stop:
            raise Interrupted(int(stop.sigval)) from None
        except ChildFailedError as error:
            rank, first = error.get_first_failure()
            failure = _describe(rank, first.exitcode, folder)
        return _outcome(_read(reports), failure)


def _outcome(reports: list[dict[str, Any]], failure: str | None) -> dict[str, float]:
    """Rank 0's numbers, or the one exception that explains best why there are none."""
    for report in reports:
        if "user_error" in report:
            raise MinillmError(report["user_error"])
    for report in reports:
        # A signal sent to one rank from outside stops them all, as one sent to this program does.
        if "signum" in report:
            raise Interrupted(report["signum"])
    if failure is not None:
        crashed = [r for r in reports if "traceback" in r]
        raise RankError(f"rank {crashed[0]['rank']} crashed:\n{crashed[0]['traceback']}" if crashed else failure)
    return next(r["metrics"] for r in reports if r["rank"] == 0)


def _describe(rank: int, exitcode: int, folder: RunFolder) -> str:
    where = "" if rank == 0 else f" Its output is in {folder.path / 'logs' / f'rank-{rank}.log'}."
    if exitcode == -signal.SIGKILL:
        return f"rank {rank} was killed (SIGKILL): most often memory ran out.{where}"
    if exitcode < 0:
        return f"rank {rank} died of {signal.Signals(-exitcode).name}.{where}"
    return f"rank {rank} ended with exit code {exitcode} and no word why.{where}"


def _read(reports: str) -> list[dict[str, Any]]:
    """The ranks' reports, earliest first: later ones are often consequences of the first."""
    found = [json.loads(path.read_text()) for path in Path(reports).glob("rank-*.json")]
    return sorted(found, key=lambda report: report["time"])


@contextmanager
def _own_environment(devices: int) -> Iterator[None]:
    """What the ranks need from this process's environment, taken back afterwards: nothing reaches the next job."""
    environment = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    logger = logging.getLogger("torch.distributed.elastic")
    level = logger.level
    package_root = Path(minillm.__file__).resolve().parents[1]
    if "site-packages" not in package_root.parts:  # a source tree: the ranks run the same one, from any folder
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(package_root), os.environ.get("PYTHONPATH"))))
    if devices > 1 and "OMP_NUM_THREADS" not in os.environ:
        # Each rank would take all cores otherwise, and they would fight for them.
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        os.environ["OMP_NUM_THREADS"] = str(max(1, cores // devices))
    logger.setLevel(logging.CRITICAL)  # what it would say of failed ranks, we say shorter
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(environment)
        logger.setLevel(level)
        for number, handler in handlers.items():
            signal.signal(number, handler)


def share(ranks: Ranks, value: dict[str, Any] | None, timeout: timedelta = timedelta(hours=2)) -> dict[str, Any]:
    """Give rank 0's `value` to all ranks that torchrun started; the others pass None and wait.

    Works before there is a process group, through torchrun's own key-value store.
    """
    import torch.distributed as dist

    store, _, _ = next(iter(dist.rendezvous("env://")))
    if ranks.rank == 0:
        store.set("minillm/start", json.dumps(value))
    store.wait(["minillm/start"], timeout)
    return dict(json.loads(store.get("minillm/start")))
