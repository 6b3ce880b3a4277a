"""`flex`: every mask and score function against the reference, forward and backward, through torch's flex_attention.

On CPU torch refuses gradients for it at the door, though its plain path has them: tests open that door, so that what is
compared is torch's own handling of our functions. Only the GPU kernel itself is left to `make gpu-check`.
"""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.attention import flex_attention as torch_flex

from minillm.attention import backends, flex_mask
from minillm.attention import flex as flex_module
from minillm.attention.backends import BACKENDS, attend, check
from minillm.attention.cache import KVCache
from minillm.attention.flex_mask import block_map, block_mask, mask_function
from minillm.attention.mask import Call, visible
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError, MinillmError
from minillm.position.alibi import ALiBi
from minillm.position.base import LayerPosition, PositionScheme
from minillm.position.nope import NoPE
from minillm.position.shaw import Shaw
from minillm.position.t5 import T5
from tests.attention.cases import LAYOUTS, AbsoluteBias, layer, random_qkv, sink_logits

MASKS = {
    "full": {},
    "window of 1": {"window": 1},
    "window of 20": {"window": 20},
    "window of 128": {"window": 128},
    "chunk of 20": {"chunk": 20},
    "window of 20 with sinks": {"window": 20, "sink_logits": True},
    "window of 20 and 3 kept": {"window": 20, "sink_tokens": 3},
    "soft cap": {"softcap": 2.0},
    "soft cap, window, sinks, kept": {"softcap": 2.0, "window": 9, "sink_logits": True, "sink_tokens": 2},
}
POSITIONS: dict[str, PositionScheme] = {
    "no bias": NoPE(),
    "alibi": ALiBi(),
    "learned alibi": ALiBi(learned=True),
    "t5": T5(num_buckets=8, max_distance=30),
}


def module_of(spec: LayerSpec) -> LayerPosition | None:
    """With other numbers than those it starts from."""
    module = spec.position.make(spec.shape)
    if module is not None:
        for parameter in module.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(5))
    return module


def outcome(backend: str, spec: LayerSpec, qkv: list[Tensor], tokens: Tokens, backward: bool) -> list[Tensor]:
    """The output, and the gradients of all that has one."""
    leaves = [x.detach().clone().requires_grad_(backward) for x in qkv]
    module, sinks = module_of(spec), sink_logits(spec)
    with torch.set_grad_enabled(backward):
        out = attend(*leaves, spec, tokens, tokens, StepContext(tokens, True), module, backend, sinks)
    if not backward:
        return [out]
    trained = [*leaves, *([] if module is None else module.parameters()), *([] if sinks is None else [sinks])]
    weight = torch.linspace(-1, 1, out.numel()).reshape(out.shape)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), trained)]


def assert_equal_to_the_reference(spec: LayerSpec, tokens: Tokens, batch: int, backward: bool) -> None:
    qkv = random_qkv(spec, batch, tokens.index.shape[1])
    got, wanted = (outcome(backend, spec, qkv, tokens, backward) for backend in ("flex", "reference"))
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's formula without torch.compile around it: quick, and exact for all but what score functions capture."""
    monkeypatch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)


