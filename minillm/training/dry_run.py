"""What a run would be, without running it: the layer table, sizes, costs, memory. Nothing is built or written.

print(describe(cfg))          # python train.py dry_run=true ...
"""

from __future__ import annotations

from pathlib import Path

from minillm.config.schema import Config, ModelConfig
from minillm.config.table import layer_table
from minillm.model.cost import cost, kv_bytes, training_memory_bytes
from minillm.training import identity, train_only

MULTIPLES = (1, 2, 4, 8, 16)
"""Lengths at which the cache is priced, in training lengths."""
WITHOUT_TRAINING = 12
"""Bytes that a parameter saves which is not trained: its gradient and AdamW's two moments."""


def describe(cfg: Config, sweep_dir: Path | None = None) -> str:
    """The text of ``dry_run=true``. The vocabulary counts as asked: the tokenizer may turn out smaller."""
    model, seq_len, trainer = cfg.model, cfg.data.seq_len, cfg.trainer
    total = cost(model, seq_len)
    ranks = trainer.devices * trainer.num_nodes
    update = cfg.data.batch_size * seq_len
    lines = [
        heading(cfg),
        layer_table(model, seq_len),
        *(f"warning: {text}" for text in cfg.warnings),
        "",
        f"parameters      {count(total.parameters)} ({count(total.embedding_parameters)} in the embedding, "
        f"vocabulary {model.vocab_size})",
        *([] if cfg.train_only is None else [f"trained         {train_only.describe(model, cfg.train_only)}"]),
        f"FLOPs/token     {count(total.flops_per_token)} forward and backward at {seq_len} tokens; "
        f"{100 * total.attention_flops_share:.1f} % of them attention scores",
        f"run             {trainer.max_steps} updates of {update} tokens = {count(trainer.max_steps * update)} tokens, "
        f"{count(trainer.max_steps * update * total.flops_per_token)} FLOPs",
        "KV cache        of one sequence, in float32 (half of it in bfloat16):",
        *(f"  {seq_len * k:>8} tokens  {size(cache(model, seq_len * k)):>10}" for k in MULTIPLES),
        f"memory          {size(memory(cfg))} per process (estimate: weights, gradients, AdamW, activations of "
        f"{update // (ranks * trainer.accumulate)} tokens; PyTorch itself comes on top)",
        f"run folder      {identity.run_path(cfg.plain, sweep_dir)}",
    ]
    return "\n".join(lines)


def cache(model: ModelConfig, length: int) -> int:
    """Bytes of one sequence's keys and values after `length` tokens, in float32."""
    return sum(kv_bytes(spec, length) for spec in model.layers)


def memory(cfg: Config) -> int:
    """Bytes that one process needs at the peak of an update: an estimate, float32 throughout."""
    ranks = cfg.trainer.devices * cfg.trainer.num_nodes
    tokens = cfg.data.batch_size * cfg.data.seq_len // (ranks * cfg.trainer.accumulate)
    sizes = train_only.trained_sizes(cfg.model, cfg.train_only)
    frozen = cost(cfg.model, cfg.data.seq_len).parameters - sum(sizes.values())
    whole = training_memory_bytes(cfg.model, tokens, cfg.data.seq_len) - WITHOUT_TRAINING * frozen
    if cfg.trainer.strategy != "fsdp":
        return whole
    state = training_memory_bytes(cfg.model, 0, cfg.data.seq_len) - WITHOUT_TRAINING * frozen
    return whole - state + state // ranks


def heading(cfg: Config) -> str:
    """One line: which arm, block, size and data."""
    named = [f"{group}={cfg.choices[group]}" for group in ("model", "block", "size", "data") if group in cfg.choices]
    return "  ".join([*named, f"seed={cfg.seed}"])


def count(number: float) -> str:
    """A number as people say it: 2.10M."""
    for unit, factor in (("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if number >= factor:
            return f"{number / factor:.2f}{unit}"
    return f"{number:.0f}"


def size(number: float) -> str:
    """Bytes as people say them: 1.50 MiB."""
    for unit, factor in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if number >= factor:
            return f"{number / factor:.2f} {unit}"
    return f"{number:.0f} B"
