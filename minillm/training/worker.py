"""Training on one rank, from prepared data to the last checkpoint; in this process for one device.

    metrics = train_rank(cfg, Path("outputs/x"), resume_from=None)          # {"step": 600, "final/loss": 3.1, ...}

Every rank calls it with the same arguments. It reads and writes the run folder's metrics.jsonl, samples.txt,
decided.json, checkpoints/ and loggers' folders; the rest of the folder belongs to `minillm.training.run_folder`.
"""

from __future__ import annotations

import logging
import os
import random
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.loggers import Logger

from minillm.attention.backends import choose, require
from minillm.attention.machine import machine
from minillm.config.schema import Config, ModelConfig
from minillm.data import TrainingData, open_data
from minillm.errors import Interrupted
from minillm.training import ranks
from minillm.training.begin import own_tokenizer, real_model
from minillm.training.callbacks import metrics_file, sample
from minillm.training.callbacks.checkpoint import Checkpoints
from minillm.training.callbacks.decided_file import DecidedFile
from minillm.training.callbacks.length_probe import length_probe
from minillm.training.callbacks.logger import ToLoggers
from minillm.training.callbacks.metrics_file import MetricsFile
from minillm.training.callbacks.progress import ProgressLine
from minillm.training.callbacks.sample import Samples
from minillm.training.callbacks.task_validation import TaskValidation
from minillm.training.callbacks.validation import Validation
from minillm.training.checkpoint_io import read_checkpoint, remove_unfinished
from minillm.training.loggers import close_loggers, make_loggers, wandb_id_of
from minillm.training.module import TrainingModule
from minillm.training.parallel import make_strategy
from minillm.training.precision import Precision, decide
from minillm.training.signals import StopSignals
from minillm.training.state import fixed_facts


def train_rank(cfg: Config, run_dir: Path, resume_from: Path | None) -> dict[str, float]:
    """Train to `trainer.stop_at_step` or `trainer.max_steps`, from the start or from the checkpoint `resume_from`.

    Returns:
        The last point: `step`, `train/loss`, ..., and `final/loss`, `final/bits_per_byte` once max_steps are done.

    Raises:
        MinillmError: what the user can mend: data, a damaged checkpoint, a full disk, a diverging loss.
        Interrupted: after Ctrl-C or SIGTERM, once the checkpoint is written.
    """
    _quiet_lightning()
    run_dir.mkdir(parents=True, exist_ok=True)
    data = open_data(cfg.data, cfg.tokenizer, own_tokenizer(cfg, run_dir))
    checkpoint = None
    if resume_from is not None:
        # Under FSDP only the first rank's tensors are used, and the others need not have the memory for them.
        checkpoint = read_checkpoint(resume_from, lazily=int(os.environ.get("RANK", 0)) > 0)
    stop_at = min(cfg.trainer.max_steps, cfg.trainer.stop_at_step or cfg.trainer.max_steps)
    if checkpoint is not None and checkpoint["step"] >= stop_at and not checkpoint["unfinished"]:
        ranks.say(f"Nothing to train: {resume_from} has {checkpoint['step']} of {stop_at} updates.")
        return dict(checkpoint["point"])
    if cfg.trainer.num_threads is not None:
        torch.set_num_threads(cfg.trainer.num_threads)
    _seed(cfg.seed)
    with StopSignals() as signals:
        loggers: list[Logger] = []
        exit_code = 1
        try:
            module = _fit(cfg, run_dir, data, checkpoint, stop_at, signals, loggers)
            exit_code = 128 + module.stopping if module.stopping else 0
        finally:
            close_loggers(loggers, exit_code)
            if dist.is_initialized():
                dist.destroy_process_group()
    if module.stopping:
        raise Interrupted(module.stopping)
    return dict(module.point)


