"""Block slicing: right at every edge of window and block, and linear in the length."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minillm.attention import banded as banded_module
from minillm.attention import sdpa as sdpa_module
from minillm.attention.backends import attend
from minillm.attention.banded import blocks
from minillm.attention.mask import Call
from minillm.attention.slices import bands, fold, join, prefixes, unfold
from minillm.attention.tokens import StepContext, arrange
from minillm.config.layers import LayerSpec
from minillm.position.alibi import ALiBi
from tests.attention.cases import LAYOUTS, assert_same, layer, random_qkv, run


@pytest.mark.parametrize("kind", ["window", "chunk"])
@pytest.mark.parametrize("reach", [1, 2, 7, 16, 33, 64, 100])
def test_lengths_around_the_window_and_its_blocks(kind: str, reach: int) -> None:
    spec = layer(**{kind: reach})
    m, b = blocks(reach)
    edges = {n + d for n in (reach, m * b, m * b + b, 2 * reach, 3 * b) for d in (-1, 0, 1)}
    for length in sorted(n for n in edges if n > 0):
        for layout in ("one document", "packed documents"):
            tokens = LAYOUTS[layout](2, length)
            qkv = random_qkv(spec, 2, length)
            assert_same(run("banded", spec, qkv, tokens), run("reference", spec, qkv, tokens))


@given(
    length=st.integers(1, 150),
    reach=st.integers(1, 160),
    kind=st.sampled_from(["window", "chunk"]),
    layout=st.sampled_from(sorted(LAYOUTS)),
    batch=st.integers(1, 3),
)
@settings(max_examples=150)
def test_any_length_and_any_window_equal_the_reference(
    length: int, reach: int, kind: str, layout: str, batch: int
) -> None:
    spec = layer(**{kind: reach}, head_dim=4)
    tokens = LAYOUTS[layout](batch, length)
    qkv = random_qkv(spec, batch, length)
    assert_same(run("banded", spec, qkv, tokens), run("reference", spec, qkv, tokens))


@given(
    length=st.integers(2, 150),
    reach=st.integers(1, 50),
    kind=st.sampled_from(["window", "chunk"]),
    boundary=st.integers(1, 149),
)
@settings(max_examples=100)
def test_nothing_at_all_comes_from_other_documents_or_from_the_future(
    length: int, reach: int, kind: str, boundary: int
) -> None:
    spec = layer(**{kind: reach}, head_dim=4)
    boundary = min(boundary, length - 1)
    for ids in (None, (torch.arange(length) >= boundary)[None].long()):
        tokens = arrange(1, length, "cpu", ids)
        leaves = [x.requires_grad_() for x in random_qkv(spec, 1, length)]
        context = StepContext(tokens, contiguous=True)
        out = attend(*leaves, spec, tokens, tokens, context, None, "banded")
        earlier = torch.autograd.grad(out[:, :, :boundary].sum(), leaves, retain_graph=True)
        assert all((grad[:, :, boundary:] == 0.0).all() for grad in earlier)
        if ids is not None:
            later = torch.autograd.grad(out[:, :, boundary:].sum(), leaves)
            assert all((grad[:, :, :boundary] == 0.0).all() for grad in later)


@pytest.mark.parametrize("reach", [*range(1, 200), 255, 256, 257, 512, 4096])
def test_the_blocks_before_a_block_hold_all_that_its_first_row_sees(reach: int) -> None:
    m, b = blocks(reach)
    assert m >= 1
    assert m * b >= reach - 1
    assert (m - 1) * b < max(reach - 1, 1)  # and none in vain


def scores_of(spec: LayerSpec, length: int, layout: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Scores and mask entries of one forward pass."""
    scores: list[int] = []
    fused = sdpa_module.fused

    def counted(q, k, v, mask, scale, causal=False, sinks=None):  # type: ignore[no-untyped-def]
        scores.append(q.shape[0] * q.shape[2] * k.shape[2] + (0 if mask is None else mask.numel()))
        return fused(q, k, v, mask, scale, causal, sinks)

    with monkeypatch.context() as patched:
        patched.setattr(banded_module, "fused", counted)
        patched.setattr(sdpa_module, "fused", counted)
        run("banded", spec, random_qkv(spec, 1, length), LAYOUTS[layout](1, length), backward=False)
    return sum(scores)


