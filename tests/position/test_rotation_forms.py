"""Three ways to write one rotation give one result, and a permutation of weights turns one layout into the other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import pytest
import torch
from torch import Tensor

from minillm.attention.tokens import StepContext, Tokens
from minillm.config.layers import LayerSpec, QKNorm
from minillm.config.schema import ModelConfig
from minillm.errors import MinillmError
from minillm.model.decoder import Decoder, build_model
from minillm.position import (
    LayerShape,
    half_to_interleaved,
    interleaved_to_half,
    rope_frequencies,
    rotate_complex,
)
from minillm.position.rope import RoPE

At = Callable[..., Tokens]
Layout = Literal["half", "interleaved"]
HEADS, KV_HEADS, WIDTH, HIDDEN = 6, 2, 12, 20  # heads * width is not the hidden size


def rotated(layout: Layout, x: Tensor, tokens: Tokens) -> Tensor:
    module = RoPE(theta=500.0, layout=layout).make(LayerShape(0, 2, 2, x.shape[-1]))
    assert module is not None
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    return module.rotate(x, tables)


def by_channel(reorder: Callable[[Tensor, int, int], Tensor], x: Tensor) -> Tensor:
    """`reorder` on the last axis of x (one head), where it is meant for the rows of a weight."""
    return reorder(x.movedim(-1, 0), 1, x.shape[-1]).movedim(0, -1)


@pytest.mark.bug("B042")
def test_half_split_interleaved_and_complex_are_one_rotation(at: At) -> None:
    x, tokens = torch.randn(2, 3, 5, WIDTH), at([[0, 1, 2, 50, 300], [7, 7, 0, 64, 1000]])
    frequencies, _ = rope_frequencies(RoPE(theta=500.0), WIDTH, 1)
    half = rotated("half", x, tokens)
    in_pairs = by_channel(half_to_interleaved, x)
    interleaved, as_complex = (
        rotated("interleaved", in_pairs, tokens),
        rotate_complex(in_pairs, tokens.position, frequencies),
    )
    assert torch.equal(by_channel(interleaved_to_half, interleaved), half)
    torch.testing.assert_close(by_channel(interleaved_to_half, as_complex), half, atol=1e-6, rtol=0)
    assert not torch.allclose(rotated("interleaved", x, tokens), half, atol=1e-2)


def test_the_complex_form_keeps_the_dtype_and_works_in_float64(at: At) -> None:
    x, tokens = torch.randn(1, 2, 3, 8), at([0, 257, 4000])
    frequencies = 1e4 ** (-torch.arange(4.0) / 4)
    exact = rotate_complex(x.double(), tokens.position, frequencies)
    assert exact.dtype == torch.float64
    half = rotate_complex(x.bfloat16(), tokens.position, frequencies)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(
        half.double(), rotate_complex(x.bfloat16().double(), tokens.position, frequencies), atol=2e-2, rtol=0
    )


def test_the_permutation_pairs_each_channel_with_its_partner_and_leaves_the_rest() -> None:
    rows = torch.arange(2 * 8)
    assert half_to_interleaved(rows, heads=2, rotary_dim=6).tolist() == [
        0, 3, 1, 4, 2, 5, 6, 7,
        8, 11, 9, 12, 10, 13, 14, 15,
    ]  # fmt: skip
    assert half_to_interleaved(rows, heads=1, rotary_dim=16).tolist() == [i // 2 + 8 * (i % 2) for i in range(16)]


@pytest.mark.parametrize("shape", [(HEADS * WIDTH, HIDDEN), (HEADS * WIDTH,)])
@pytest.mark.parametrize("rotary_dim", [0, 2, 6, WIDTH])
def test_each_permutation_undoes_the_other(shape: tuple[int, ...], rotary_dim: int) -> None:
    weight = torch.randn(shape)
    there = half_to_interleaved(weight, HEADS, rotary_dim)
    assert torch.equal(interleaved_to_half(there, HEADS, rotary_dim), weight)
    back = interleaved_to_half(weight, HEADS, rotary_dim)
    assert torch.equal(half_to_interleaved(back, HEADS, rotary_dim), weight)
    assert torch.equal(there, weight) == (rotary_dim <= 2)


def test_from_interleaved_it_is_the_reshape_by_which_llama_files_are_converted() -> None:
    weight = torch.randn(HEADS * WIDTH, HIDDEN)
    expected = weight.view(HEADS, WIDTH // 2, 2, HIDDEN).transpose(1, 2).reshape(HEADS * WIDTH, HIDDEN)
    assert torch.equal(interleaved_to_half(weight, HEADS, WIDTH), expected)


def decoder(layout: Layout, share: float, norm: QKNorm | None) -> Decoder:
    position = RoPE(theta=500.0, layout=layout, partial_rotary_factor=share)
    layers = tuple(LayerSpec(i, "all", position, HEADS, KV_HEADS, WIDTH, qk_norm=norm, qkv_bias=True) for i in range(2))
    return build_model(ModelConfig(50, HIDDEN, 48, 2, 64, layers)).eval()


@pytest.mark.bug("B042")
@pytest.mark.parametrize(
    "norm", [None, QKNorm("rms"), QKNorm("rms", over="full"), QKNorm("layernorm", order="after_rope")], ids=str
)
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_a_model_with_its_weights_permuted_is_the_same_model_in_the_other_layout(
    share: float, norm: QKNorm | None
) -> None:
    half, interleaved = decoder("half", share, norm), decoder("interleaved", share, norm)
    with torch.no_grad():  # biases and norms start at constants, which no order could change
        for parameter in half.layers.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    weights = half.state_dict()
    interleaved.load_state_dict(weights)
    ids = torch.randint(50, (2, 20))
    unchanged = interleaved(ids)
    q, k, rotary_dim = HEADS * WIDTH, KV_HEADS * WIDTH, int(WIDTH * share)
    for name, weight in weights.items():
        if ".qkv_proj." in name:
            weights[name] = torch.cat((
                half_to_interleaved(weight[:q], HEADS, rotary_dim),
                half_to_interleaved(weight[q : q + k], KV_HEADS, rotary_dim),
                weight[q + k :],
            ))  # fmt: skip
        elif ".q_norm." in name or ".k_norm." in name:
            weights[name] = half_to_interleaved(weight, len(weight) // WIDTH, rotary_dim)
    interleaved.load_state_dict(weights)
    torch.testing.assert_close(interleaved(ids), half(ids), atol=1e-5, rtol=0)
    assert not torch.allclose(unchanged, half(ids), atol=1e-3)


def test_rows_that_make_no_heads_and_odd_widths_are_refused() -> None:
    with pytest.raises(MinillmError, match="heads = 5: 12 rows"):
        half_to_interleaved(torch.zeros(12), 5, 2)
    for rotary_dim in (3, 8, -2):
        with pytest.raises(MinillmError, match=f"rotary_dim = {rotary_dim}: must be even and from 0 to .* 6"):
            interleaved_to_half(torch.zeros(12, 4), 2, rotary_dim)
