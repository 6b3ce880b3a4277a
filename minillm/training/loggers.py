"""wandb, TensorBoard and CSV beside metrics.jsonl, which is complete without them.

wandb is online with an API key and offline without one (`logger.mode=auto`); its files lie in the run folder. Points
are drawn over `trainer/global_step`, the update count. How a resumed run continues there:

    online    the same wandb run. After a crash the steps since the last checkpoint are drawn a second time: same
              x, same values. wandb's own step only ever grows, so no point is refused.
    offline   a wandb run of its own in the same group, named with the step it starts from: `wandb sync` of a second
              folder with the same id would replace the first part.

A missing package, a lost network or a wrong key costs a message and the dashboard, never the run.
"""

from __future__ import annotations

import netrc
import os
import uuid
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger, WandbLogger

from minillm.config.schema import Config, LoggerConfig
from minillm.errors import ConfigError
from minillm.training.ranks import say

INIT_SECONDS = 30
"""How long wandb may try to reach its server before the run goes on without it."""


def make_loggers(cfg: Config, run_dir: Path, step: int, wandb_id: str | None, record: dict[str, Any]) -> list[Logger]:
    """The loggers of `cfg.logger`, for rank 0 alone. `step` is where this part of the run begins.

    Args:
        wandb_id: of the run's earlier part, from its checkpoint.
        record: what to store as the run's configuration, nested plain values.
    """
    name = cfg.logger.name
    if name == "wandb":
        logger = _wandb(cfg.logger, run_dir, step, wandb_id, record)
        return [] if logger is None else [logger]
    if name == "csv":
        return [CSVLogger(run_dir, name="csv", version=f"from-step-{step}")]
    if name == "tensorboard":
        try:
            # Points after `step` that a crashed part has left are hidden.
            purge: dict[str, Any] = {"purge_step": step + 1} if step else {}
            return [TensorBoardLogger(run_dir, name="tensorboard", version="", default_hp_metric=False, **purge)]
        except ModuleNotFoundError:
            raise ConfigError(
                "logger=tensorboard: neither tensorboard nor tensorboardX is installed. "
                "`pip install tensorboard`, or use logger=csv, wandb or none."
            ) from None
    return []


def wandb_id_of(loggers: list[Logger]) -> str | None:
    """The id to keep in checkpoints, None without wandb."""
    return next((str(logger.version) for logger in loggers if isinstance(logger, WandbLogger)), None)


def close_loggers(loggers: list[Logger], exit_code: int) -> None:
    """Write out what is held back; a wandb run is marked failed unless `exit_code` is 0."""
    for logger in loggers:
        logger.finalize("success" if exit_code == 0 else "failed")
        if isinstance(logger, WandbLogger):
            logger.experiment.finish(exit_code=exit_code)


def _wandb(config: LoggerConfig, run_dir: Path, step: int, before: str | None, record: dict[str, Any]) -> Logger | None:
    mode = _mode(config)
    if mode == "disabled":
        return None
    same = before is not None and mode == "online"
    try:
        import wandb

        run = wandb.init(
            project=config.project,
            entity=config.entity,
            group=config.group or run_dir.name,
            tags=config.tags,
            name=run_dir.name if same or step == 0 else f"{run_dir.name}-from-step-{step}",
            id=before if same else uuid.uuid4().hex[:12],
            resume="allow",
            dir=str(run_dir),
            mode=mode,
            config=record,
            settings=wandb.Settings(silent=True, console="off", init_timeout=INIT_SECONDS),
        )
    except ImportError:
        say("wandb is not installed, so there is no dashboard; metrics.jsonl has everything.")
        return None
    except Exception as error:  # no network, no such project, a rejected key: each its own class in each version
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        say(f"wandb could not start ({reason}), so there is no dashboard; metrics.jsonl has everything.")
        return None
    run.define_metric("trainer/global_step")
    run.define_metric("*", step_metric="trainer/global_step")
    if mode == "offline":
        say(f"wandb is offline. To upload later: wandb sync {Path(run.dir).parent}")
    return WandbLogger(experiment=run)


def _mode(config: LoggerConfig) -> Any:
    """online, offline or disabled. With `auto` wandb's own variable decides, then whether there is a key."""
    if config.mode != "auto":
        return config.mode
    asked = os.environ.get("WANDB_MODE")
    if asked:
        return {"dryrun": "offline", "run": "online"}.get(asked, asked)
    return "online" if _has_key() else "offline"


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(str(host)) is not None
    except (OSError, netrc.NetrcParseError):
        return False
