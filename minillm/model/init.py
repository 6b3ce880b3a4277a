"""Initial weights: a pure function of (seed, parameter name), so that arms that share a parameter share its start.

It also makes sharded and unsharded models start alike: every process draws the whole tensor and keeps its part.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import Tensor, nn

from minillm.config.schema import ModelConfig
from minillm.position.base import LayerPosition

BRANCH_OUTPUTS = ("o_proj.weight", "down_proj.weight")
"""Projections that write into the residual stream."""


@torch.no_grad()
def init_weights(model: nn.Module, config: ModelConfig, seed: int) -> None:
    """Fill every parameter in place: matrices normal, biases zero, norms at one, a scheme's own by its own rule.

    Matrices have standard deviation `config.initializer_range`, those that write into the residual stream less by
    sqrt(2 * num_hidden_layers) with `depth_scaled_init` (GPT-2). Modules with parameters that are neither Linear nor
    Embedding provide `reset_parameters`, drawing random numbers only from torch's default generator. They come last, so
    that a position scheme may fill matrices inside it by a rule of its own.
    """
    others = []
    for module_name, module in model.named_modules():
        if not isinstance(module, (nn.Linear, nn.Embedding)):
            if next(module.parameters(recurse=False), None) is not None or _fills_itself(module):
                others.append((module_name, module))
            continue
        for name, parameter in module.named_parameters(recurse=False):
            full_name = f"{module_name}.{name}"
            if parameter.ndim == 1:
                parameter.zero_()
                continue
            std = config.initializer_range
            if config.block.depth_scaled_init and full_name.endswith(BRANCH_OUTPUTS):
                std /= math.sqrt(2 * config.num_hidden_layers)
            _assign(parameter, _normal(parameter.shape, std, full_name, seed))
    for module_name, module in others:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_seed(module_name, seed))
            module.reset_parameters()


def _fills_itself(module: nn.Module) -> bool:
    """Position schemes may have a rule for the matrices below them and no parameter of their own."""
    return isinstance(module, LayerPosition) and hasattr(module, "reset_parameters")


def _seed(name: str, seed: int) -> int:
    # 32 bits: torch's CPU generator drops what is above them, so the seed must not stand there.
    return zlib.crc32(f"{seed}:{name}".encode())


def _normal(shape: torch.Size, std: float, name: str, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(_seed(name, seed))
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def _assign(parameter: Tensor, value: Tensor) -> None:
    """Copy `value` into `parameter`, or this process's part of it where the parameter is sharded."""
    mesh = getattr(parameter, "device_mesh", None)
    if mesh is not None:
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(parameter.device), mesh, parameter.placements)  # type: ignore[attr-defined]
    parameter.copy_(value)
