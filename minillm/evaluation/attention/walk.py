"""One forward pass, with each layer's queries and keys handed to a function while they are there.

Layers run as they always do, on their own backend, so nothing of size T x T is held; queries and keys are projected a
second time for the function, and only one layer's are alive at a time::

    with watching(model, see):                     # see(layer, attention, x, context)
        model.hidden(tokens)
    with silenced(model, {(3, 0), (3, 2)}):        # heads 0 and 2 of layer 3 write nothing
        model.hidden(tokens)
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

from torch import Tensor
from torch.utils.hooks import RemovableHandle

from minillm.attention.tokens import StepContext
from minillm.model.attention import Attention
from minillm.model.block import Block
from minillm.model.decoder import Decoder

See = Callable[[int, Attention, Tensor, StepContext], None]
"""Called with the layer's index, its attention, what goes into it (B, T, D), and the call's context."""


@contextmanager
def watching(model: Decoder, see: See, after: Callable[[int, Tensor], None] | None = None) -> Iterator[None]:
    """`see` before each layer's attention; `after(layer, x)` with the stream (B, T, D) that leaves a layer, and with
    layer -1 for what enters the first."""
    hooks: list[RemovableHandle] = []

    def enters(module: Any, inputs: tuple[Any, ...]) -> None:
        if after is not None:
            after(-1, inputs[0])

    hooks.append(model.layers[0].register_forward_pre_hook(enters))
    for index, layer in enumerate(cast(Iterable[Block], model.layers)):

        def before(module: Any, inputs: tuple[Any, ...], index: int = index) -> None:
            see(index, module, inputs[0], inputs[1])

        def left(module: Any, inputs: Any, output: Tensor, index: int = index) -> None:
            if after is not None:
                after(index, output)

        hooks += [layer.attention.register_forward_pre_hook(before), layer.register_forward_hook(left)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def silenced(model: Decoder, heads: Collection[tuple[int, int]]) -> Iterator[None]:
    """Zero what the heads (layer, head) hand to the output projection."""
    hooks: list[RemovableHandle] = []
    for index, layer in enumerate(cast(Iterable[Block], model.layers)):
        own = sorted(head for at, head in heads if at == index)
        if not own:
            continue
        width = model.layer_specs[index].head_dim

        def drop(module: Any, inputs: tuple[Tensor], own: list[int] = own, width: int = width) -> tuple[Tensor]:
            split = inputs[0].unflatten(-1, (-1, width)).clone()
            split[..., own, :] = 0
            return (split.flatten(-2),)

        hooks.append(layer.attention.o_proj.register_forward_pre_hook(drop))
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
