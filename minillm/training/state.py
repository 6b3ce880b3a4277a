"""A run's whole state as plain values, and back: what a checkpoint holds and how a run goes on from it.

    key             content
    step            updates done; the file's name says the same
    state_dict      the decoder's weights under its own names, whole, whatever strategy trained them
    optimizer       AdamW's state by parameter name (no hyper-parameters: those are the configuration's)
    rng             generators of torch and Python
    tokens          target tokens trained on         seconds     training time so far
    point           what was measured at `step`      unfinished  validation and what follows it at `step` is still due
    loss_mean       the guard's running mean         wandb_id    the wandb run this one continues
    config          the resolved configuration, with the real vocabulary size
    layers          the expanded plan                tokenizer   tokenizer.json as text
    decided         precision, backends, device      version     of minillm

Weights and optimiser state are read and written by parameter name through torch's distributed state-dict functions,
so a checkpoint does not know whether one process, DDP or FSDP wrote it, and each reads the others'.
"""

from __future__ import annotations

import copy
import random
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_optimizer_state_dict,
)

from minillm.config.schema import Config
from minillm.training.parallel import FROM_RANK_0, FULL
from minillm.training.ranks import grouped

if TYPE_CHECKING:
    from minillm.training.module import TrainingModule


def capture(module: TrainingModule) -> dict[str, Any]:
    """The state of a run between two updates. Every rank must call it: gathering shards is a collective."""
    optimizer = module.optimizers(use_pl_optimizer=False)
    return {
        "version": _version(),
        "step": module.step,
        "tokens": module.tokens,
        "seconds": module.seconds(),
        "state_dict": get_model_state_dict(module.decoder, options=FULL),
        "optimizer": get_optimizer_state_dict(module.decoder, optimizer, options=FULL).get("state", {}),
        "rng": generator_states(),
        "loss_mean": module.guard.mean,
        "point": dict(module.point),
        "unfinished": module.unfinished,
        **module.fixed,
    }


def beginning(cfg: Config, weights: dict[str, Any], tokenizer: str) -> dict[str, Any]:
    """The state of a run that begins with given weights: step 0, no moments, nothing decided, to be measured first."""
    return {
        "version": _version(),
        "step": 0,
        "tokens": 0,
        "seconds": 0.0,
        "state_dict": weights,
        "optimizer": {},
        "rng": generator_states(),
        "loss_mean": None,
        "point": {"step": 0, "tokens": 0},
        "unfinished": True,
        **fixed_facts(cfg, cfg.model.vocab_size, tokenizer, {}, None),
    }


def fixed_facts(
    cfg: Config, vocab_size: int, tokenizer: str, decided: dict[str, Any], wandb_id: str | None
) -> dict[str, Any]:
    """The part of a checkpoint that is the same from the run's first to its last."""
    plain = copy.deepcopy(cfg.plain)
    plain["model"]["vocab_size"] = vocab_size
    return {
        "config": plain,
        "layers": [spec.to_dict() for spec in cfg.model.layers],
        "tokenizer": tokenizer,
        "decided": decided,
        "wandb_id": wandb_id,
    }


def _version() -> str:
    try:
        return version("minillm")
    except PackageNotFoundError:  # run from a source tree that is not installed
        return "source"


def restore_optimizer(decoder: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Put saved moments and counts back. Rates and decay stay what the configuration says."""
    hyper = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    named = {parameter: name for name, parameter in decoder.named_parameters()}
    groups = [
        {**values, "params": [named[p] for p in group["params"]]}
        for values, group in zip(hyper, optimizer.param_groups, strict=True)
    ]
    options = FROM_RANK_0 if grouped() else FULL
    set_optimizer_state_dict(decoder, optimizer, {"state": state, "param_groups": groups}, options=options)
    for group, values in zip(optimizer.param_groups, hyper, strict=True):
        group.update(values)


def generator_states() -> dict[str, Any]:
    """Every generator that training may draw from. The same on all ranks: they start from one seed."""
    states: dict[str, Any] = {"torch": torch.get_rng_state(), "python": list(random.getstate()[1])}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return states


def restore_generators(states: dict[str, Any]) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate((3, tuple(states["python"]), None))
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])