def _fit(
    cfg: Config,
    run_dir: Path,
    data: TrainingData,
    checkpoint: dict[str, Any] | None,
    stop_at: int,
    signals: StopSignals,
    loggers: list[Logger],
) -> TrainingModule:
    """Put the parts together and run Lightning's loop. Fills `loggers`, so that the caller can close them."""
    rank, world_size = int(os.environ.get("RANK", 0)), cfg.trainer.devices * cfg.trainer.num_nodes
    model = real_model(cfg, data.tokenizer)
    start = checkpoint["step"] if checkpoint is not None else 0
    strategy, plugins = make_strategy(cfg.trainer, launched="RANK" in os.environ)
    accelerator = _accelerator(cfg)
    precision, decided = _decide(cfg, model, "cuda" if accelerator == "gpu" else "cpu", checkpoint)
    wandb_id = checkpoint["wandb_id"] if checkpoint is not None else None
    if rank == 0:
        unfinished = checkpoint is not None and checkpoint["unfinished"]
        _go_back_to(start - 1 if unfinished else start, run_dir)
        used = ", ".join(f"{name} ({count})" for name, count in Counter(decided["backends"]).items())
        ranks.say(f"Attention by layers: {used}.")
        record = {**cfg.plain, "layer_table": [spec.to_dict() for spec in cfg.model.layers], "decided": decided}
        loggers += make_loggers(cfg, run_dir, start, wandb_id, record)
        wandb_id = wandb_id_of(loggers) or wandb_id

    fixed = fixed_facts(cfg, model.vocab_size, data.tokenizer.to_json(), decided, wandb_id)
    module = TrainingModule(cfg, model, precision, signals, fixed, checkpoint, updates=cfg.trainer.max_steps - start)
    train = data.train_loader(cfg.data, cfg.seed, cfg.trainer.max_steps, rank, world_size)
    train.load_state_dict({"next_update": start})
    some, every = (data.val_loader(cfg.data, rank, world_size, limit) for limit in (cfg.trainer.val_batches, None))
    validation = Validation if cfg.data.source != "task" else TaskValidation
    probe = length_probe(cfg, data)
    trainer = pl.Trainer(
        accelerator=accelerator,
        devices=cfg.trainer.devices,
        num_nodes=cfg.trainer.num_nodes,
        strategy=strategy,
        plugins=plugins,
        precision="32-true",  # weights; `Precision` puts autocast around the forward passes
        max_epochs=1,  # one epoch of `max_steps` batches: the loader runs across the ends of passes over the data
        limit_train_batches=stop_at - start,
        limit_val_batches=0,  # the Validation callback does it, in a fixed order with the checkpoint
        num_sanity_val_steps=0,
        logger=loggers or False,
        callbacks=[
            DecidedFile(run_dir / "decided.json"),
            validation(some, every, data.tokens_per_byte),
            *([probe] if probe is not None else []),
            MetricsFile(run_dir / "metrics.jsonl"),
            ToLoggers(),
            *([ProgressLine(stop_at)] if cfg.trainer.progress_bar else []),
            Samples(
                run_dir / "samples.txt",
                data.tokenizer,
                data.prompt(cfg.trainer.sample_prompt, cfg.trainer.sample_tokens),
            ),
            Checkpoints(run_dir / "checkpoints", stop_at),
        ],
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        use_distributed_sampler=False,  # the loader splits by rank itself
        default_root_dir=run_dir,
    )
    trainer.fit(module, train)
    return module


def _decide(
    cfg: Config, model: ModelConfig, device_type: str, checkpoint: dict[str, Any] | None
) -> tuple[Precision, dict[str, Any]]:
    """What `auto` stands for in this run, which its first part decides for all, and where its parts ran."""
    before = checkpoint["decided"] or None if checkpoint is not None else None  # at step 0 nothing is decided
    precision = decide(cfg.trainer.precision, device_type, before["precision"] if before else None)
    here = machine(device_type)._replace(dtype=precision.dtype)
    for spec in model.layers:
        require(model.backend, spec, here)
    # Batches say their documents, and be it that a row is one.
    backends = [
        choose(spec, cfg.data.seq_len, here, documents=True) if model.backend == "auto" else model.backend
        for spec in model.layers
    ]
    place = {
        "device": torch.cuda.get_device_name() if device_type == "cuda" else "cpu",
        "torch": str(torch.__version__),
    }
    if before is not None:
        for key, now in place.items():
            parts = before[key].split(", then ")
            place[key] = ", then ".join(parts if now in parts else [*parts, now])
    return precision, {"precision": precision.name, "backends": backends, **place}


def _go_back_to(step: int, run_dir: Path) -> None:
    """Drop what a killed part of the run has written after `step`: it is written again, the same."""
    metrics_file.keep_up_to(run_dir / "metrics.jsonl", step)
    sample.keep_up_to(run_dir / "samples.txt", step)
    remove_unfinished(run_dir / "checkpoints")


def _accelerator(cfg: Config) -> str:
    if cfg.trainer.accelerator != "auto":
        return cfg.trainer.accelerator
    return "gpu" if torch.cuda.is_available() else "cpu"


def _seed(seed: int) -> None:
    """The same on every rank; the model and the data have generators of their own."""
    torch.manual_seed(seed)
    random.seed(seed)


def _quiet_lightning() -> None:
    """Its messages are about a Trainer that users of this program do not see."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", module=r"lightning\.")
