"""How a run is spread over processes: Lightning's strategy objects, and FSDP2 sharding of the decoder.

The processes exist already (`minillm.training.launch`, torchrun or SLURM started them), so every strategy here meets an
external launcher. Gradients are averaged over ranks by both strategies; the module scales its loss for that.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from lightning.pytorch.plugins.environments import LightningEnvironment
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy, Strategy
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from minillm.config.schema import ModelConfig, TrainerConfig
from minillm.model.decoder import Decoder, build_model
from minillm.training.train_only import freeze

FULL = StateDictOptions(full_state_dict=True, cpu_offload=True)
"""Whole tensors under plain names, on rank 0 alone where the model is sharded."""
FROM_RANK_0 = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)


def make_strategy(trainer: TrainerConfig, launched: bool) -> tuple[Strategy | str, list[Any]]:
    """The strategy and plugins for `lightning.Trainer`; `launched` says that a launcher made this process a rank.

    A process on its own needs neither DDP nor FSDP, whatever `trainer.strategy` says: there is nothing to share.
    """
    if not launched or trainer.strategy == "auto":
        # Named, because inside somebody's SLURM allocation Lightning would otherwise take this process for a rank.
        return "auto", [LightningEnvironment()]
    if trainer.strategy == "fsdp":
        ranks = trainer.devices * trainer.num_nodes
        return ModelParallelStrategy(ranks, 1, save_distributed_checkpoint=False), []
    return DDPStrategy(gradient_as_bucket_view=True), []


def build_sharded(
    config: ModelConfig,
    seed: int,
    mesh: DeviceMesh,
    weights: dict[str, Any] | None,
    train_only: Sequence[str] | None = None,
) -> Decoder:
    """A decoder sharded over `mesh`, block by block and the rest as the root, with `weights` or a random start.

    The modules are made on the meta device, sharded, and given memory for their shards only, so that no process holds
    the whole model. The random start is that of a run of one process.
    """
    decoder = build_model(config, device="meta")
    freeze(decoder, train_only)  # before sharding, which takes from each parameter whether it is trained
    for block in decoder.layers:
        fully_shard(block, mesh=mesh)
    fully_shard(decoder, mesh=mesh)
    # FSDP gathers weights around `forward`; `loss` is an entrance of its own.
    register_fsdp_forward_method(decoder, "loss")
    decoder.to_empty(device=mesh.device_type)
    if weights is None:
        decoder.reset_parameters(seed)
    else:
        set_model_state_dict(decoder, weights, options=FROM_RANK_0)
    return decoder


@contextmanager
def gradients_shared(strategy: Strategy, decoder: nn.Module, share: bool) -> Iterator[None]:
    """Around one micro-batch: only the last of an update (`share`) exchanges gradients between ranks."""
    if isinstance(decoder, FSDPModule):
        decoder.set_requires_gradient_sync(share)
        yield
    elif share or not hasattr(strategy, "block_backward_sync"):
        yield
    else:
        with strategy.block_backward_sync():
            yield


@contextmanager
def whole(decoder: nn.Module) -> Iterator[None]:
    """Gather sharded weights for calls that do not come in through `forward` or `loss`; a collective under FSDP."""
    sharded = [m for m in decoder.modules() if isinstance(m, FSDPModule)]
    for module in sharded:
        module.unshard()
    try:
        yield
    finally:
        for module in sharded:
            module.reshard()
