"""What the program says at a run's start and end. Texts only: nothing is read but samples.txt, nothing is written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from minillm.config.schema import Config
from minillm.config.table import layer_table
from minillm.model.cost import cost
from minillm.training import train_only
from minillm.training.dry_run import count, heading
from minillm.training.resume import Decision
from minillm.training.run_folder import RunFolder

if TYPE_CHECKING:
    from minillm.data import TrainingData


def start(cfg: Config, folder: RunFolder, decision: Decision, prepared: TrainingData) -> str:
    """The plan, what it costs, the data, and where the run begins. `cfg.model` has the real vocabulary size."""
    total = cost(cfg.model, cfg.data.seq_len)
    steps = cfg.trainer.max_steps
    lines = [
        heading(cfg),
        layer_table(cfg.model, cfg.data.seq_len),
        *(f"warning: {text}" for text in cfg.warnings),
        "",
        f"parameters   {count(total.parameters)}, {count(total.flops_per_token)} FLOPs per token",
        *([] if cfg.train_only is None else [f"trained      {train_only.describe(cfg.model, cfg.train_only)}"]),
        f"data         {prepared.describe(count)}, vocabulary {cfg.model.vocab_size}",
        *(f"note:        {note}" for note in prepared.notes),
        f"steps        {steps} of {cfg.data.batch_size} x {cfg.data.seq_len} tokens",
        f"run folder   {folder.path}",
    ]
    if cfg.trainer.stop_at_step is not None and cfg.trainer.stop_at_step < steps:
        lines.append(f"stops at     step {cfg.trainer.stop_at_step} (trainer.stop_at_step)")
    if decision.action == "resume":
        lines.append(f"resuming     after step {decision.step}, from {decision.checkpoint}")
        lines += [f"changed      {change}" for change in decision.changed]
    return "\n".join(lines)


def end(cfg: Config, folder: RunFolder, metrics: Mapping[str, float], xz: float | None, lengths: str | None) -> str:
    """What came out: validation loss, bits per byte beside `xz` (those of xz -9e), `lengths`, a sample, the folder."""
    step = int(metrics["step"])
    lines = ["", f"step {step} of {cfg.trainer.max_steps} done"]
    # A run that stops early has been validated only if a validation was due at that step.
    when = "final" if "final/loss" in metrics else "val"
    if f"{when}/loss" in metrics:
        lines.append(f"validation loss   {metrics[f'{when}/loss']:.4f} nats per token")
    if f"{when}/bits_per_byte" in metrics:
        beside = "" if xz is None else f" (xz -9e on the same text: {xz:.3f})"
        lines.append(f"bits per byte     {metrics[f'{when}/bits_per_byte']:.3f}{beside}")
    if f"{when}/token_accuracy" in metrics:
        right, exact = metrics[f"{when}/token_accuracy"], metrics[f"{when}/exact"]
        lines.append(f"accuracy          {right:.3f} of answer tokens, {exact:.3f} of samples with all answers right")
    if lengths is not None:
        lines += ["", lengths.rstrip(), ""]
    sample = last_sample(folder.samples)
    if sample:
        lines.append(f"sample            {sample!r}")
    if step < cfg.trainer.max_steps:
        lines.append("The same command with a later trainer.stop_at_step, or without it, goes on from here.")
    lines.append(f"run folder        {folder.path}")
    return "\n".join(lines)


def last_sample(path: Path) -> str | None:
    """The newest text in samples.txt, without its heading line."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None
    newest = text.rpartition("=== step ")[2].partition("\n")[2].strip()
    return newest or None