@pytest.fixture
def gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The door that torch shuts on CPU, open."""
    monkeypatch.setattr(torch_flex, "_validate_device", lambda *tensors: None)
    opened = dataclasses.replace(BACKENDS["flex"], missing=lambda spec, machine: None)
    monkeypatch.setitem(backends.BACKENDS, "flex", opened)


@pytest.mark.usefixtures("plain")
@pytest.mark.bug("B003")
@pytest.mark.bug("B012")
@pytest.mark.bug("B014")
@pytest.mark.bug("B015")
@pytest.mark.bug("B021")
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", MASKS)
def test_every_mask_and_score_function_equals_the_reference(mask: str, layout: str) -> None:
    for position in POSITIONS.values():
        spec = layer(**MASKS[mask], position=position)
        assert_equal_to_the_reference(spec, LAYOUTS[layout](2, 131), 2, backward=False)


@pytest.mark.usefixtures("gradients")
@pytest.mark.bug("B024")
@pytest.mark.parametrize(
    ("mask", "layout", "position"),
    [
        ("full", "packed documents", "no bias"),
        ("window of 20", "one document", "alibi"),
        ("window of 20", "packed documents", "learned alibi"),
        ("chunk of 20", "padded rows", "t5"),
        ("window of 20 with sinks", "positions of each row", "learned alibi"),
        ("window of 20 and 3 kept", "packed documents", "t5"),
        ("soft cap, window, sinks, kept", "padded rows", "alibi"),
    ],
)
def test_every_gradient_equals_the_references(mask: str, layout: str, position: str) -> None:
    spec = layer(**MASKS[mask], position=POSITIONS[position])
    assert_equal_to_the_reference(spec, LAYOUTS[layout](2, 131), 2, backward=True)


@pytest.mark.usefixtures("plain")
@pytest.mark.parametrize("window", [1, 2, 63, 127, 128, 129, 256])
def test_lengths_around_the_window(window: int) -> None:
    spec = layer(window=window, head_dim=4)
    for length in (window - 1, window, window + 1, 2 * window + 1):
        if length > 0:
            for layout in ("one document", "packed documents"):
                assert_equal_to_the_reference(spec, LAYOUTS[layout](2, length), 2, backward=False)


@given(
    length=st.integers(1, 150),
    mask=st.one_of(
        st.builds(dict, window=st.integers(1, 160), sink_tokens=st.one_of(st.none(), st.integers(1, 5))),
        st.builds(dict, chunk=st.integers(1, 160)),
        st.just({}),
    ),
    fields=st.fixed_dictionaries({"softcap": st.sampled_from([None, 3.0]), "sink_logits": st.booleans()}),
    position=st.sampled_from(sorted(POSITIONS)),
    layout=st.sampled_from(sorted(LAYOUTS)),
    heads=st.sampled_from([(4, 4), (4, 2), (6, 2), (3, 1)]),
    batch=st.integers(1, 3),
)
@settings(max_examples=60)
def test_random_layers_equal_the_reference(length, mask, fields, position, layout, heads, batch) -> None:  # type: ignore[no-untyped-def]
    spec = layer(**mask, **fields, heads=heads[0], kv_heads=heads[1], head_dim=4, position=POSITIONS[position])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
        assert_equal_to_the_reference(spec, LAYOUTS[layout](batch, length), batch, backward=False)


def dense(spec: LayerSpec, tokens: Tokens, batch: int) -> Tensor:
    """(B, T, T): the mask function at every pair."""
    length = tokens.index.shape[1]
    b, q, k = torch.meshgrid(torch.arange(batch), torch.arange(length), torch.arange(length), indexing="ij")
    return mask_function(spec.mask_key, flex_mask._rows(tokens, batch))(b, torch.zeros_like(b), q, k)


@given(
    length=st.integers(1, 90),
    mask=st.one_of(
        st.builds(dict, window=st.integers(1, 99), sink_tokens=st.one_of(st.none(), st.integers(1, 40))),
        st.builds(dict, chunk=st.integers(1, 99)),
        st.just({}),
    ),
    layout=st.sampled_from(sorted(LAYOUTS)),
    batch=st.integers(1, 3),
    size=st.sampled_from([4, 8, 16]),
)
@settings(max_examples=200)
def test_no_block_that_is_seen_is_left_out_and_no_hidden_pair_is_in_a_full_one(
    length, mask, layout, batch, size
) -> None:  # type: ignore[no-untyped-def]
    spec, tokens = layer(**mask), LAYOUTS[layout](batch, length)
    seen = visible(spec.mask_key, tokens, tokens).expand(batch, -1, -1)
    assert torch.equal(dense(spec, tokens, batch), seen)
    some, every = block_map(spec.mask_key, tokens, length, size)
    blocks = torch.zeros(batch, *(2 * [-(-length // size) * size]), dtype=torch.bool)
    blocks[:, :length, :length] = seen
    blocks = blocks.unflatten(2, (-1, size)).unflatten(1, (-1, size))
    wanted_some, wanted_every = blocks.any(dim=4).any(dim=2), blocks.all(dim=4).all(dim=2)
    assert (some | ~wanted_some).all()
    assert (wanted_every | ~every).all()
    if layout == "one document":  # nothing is computed in vain there
        assert torch.equal(some, wanted_some[:1])
        kept = spec.sink_tokens is not None  # a block may be full by window in part and by kept tokens in part
        assert kept or torch.equal(every, wanted_every[:1])


@pytest.mark.parametrize("mask", ["full", "window of 20", "window of 128", "chunk of 20", "window of 20 and 3 kept"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_block_mask_is_that_of_torch(mask: str, layout: str) -> None:
    spec, tokens = layer(**MASKS[mask]), LAYOUTS[layout](2, 700)
    call = Call(*random_qkv(spec, 2, 700), spec, tokens, tokens, StepContext(tokens, True), None)
    ours = block_mask(call)
    rows = flex_mask._rows(tokens, 2)
    wanted = torch_flex.create_block_mask(mask_function(spec.mask_key, rows), 2, None, 700, 700, device="cpu")
    assert ours.shape[-2:] == wanted.shape[-2:]
    covers = ours.to_dense().expand(2, -1, -1, -1) >= wanted.to_dense()
    assert covers.all()
    if layout != "padded rows":
        assert torch.equal(ours.to_dense().expand(2, -1, -1, -1), wanted.to_dense())


def test_most_blocks_of_a_short_window_and_of_packed_documents_are_left_out() -> None:
    for spec, layout, share in ((layer(window=64), "one document", 0.25), (layer(), "packed documents", 0.35)):
        tokens = LAYOUTS[layout](1, 1280)
        some, every = block_map(spec.mask_key, tokens, 1280, 128)
        assert some.float().mean() <= share
    assert every.any()


@pytest.mark.usefixtures("plain")
@pytest.mark.bug("B023")
def test_a_mask_of_one_length_never_serves_another() -> None:
    for length in (100, 130, 100):
        assert_equal_to_the_reference(layer(window=20), arrange(2, length, "cpu"), 2, backward=False)
        assert_equal_to_the_reference(layer(), LAYOUTS["packed documents"](2, length), 2, backward=False)


@pytest.mark.bug("B023")
def test_gradients_on_cpu_are_refused_and_a_backend_that_has_them_is_named() -> None:
    spec, tokens = layer(window=4), arrange(1, 8, "cpu")
    with pytest.raises(
        MinillmError, match=r"'flex' cannot compute layer 0 .* here: .* no backward pass on CPU; 'sdpa' can"
    ):
        outcome("flex", spec, random_qkv(spec, 1, 8), tokens, backward=True)


@pytest.mark.bug("B023")
@pytest.mark.parametrize("fields", [{"window": 6}, {"softcap": 2.0}, {"window": 6, "sink_tokens": 2}])
def test_a_cached_step_equals_the_whole(fields: dict[str, float]) -> None:
    spec = layer(**fields)  # type: ignore[arg-type]
    q, k, v = random_qkv(spec, 2, 15)
    tokens = arrange(2, 15, "cpu")
    wanted = attend(q, k, v, spec, tokens, tokens, StepContext(tokens, True), None, "reference")
    cache, got = KVCache([spec], 2, torch.float32, "cpu"), []
    for start, stop in ((0, 7), (7, 12), (12, 13), (13, 15)):
        piece = arrange(2, stop - start, "cpu", past=cache.past)
        context = StepContext(piece, contiguous=start == 0, past=cache.past)
        held_k, held_v, keys = cache.layers[0].append(k[:, :, start:stop], v[:, :, start:stop], piece)
        with torch.no_grad():
            got.append(attend(q[:, :, start:stop], held_k, held_v, spec, piece, keys, context, None, "flex"))
        cache.advance(piece)
    torch.testing.assert_close(torch.cat(got, dim=2), wanted, atol=1e-5, rtol=0)


@pytest.mark.usefixtures("plain")
def test_layers_of_one_kind_share_one_block_mask_and_one_score_function(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []
    for module, name in ((flex_mask, "block_map"), (flex_module, "_score_function")):
        own = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *args, own=own, name=name: (made.append(name), own(*args))[1])
    tokens = LAYOUTS["packed documents"](2, 60)
    context = StepContext(tokens, contiguous=True)
    with torch.no_grad():
        for index, window in enumerate((16, 16, 15, 16)):
            spec = dataclasses.replace(layer(window=window, position=ALiBi()), index=index)
            attend(*random_qkv(spec, 2, 60), spec, tokens, tokens, context, spec.position.make(spec.shape), "flex")
    assert sorted(made) == ["_score_function", "block_map", "block_map"]


def test_a_mask_that_depends_on_the_length_alone_is_kept_for_the_next_step() -> None:
    spec, tokens = layer(window=16), arrange(2, 60, "cpu")
    with torch.inference_mode():
        first = block_mask(Call(*random_qkv(spec, 2, 60), spec, tokens, tokens, StepContext(tokens, True), None))
    again = block_mask(Call(*random_qkv(spec, 2, 60), spec, tokens, tokens, StepContext(tokens, True), None))
    assert again is first
    assert not first.kv_indices.is_inference()


def test_layers_of_one_shape_of_code_share_one_kernel_whatever_their_numbers() -> None:
    kind = flex_module.Kind(8**-0.5, grouped=True, sums=False, compiled=True)
    windowed, chunked = (True, False, False), (False, True, False)
    one, again, other = (flex_module._kernel(kind, (limits, False)) for limits in (windowed, windowed, chunked))
    assert again is one
    # torch counts the compiled variants per code object.
    assert one._torchdynamo_orig_callable.__code__ is not other._torchdynamo_orig_callable.__code__


@pytest.mark.bug("B021")
@pytest.mark.parametrize(
    ("spec", "message"),
    [
        pytest.param(layer(position=Shaw()), "position 'shaw'.*'reference' can", id="relative terms"),
        pytest.param(layer(position=AbsoluteBias()), "position 'absolute_bias'.*'sdpa' and", id="no form by distance"),
    ],
)
def test_what_it_cannot_compute_is_refused_by_name(spec: LayerSpec, message: str) -> None:
    with pytest.raises(ConfigError, match=f"'flex' cannot compute layer 0 .*{message}"):
        check("flex", spec)


@pytest.mark.usefixtures("plain")
@pytest.mark.bug("B041")
def test_half_precision_does_not_round_alibi_distances() -> None:
    # Equal scores; weights fall by 2 ** -8 in the exponent per token, and only their sums over value +1, -1 are left.
    length = 2048
    spec = layer(heads=1, kv_heads=1, position=ALiBi())
    tokens = arrange(1, length, "cpu")
    q = k = torch.zeros(1, 1, length, 8, dtype=torch.bfloat16)
    distance = length - 1 - torch.arange(length)
    v = torch.tensor([1.0, -1.0, 0.0, 0.0])[distance % 4].bfloat16()[None, None, :, None].expand(1, 1, length, 8)
    with torch.no_grad():
        context = StepContext(tokens, contiguous=True)
        out = attend(q, k, v, spec, tokens, tokens, context, spec.position.make(spec.shape), "flex")
    decay = math.exp(-(2.0**-8))
    assert out[0, 0, -1, 0].item() == pytest.approx((1 - decay) ** 2 / (1 - decay**4), rel=0.1)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.bug("B025")
@pytest.mark.parametrize("position", [NoPE(), ALiBi()], ids=["window", "alibi"])
def test_the_compiled_kernel_equals_the_reference_and_twelve_windows_share_it(
    position: PositionScheme, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forward only, which is what torch compiles on CPU, and no more than this: for T5's table under a soft-cap in
    packed documents torch 2.13 writes C++ that does not compile (`cur_kvSplitSize8` was not declared)."""
    from torch._dynamo.utils import counters
    from torch._inductor import cpp_builder

    try:
        cpp_builder.get_cpp_compiler()
    except Exception as error:  # torch's own kinds of error differ between releases
        pytest.skip(f"no C++ compiler: {error}")
    own = flex_module.Kind
    monkeypatch.setattr(flex_module, "Kind", lambda scale, grouped, sums, compiled: own(scale, grouped, sums, True))
    before = 0
    for step, length in enumerate([300, 420, 300, 420]):
        tokens = LAYOUTS["one document"](2, length)
        for window in range(1, 300, 25):
            spec = layer(window=window, head_dim=16, position=position)
            assert_equal_to_the_reference(spec, tokens, 2, backward=False)
        graphs = counters["stats"]["unique_graphs"]
        assert step < 2 or graphs == before, f"compiled again at step {step}"
        before = graphs
