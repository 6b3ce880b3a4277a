"""`python train.py` and the command `minillm-train`: one run, or with -m a sweep of runs.

Exit codes: 0 done (also when the run was complete already), 2 the user can mend it (one paragraph says what), 1 a bug,
or a sweep in which jobs failed, 130 after Ctrl-C and 143 after SIGTERM, with a checkpoint written.
HYDRA_FULL_ERROR=1 shows the traceback of every error.
"""

from __future__ import annotations

import os
import shlex
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig
from omegaconf.errors import OmegaConfBaseException

from minillm.config.compose import loosen, plain_from_hydra
from minillm.config.hydra_errors import explain
from minillm.config.paths import conf_dir
from minillm.errors import Interrupted, MinillmError
from minillm.training import identity
from minillm.training.launch import RankError
from minillm.training.run import train
from minillm.training.run_folder import RunFolder, write_atomically


class Sweep:
    """What became of a multirun's jobs. A job's error goes to its own folder's error.txt, and the next job starts."""

    def __init__(self) -> None:
        self.jobs = 0
        self.failures: list[tuple[Path, str]] = []

    def failed(self, folder: RunFolder, overrides: Sequence[str], error: Exception) -> None:
        """Note it, in the folder too."""
        expected = isinstance(error, MinillmError)
        text = str(error) if expected else "".join(traceback.format_exception(error))
        self.failures.append((folder.path, text.strip().splitlines()[0 if expected else -1]))
        folder.path.mkdir(parents=True, exist_ok=True)
        write_atomically(folder.error, f"overrides: {shlex.join(overrides)}\n\n{text.rstrip()}\n")
        print(f"This job failed: {text.rstrip()}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        listed = "\n".join(f"  {path / 'error.txt'}: {first}" for path, first in self.failures)
        return f"{len(self.failures)} of {self.jobs} jobs of this sweep failed:\n{listed}"


def main() -> None:
    """Parse the command line, compose, train. Ends the process with the exit codes above if not with 0."""
    asked = os.environ.get("HYDRA_FULL_ERROR", "0")
    show_all = asked == "1"
    # Makes Hydra raise its errors to us, where they become one paragraph, instead of printing them and exiting with 1.
    os.environ["HYDRA_FULL_ERROR"] = "1"
    sys.argv[1:] = loosen(sys.argv[1:])
    sweep = Sweep()

    def task(composed: DictConfig) -> float | None:
        if HydraConfig.get().mode == RunMode.MULTIRUN:
            return _sweep_job(composed, sweep)
        try:
            return _single_run(composed)
        except MinillmError as error:
            if show_all:
                raise
            _exit(f"Error: {error}", 2)  # here, because Hydra would add words of its own

    program = hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="train")(task)
    try:
        program()
    except Interrupted as stop:
        _exit(f"Run {stop}. The same command goes on from its last checkpoint.", stop.exit_code)
    except KeyboardInterrupt:
        _exit("Interrupted.", 130)
    except Exception as error:
        if show_all:
            raise
        if sweep.failures:
            _exit(sweep.summary(), 1)
        if isinstance(error, RankError):
            _exit(f"Error: {error}", 1)
        if isinstance(error, MinillmError):
            _exit(f"Error: {error}", 2)
        # Hydra raises a plain ValueError for a group that is given a number or null.
        if isinstance(error, (HydraException, OmegaConfBaseException)) or "Config group override" in str(error):
            overrides = [a for a in sys.argv[1:] if "=" in a]
            _exit(f"Error: {explain(error, overrides, 'train')}", 2)
        raise
    finally:
        os.environ["HYDRA_FULL_ERROR"] = asked


def _single_run(composed: DictConfig) -> float | None:
    context = HydraConfig.get()
    overrides = list(context.overrides.task)
    return train(plain_from_hydra(composed, context.runtime.choices, overrides), overrides)


def _sweep_job(composed: DictConfig, sweep: Sweep) -> float | None:
    """One job of a multirun. Returns the number that a sweeper minimises."""
    context = HydraConfig.get()
    overrides = list(context.overrides.task)
    sweep_dir = Path(context.sweep.dir)
    sweep.jobs += 1
    folder = RunFolder(sweep_dir / f"job-{context.job.num}")  # until the settings give it its name
    plain: dict[str, Any] = {}
    try:
        plain = plain_from_hydra(composed, context.runtime.choices, overrides)
        folder = RunFolder(identity.run_path(plain, sweep_dir))
        if isinstance(plain.get("logger"), dict) and not plain["logger"].get("group"):
            plain["logger"]["group"] = sweep_dir.name
        print(f"\nJob {context.job.num}: {shlex.join(overrides)}", flush=True)
        return train(plain, overrides, sweep_dir)
    except Exception as error:
        # Raised on: the sweeper must know. `sys.exit` here would end the whole sweep.
        sweep.failed(_folder_by_weights(plain, sweep_dir) or folder, overrides, error)
        raise


def _folder_by_weights(plain: dict[str, Any], sweep_dir: Path) -> RunFolder | None:
    """The folder of a run that begins with given weights, which name it; None where there are none to be had."""
    if plain.get("init_from") is None:
        return None
    from minillm.training.init_from import resolve

    try:
        return RunFolder(identity.run_path(resolve(plain, sweep_dir)[0], sweep_dir))
    except MinillmError:
        return None


def _exit(text: str, code: int) -> NoReturn:
    print(text, file=sys.stderr, flush=True)
    sys.exit(code)


if __name__ == "__main__":
    main()