@pytest.mark.parametrize("layout", ["one document", "packed documents"])
@pytest.mark.parametrize("kind", ["window", "chunk"])
def test_twice_the_length_costs_twice_as_many_scores(kind: str, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    totals = [scores_of(layer(**{kind: 32}), length, layout, monkeypatch) for length in (512, 1024, 2048)]
    assert totals[1] <= 2.1 * totals[0]
    assert totals[2] <= 2.1 * totals[1]
    assert totals[2] < 2048 * 32 * 5  # scores and mask entries; the square alone is 64 times 2048 * 32


@pytest.mark.parametrize("kept", [1, 3, 30, 90])
@pytest.mark.parametrize("window", [1, 2, 7, 20, 64])
def test_kept_first_tokens_are_seen_once_whether_in_the_window_or_beyond(window: int, kept: int) -> None:
    spec = layer(window=window, sink_tokens=kept)
    m, b = blocks(window + kept)
    for length in sorted({window, window + kept, m * b, m * b + 1, m * b + 2 * b + 3, 301}):
        for layout in ("one document", "packed documents"):
            tokens = LAYOUTS[layout](2, length)
            qkv = random_qkv(spec, 2, length)
            assert_same(run("banded", spec, qkv, tokens), run("reference", spec, qkv, tokens))


@pytest.mark.parametrize("fields", [{"position": ALiBi()}, {"sink_logits": True}], ids=["bias", "sink logits"])
def test_kept_first_tokens_meet_biases_and_sink_logits(fields: dict[str, Any]) -> None:
    spec = layer(window=20, sink_tokens=3, **fields)
    tokens = arrange(2, 203, "cpu")
    qkv = random_qkv(spec, 2, 203)
    assert_same(run("banded", spec, qkv, tokens), run("reference", spec, qkv, tokens))


def test_twice_the_length_with_kept_tokens_costs_twice_as_many_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    totals = [scores_of(layer(window=32, sink_tokens=4), n, "one document", monkeypatch) for n in (512, 1024, 2048)]
    assert totals[1] <= 2.1 * totals[0]
    assert totals[2] <= 2.1 * totals[1]


def test_one_small_mask_serves_all_blocks_of_one_document() -> None:
    spec = layer(window=32)
    tokens = arrange(1, 2048, "cpu")
    m, b = blocks(32)
    call = Call(*random_qkv(spec, 1, 2048), spec, tokens, tokens, StepContext(tokens, contiguous=True), None)
    assert banded_module._mask(call, m, b, count=2048 // b - m).shape == (1, 1, b, (m + 1) * b)


def test_the_backward_of_prefixes_is_that_of_slices() -> None:
    x = torch.randn(2, 3, 7, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: prefixes(x, [3, 5, 7]), x)
    assert [part.shape[2] for part in prefixes(x, [3, 5, 7])] == [3, 5, 7]


@pytest.mark.parametrize("length", [12, 11, 9], ids=["whole blocks", "one row short", "one row over"])
def test_the_backward_of_bands_is_that_of_slices(length: int) -> None:
    x = torch.randn(2, 2, length, 2, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: bands(x, 2, 4), x)
    head, parts = bands(x, 2, 4)
    assert torch.equal(head, x[:, :, :8])
    assert torch.equal(parts[0, :, :length], x[0])
    assert (parts[0, :, length:] == 0).all()


def test_folding_and_unfolding_are_each_others_inverse() -> None:
    x = torch.randn(2, 3, 12, 4)
    folded = fold(x, 4)
    assert folded.shape == (6, 3, 4, 4)
    assert torch.equal(folded[1], x[0, :, 4:8])
    assert torch.equal(unfold(folded, 2), x)
    assert torch.equal(join(x.split(5, dim=2)), x)
