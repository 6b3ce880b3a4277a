"""`varlen`: where documents begin and which window the kernel is asked for, through a plain form of its arithmetic."""

from __future__ import annotations

import dataclasses
import itertools
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minillm.attention import backends
from minillm.attention import varlen as varlen_module
from minillm.attention.backends import BACKENDS, check
from minillm.attention.machine import Machine
from minillm.attention.tokens import arrange
from minillm.attention.varlen import Pieces, missing, pieces, window_size
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError, MinillmError
from minillm.position.alibi import ALiBi
from tests.attention.cases import LAYOUTS, assert_same, layer, random_qkv, run


def flash(q: Tensor, k: Tensor, v: Tensor, made: Pieces, scale: float, window: tuple[int, int]) -> Tensor:
    """FlashAttention's varlen interface, document by document: query i sees keys i - left .. i + right, -1 is no bound
    (flash_attn_interface.py of flash-attention, "If window_size != (-1, -1)")."""
    left, right = window
    out = torch.empty_like(q)
    bounds = made.starts.tolist()
    assert bounds[0] == 0
    assert bounds[-1] == len(q)
    for start, stop in itertools.pairwise(bounds):
        assert 0 < stop - start <= made.longest
        groups = q.shape[1] // k.shape[1]
        scores = torch.einsum("qhd,khd->hqk", q[start:stop], k[start:stop].repeat_interleave(groups, dim=1)) * scale
        query, key = torch.arange(stop - start)[:, None], torch.arange(stop - start)
        hidden = torch.zeros(stop - start, stop - start, dtype=torch.bool)
        if left >= 0:
            hidden |= key < query - left
        if right >= 0:
            hidden |= key > query + right
        probs = scores.masked_fill(hidden, float("-inf")).softmax(dim=-1)
        out[start:stop] = torch.einsum("hqk,khd->qhd", probs, v[start:stop].repeat_interleave(groups, dim=1))
    return out


@pytest.fixture
def kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(varlen_module, "_kernel", flash)
    here = dataclasses.replace(BACKENDS["varlen"], missing=lambda spec, machine: None)
    monkeypatch.setitem(backends.BACKENDS, "varlen", here)


@pytest.mark.usefixtures("kernel")
@pytest.mark.bug("B003")
@pytest.mark.bug("B012")
@pytest.mark.bug("B014")
@pytest.mark.bug("B015")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("window", [None, 1, 2, 20, 49, 50, 51])
def test_it_equals_the_reference_forward_and_backward(window: int | None, layout: str) -> None:
    for heads, kv_heads in ((4, 2), (3, 1), (2, 2)):
        spec = layer(window=window, heads=heads, kv_heads=kv_heads, scale=0.3)
        tokens, qkv = LAYOUTS[layout](2, 50), random_qkv(spec, 2, 50)
        assert_same(run("varlen", spec, qkv, tokens), run("reference", spec, qkv, tokens))


