"""Blocks under torch.compile, in two pieces: what stands before the scores of attention and what stands behind.

    compile_blocks(model)            # training steps then run the compiled pieces; state dict and modules are as before

Both pieces see tensors alone, so nothing of a layer's window, scheme or backend is in their graphs: layers of one
structure share a graph whatever their plans say, and a second sequence length makes it one for all lengths. Attention
itself stays what the backend makes of it (a fused kernel as it is). Without gradients (validation, decoding) and with a
cache the blocks run uncompiled: their many shapes would each be compiled anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:
    from minillm.model.decoder import Decoder

GRAPHS = 128
"""Most graphs of a piece: each structure of block has two, for the first length and for all others. torch's limit of 8
is passed by plans whose layers differ in norms, head counts or rotated widths."""


class Pieces(NamedTuple):
    """`Block.enter` and `Block.leave`, compiled."""

    enter: Callable[..., Any]
    leave: Callable[..., Any]


def compile_blocks(model: Decoder, backend: str = "inductor") -> None:
    """Let the training steps of `model` run compiled pieces. A piece that cannot be compiled whole is an error.

    `backend` is torch.compile's: "eager" captures the graphs and generates no code.
    """
    from minillm.model.block import Block

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, GRAPHS)
    enter, leave = (torch.compile(piece, fullgraph=True, backend=backend) for piece in (Block.enter, Block.leave))
    for block in model.layers:
        assert isinstance(block, Block)
        block.compiled = Pieces(enter, leave)
