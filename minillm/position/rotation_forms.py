"""The rotation as complex numbers, and the order of weights that turns one layout of pairs into the other.

A layout says which two channels of a head make a pair: `half` (i, i + R/2), as in Llama's, Gemma's and OLMo's
checkpoints for transformers, or `interleaved` (2i, 2i + 1), as in Meta's own Llama files, GPT-J and Cohere. The
rotation is the same up to the order of the channels, and scores do not see that order where queries and keys share it.
So a model of one layout is a model of the other once whatever writes the channels of q and k is put in order: the rows
of W_q and W_k, their biases, and the weights of a norm on q and k. Values keep theirs.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import MinillmError


def rotate_complex(
    x: Float[Tensor, "B N T R"], position: Int[Tensor, "#B T"], frequencies: Float[Tensor, "R2"]
) -> Float[Tensor, "B N T R"]:
    """Each pair of channels (2i, 2i + 1) as a complex number, times exp(1j * position * frequency[i]).

    The form of the RoFormer paper (arXiv 2104.09864, equation 13) and of Meta's Llama code. Layers use the form in
    real numbers (rope.py), which bf16 and compilers know; this one is for reading, and for proving the others.

    Args:
        x: queries or keys, all R channels of which are rotated.
        position: of each token.
        frequencies: (R/2,) radians per token.
    """
    pairs = torch.view_as_complex(x.to(torch.promote_types(x.dtype, torch.float32)).unflatten(-1, (-1, 2)).contiguous())
    angle = position[..., None].to(pairs.real.dtype) * frequencies.to(pairs.real.dtype)
    turned = pairs * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.view_as_real(turned).flatten(-2).to(x.dtype)


def half_to_interleaved(weight: Tensor, heads: int, rotary_dim: int) -> Tensor:
    """What writes the channels of q or k, made for layout `half`, in the order that layout `interleaved` needs.

    Channel i of each head's first half of rotated channels goes to 2i, its partner i + R/2 to 2i + 1; channels that are
    not rotated stay where they are.

    Args:
        weight: (heads * K, ...): rows of W_q (query heads) or W_k (key-value heads), their biases, or the weight of a
            norm over the full width; for a norm over each head (K,) and heads = 1.
        heads: how many heads its rows make.
        rotary_dim: R, the channels of a head that the rotation covers: all K, also under the proportional rule, or
            `RoPE.rotary_dim(K)` where partial.

    Raises:
        MinillmError: where the rows do not make so many heads, or R is odd or above K.
    """
    return _reorder(weight, heads, rotary_dim, (2, -1))


def interleaved_to_half(weight: Tensor, heads: int, rotary_dim: int) -> Tensor:
    """The inverse of `half_to_interleaved`, with the same arguments."""
    return _reorder(weight, heads, rotary_dim, (-1, 2))


def _reorder(weight: Tensor, heads: int, rotary_dim: int, pairs: tuple[int, int]) -> Tensor:
    rows = weight.shape[0]
    if heads < 1 or rows % heads:
        raise MinillmError(f"heads = {heads}: {rows} rows do not make so many heads of equal width.")
    width = rows // heads
    if rotary_dim % 2 or not 0 <= rotary_dim <= width:
        raise MinillmError(f"rotary_dim = {rotary_dim}: must be even and from 0 to the head's width, {width}.")
    if rotary_dim == 0:
        return weight.clone()
    split = weight.unflatten(0, (heads, width))
    turned, rest = split[:, :rotary_dim], split[:, rotary_dim:]
    turned = turned.unflatten(1, pairs).transpose(1, 2).flatten(1, 2)
    return torch.cat((turned, rest), dim=1).flatten(0, 1)