@given(
    data=st.data(), length=st.integers(1, 40), batch=st.integers(1, 3), window=st.one_of(st.none(), st.integers(1, 45))
)
@settings(max_examples=150)
def test_any_documents_with_padding_on_either_side_equal_the_reference(data, length, batch, window) -> None:  # type: ignore[no-untyped-def]
    ids = torch.empty(batch, length, dtype=torch.int64)
    for row in range(batch):
        steps = data.draw(st.lists(st.booleans(), min_size=length, max_size=length))
        ids[row] = torch.tensor(steps).long().cumsum(0)
        left, right = data.draw(st.integers(0, length // 2)), data.draw(st.integers(0, length // 2))
        ids[row, :left] = -1
        ids[row, length - right :] = -1
    spec = layer(window=window, heads=2, kv_heads=1, head_dim=4)
    tokens, qkv = arrange(batch, length, "cpu", ids), random_qkv(spec, batch, length)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(varlen_module, "_kernel", flash)
        here = dataclasses.replace(BACKENDS["varlen"], missing=lambda spec, machine: None)
        patch.setitem(backends.BACKENDS, "varlen", here)
        got = run("varlen", spec, qkv, tokens, backward=False)
    assert_same(got, run("reference", spec, qkv, tokens, backward=False))


def made_of(ids: Tensor) -> Pieces:
    made = pieces(arrange(*ids.shape, "cpu", ids), *ids.shape)
    assert made is not None
    return made


def test_documents_begin_where_ids_change_and_each_padding_token_is_one() -> None:
    ids = torch.tensor([[-1, -1, 7, 7, 7, 3], [5, 5, 9, -1, 2, 2]])
    made = made_of(ids)
    assert made.starts.tolist() == [0, 1, 2, 5, 6, 8, 9, 10, 12]
    assert made.starts.dtype == torch.int32
    assert made.longest == 3
    rows = pieces(arrange(3, 6, "cpu"), 3, 6)
    assert rows is not None
    assert rows.starts.tolist() == [0, 6, 12, 18]
    # Two rows that end and begin with the same id are two documents.
    assert made_of(torch.zeros(2, 2, dtype=torch.int64)).starts.tolist() == [0, 2, 4]


@pytest.mark.usefixtures("kernel")
@pytest.mark.parametrize("window", [None, 2])
def test_a_document_around_padding_stays_one(window: int | None) -> None:
    broken, whole = torch.tensor([[4, 4, -1, 4, 5, -1]]), torch.tensor([[4, 4, -1, 5, 5, -1]])
    assert pieces(arrange(1, 6, "cpu", broken), 1, 6) is None
    assert pieces(arrange(1, 6, "cpu", whole), 1, 6) is not None
    spec = layer(window=window)
    tokens, qkv = arrange(1, 6, "cpu", broken), random_qkv(spec, 1, 6)
    assert_same(run("varlen", spec, qkv, tokens), run("reference", spec, qkv, tokens))


def test_the_kernels_left_does_not_count_the_query() -> None:
    assert window_size(1, 100) == (0, 0)
    assert window_size(20, 100) == (19, 0)
    assert window_size(99, 100) == (98, 0)
    assert window_size(100, 100) == window_size(None, 100) == (-1, 0)  # plain causal, which kernels have a path for


GPU = Machine("cuda", torch.bfloat16, True, flex=True, varlen=True, varlen_windows=True)


@pytest.mark.bug("B021")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(layer(position=ALiBi()), "position 'alibi'.*'reference' can", id="a bias"),
        pytest.param(layer(softcap=2.0), "softcap.*'flex' and 'reference' can", id="a soft cap"),
        pytest.param(layer(chunk=8), "chunks.*'banded' and 'flex' can", id="chunks"),
        pytest.param(layer(window=8, sink_tokens=2), "first tokens.*'flex' and 'sdpa' can", id="kept tokens"),
        pytest.param(layer(sink_logits=True), "sink logits.*'flex' and 'sdpa' can", id="sinks"),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(spec: LayerSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=f"'varlen' cannot compute layer 0 .*{message}"):
        check("varlen", spec)


def test_on_cpu_it_is_refused_and_one_that_is_there_is_named() -> None:
    spec = layer(window=4)
    with pytest.raises(MinillmError, match=r"'varlen' cannot compute layer 0 .* NVIDIA GPUs, not on cpu; 'sdpa' can"):
        run("varlen", spec, random_qkv(spec, 1, 8), arrange(1, 8, "cpu"))


def test_a_gpu_without_its_kernel_is_refused_with_the_reason() -> None:
    assert missing(layer(window=4), GPU) is None
    assert "half precision, here is float32" in str(missing(layer(), GPU._replace(dtype=torch.float32)))
    assert "has no varlen_attn" in str(missing(layer(), GPU._replace(varlen=False)))
    assert "takes no windows" in str(missing(layer(window=4), GPU._replace(varlen_windows=False)))
    assert missing(layer(), GPU._replace(varlen_windows=False)) is None
    assert "this layer's have 12" in str(missing(layer(head_dim=12), GPU))


@pytest.mark.parametrize(
    "known",
    [
        {"scale", "window_size", "enable_gqa"},  # torch 2.13
        {"scale", "window_size"},  # torch 2.11
        {"is_causal"},  # torch 2.10
    ],
    ids=["2.13", "2.11", "2.10"],
)
def test_the_call_is_worded_as_the_installed_torch_wants_it(known: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    spec = layer(head_dim=8, scale=0.3)

    def varlen_attn(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, **options):  # type: ignore[no-untyped-def]
        assert set(options) <= known
        assert q.shape[1] == k.shape[1] or options["enable_gqa"]
        made = Pieces(cu_seq_q, max_q)
        window = options.get("window_size", (-1, 0) if options.get("is_causal") else (-1, -1))
        return flash(q, k, v, made, options.get("scale", q.shape[-1] ** -0.5), window)

    module = type(sys)("torch.nn.attention.varlen")
    module.varlen_attn = varlen_attn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", module)
    monkeypatch.setattr(varlen_module, "varlen_arguments", lambda: frozenset(known))
    here = dataclasses.replace(BACKENDS["varlen"], missing=lambda spec, machine: None)
    monkeypatch.setitem(backends.BACKENDS, "varlen", here)
    tokens, qkv = LAYOUTS["packed documents"](2, 30), random_qkv(spec, 2, 30)
    assert_same(run("varlen", spec, qkv, tokens), run("reference", spec, qkv, tokens))
