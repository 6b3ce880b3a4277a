"""Every backend against the reference, forward and backward; what a backend cannot do it refuses by name."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch

from minillm.attention import backends as backends_module
from minillm.attention import mask as mask_module
from minillm.attention import sdpa as sdpa_module
from minillm.attention.backends import absent, attend, check, choose, unsupported
from minillm.attention.machine import Machine
from minillm.attention.mask import Call
from minillm.attention.reference import reference
from minillm.attention.tokens import StepContext, arrange
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError
from minillm.position.alibi import ALiBi
from minillm.position.shaw import Shaw
from minillm.position.t5 import T5
from tests.attention.cases import BIASES, LAYOUTS, AbsoluteBias, assert_same, layer, random_qkv, run, sink_logits

MASKS = {
    "full": {},
    "window of 1": {"window": 1},
    "window of 20": {"window": 20},
    "window of 64": {"window": 64},
    "chunk of 20": {"chunk": 20},
    "chunk of 64": {"chunk": 64},
    "full with sinks": {"sink_logits": True},
    "window of 20 with sinks": {"window": 20, "sink_logits": True},
    "chunk of 20 with sinks": {"chunk": 20, "sink_logits": True},
    "window of 20 and 3 kept": {"window": 20, "sink_tokens": 3},
}
FUSED = ["sdpa", "banded"]
BACKENDS = ["reference", *FUSED]  # with a backward pass on CPU; the others: test_flex.py, test_varlen.py
POSSIBLE = [
    pytest.param(backend, mask, id=f"{backend}, {mask}")
    for backend in FUSED
    for mask in MASKS
    if unsupported(backend, layer(**MASKS[mask])) is None
]


@pytest.mark.bug("B003")
@pytest.mark.bug("B012")
@pytest.mark.bug("B015")
@pytest.mark.parametrize("bias", BIASES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "mask"), POSSIBLE)
def test_every_backend_equals_the_reference(backend: str, mask: str, layout: str, bias: str) -> None:
    spec = layer(**MASKS[mask], position=BIASES[bias])
    # Above, at and below the 128 rows that go through the kernel at once; none a multiple of a block.
    for length in (37, 131, 200):
        tokens = LAYOUTS[layout](2, length)
        qkv = random_qkv(spec, 2, length)
        assert_same(run(backend, spec, qkv, tokens), run("reference", spec, qkv, tokens))


def test_a_long_sequence_takes_the_causal_flag_and_is_as_right() -> None:
    for spec in (layer(heads=2, kv_heads=1, head_dim=4), layer(heads=2, kv_heads=1, head_dim=4, sink_logits=True)):
        qkv = random_qkv(spec, 1, 2050)
        tokens = arrange(1, 2050, "cpu")
        assert_same(run("sdpa", spec, qkv, tokens), run("reference", spec, qkv, tokens))


def test_sinks_are_one_more_key_of_no_value() -> None:
    """The form of gpt-oss: softmax over all scores and the logit; the form of Granite: sigmoid(logsumexp - logit)."""
    spec = layer(window=4, sink_logits=True)
    q, k, v = random_qkv(spec, 2, 11)
    tokens = arrange(2, 11, "cpu")
    sinks = sink_logits(spec)
    call = Call(q, k, v, spec, tokens, tokens, StepContext(tokens, contiguous=True), None, sinks)
    out, probs = reference(call, return_probs=True)
    plain, _ = reference(call._replace(sinks=None), return_probs=True)
    scores = q @ k.repeat_interleave(2, dim=1).transpose(-1, -2) * 8**-0.5
    place = torch.arange(11)
    back = place[:, None] - place
    lse = scores.masked_fill((back < 0) | (back >= 4), float("-inf")).logsumexp(dim=-1)
    share = (lse - sinks[None, :, None]).sigmoid()
    torch.testing.assert_close(out, plain * share[..., None], atol=1e-6, rtol=0)
    torch.testing.assert_close(probs.sum(dim=-1), share, atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", FUSED)
def test_half_precision_keeps_the_sinks(backend: str) -> None:
    spec = layer(window=20, sink_logits=True)
    q, k, v = (x.bfloat16() for x in random_qkv(spec, 1, 60))
    tokens = arrange(1, 60, "cpu")
    # 5 + 1/64 is not a bfloat16; the sink outweighs all keys, so its rounding would show in every output.
    sinks = torch.full((4,), 5 + 1 / 64)
    context = StepContext(tokens, contiguous=True)
    exact = attend(q.float(), k.float(), v.float(), spec, tokens, tokens, context, None, "reference", sinks)
    got = attend(q, k, v, spec, tokens, tokens, StepContext(tokens, contiguous=True), None, backend, sinks)
    assert ((got.float() - exact).abs() / exact.abs().clamp(min=1e-3)).median() < 2**-8


@pytest.mark.bug("B003")
@pytest.mark.parametrize("backend", FUSED)
def test_a_window_is_not_full_attention(backend: str) -> None:
    qkv = random_qkv(layer(), 1, 12)
    tokens = arrange(1, 12, "cpu")
    full = run("reference", layer(), qkv, tokens).out
    windowed = run(backend, layer(window=4), qkv, tokens).out
    assert (windowed - full)[:, :, 4:].abs().min(dim=-1).values.max() > 1e-3
    torch.testing.assert_close(windowed[:, :, :4], full[:, :, :4], atol=1e-5, rtol=0)


@pytest.mark.bug("B017")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (4, 2), (6, 3), (3, 1)], ids=str)
def test_query_heads_share_key_heads_in_neighbouring_groups(backend: str, heads: int, kv_heads: int) -> None:
    spec = layer(window=10, heads=heads, kv_heads=kv_heads)
    alone = layer(window=10, heads=1, kv_heads=1)
    q, k, v = random_qkv(spec, 2, 40)
    tokens = arrange(2, 40, "cpu")
    together = run(backend, spec, [q, k, v], tokens).out
    for head in range(heads):
        group = head // (heads // kv_heads)
        one = [q[:, head : head + 1], k[:, group : group + 1], v[:, group : group + 1]]
        torch.testing.assert_close(
            together[:, head : head + 1], run("reference", alone, one, tokens).out, atol=1e-5, rtol=0
        )


@pytest.mark.bug("B015")
@pytest.mark.parametrize("backend", BACKENDS)
def test_packed_documents_are_the_documents_alone(backend: str) -> None:
    spec = layer(window=6, position=ALiBi())
    qkv = random_qkv(spec, 2, 40)
    ids = torch.tensor([[0] * 13 + [1] * 27, [0] * 30 + [1] * 10])
    packed = run(backend, spec, qkv, arrange(2, 40, "cpu", ids)).out
    for row, boundary in enumerate((13, 30)):
        for start, stop in ((0, boundary), (boundary, 40)):
            alone = [x[row : row + 1, :, start:stop] for x in qkv]
            wanted = run("reference", spec, alone, arrange(1, stop - start, "cpu")).out
            torch.testing.assert_close(packed[row : row + 1, :, start:stop], wanted, atol=1e-5, rtol=0)


@pytest.mark.bug("B012")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("backend", BACKENDS)
def test_padding_gives_finite_numbers_and_gets_no_gradient(backend: str, dtype: torch.dtype) -> None:
    spec = layer(window=5)
    ids = torch.zeros(2, 30, dtype=torch.long)
    ids[0, :17] = -1
    tokens = arrange(2, 30, "cpu", ids)
    leaves = [x.requires_grad_() for x in random_qkv(spec, 2, 30, dtype)]
    out = attend(*leaves, spec, tokens, tokens, StepContext(tokens, contiguous=True), None, backend)
    assert out.isfinite().all()
    grads = torch.autograd.grad(out[0, :, 17:].sum() + out[1].sum(), leaves)
    assert all(grad.isfinite().all() for grad in grads)
    assert all((grad[0, :, :17] == 0).all() for grad in grads)


def test_the_reference_is_the_formula_with_soft_cap_scale_and_bias() -> None:
    spec = layer(window=2, heads=2, kv_heads=1, position=ALiBi(), softcap=1.5, scale=0.7)
    q, k, v = random_qkv(spec, 1, 4)
    tokens = arrange(1, 4, "cpu")
    position = spec.position.make(spec.shape)
    call = Call(q, k, v, spec, tokens, tokens, StepContext(tokens, contiguous=True), position)
    out, probs = reference(call, return_probs=True)
    for head, slope in enumerate((2**-4, 2**-8)):
        for query in range(4):
            keys = [key for key in range(4) if query - 2 < key <= query]
            scores = [
                1.5 * math.tanh((q[0, head, query] @ k[0, 0, key]).item() * 0.7 / 1.5) - slope * (query - key)
                for key in keys
            ]
            total = sum(math.exp(s) for s in scores)
            weights = torch.zeros(4)
            for key, score in zip(keys, scores, strict=True):
                weights[key] = math.exp(score) / total
            torch.testing.assert_close(probs[0, head, query], weights, atol=1e-6, rtol=0)
            torch.testing.assert_close(out[0, head, query], weights @ v[0, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_scale_of_the_spec_is_used(backend: str) -> None:
    tokens = arrange(1, 30, "cpu")
    scaled, plain = layer(window=9, scale=0.05), layer(window=9)
    q, k, v = random_qkv(plain, 1, 30)
    wanted = run("reference", plain, [q * 0.05 * 8**0.5, k, v], tokens).out
    torch.testing.assert_close(run(backend, scaled, [q, k, v], tokens).out, wanted, atol=1e-5, rtol=0)


@pytest.mark.bug("B021")
@pytest.mark.parametrize(
    ("backend", "spec", "message"),
    [
        pytest.param("sdpa", layer(softcap=2.0), "softcap.*'reference' can", id="sdpa with a soft cap"),
        pytest.param("banded", layer(softcap=2.0, window=4), "softcap.*'reference' can", id="banded with a soft cap"),
        pytest.param("banded", layer(), "neither a window nor a chunk; 'sdpa'", id="banded with full attention"),
    ],
)
def test_an_impossible_backend_is_refused_by_name(backend: str, spec: LayerSpec, message: str) -> None:
    for refuse in (
        lambda: check(backend, spec),
        lambda: run(backend, spec, random_qkv(spec, 1, 4), arrange(1, 4, "cpu")),
    ):
        with pytest.raises(ConfigError, match=f"'{backend}' cannot compute layer 0 .*{message}"):
            refuse()


def test_an_unknown_backend_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match=r"'bandit': unknown\. Did you mean 'banded'\?"):
        check("bandit", layer(window=4))


@pytest.mark.bug("B021")
def test_a_soft_cap_makes_auto_choose_the_reference() -> None:
    spec = layer(softcap=2.0)
    q, k, v = random_qkv(spec, 1, 20)
    tokens = arrange(1, 20, "cpu")
    capped = run("auto", spec, [q * 10, k, v], tokens)
    assert_same(capped, run("reference", spec, [q * 10, k, v], tokens))
    assert (capped.out - run("sdpa", layer(), [q * 10, k, v], tokens).out).abs().max() > 0.1


@pytest.mark.parametrize(
    ("spec", "length", "cached", "choice"),
    [
        pytest.param(layer(), 4096, False, "sdpa", id="full"),
        pytest.param(layer(window=64), 512, False, "banded", id="short window"),
        pytest.param(layer(chunk=64), 512, False, "banded", id="short chunk"),
        pytest.param(layer(window=64), 96, False, "sdpa", id="window near the length"),
        pytest.param(layer(window=512), 600, False, "sdpa", id="long window near the length"),
        pytest.param(layer(window=64), 512, True, "sdpa", id="cached"),
        pytest.param(layer(window=64, softcap=1.0), 512, False, "reference", id="soft cap"),
    ],
)
def test_auto_takes_bands_where_a_layer_reaches_less_far_than_the_length(
    spec: LayerSpec, length: int, cached: bool, choice: str
) -> None:
    assert choose(spec, length, "cpu", cached) == choice
    assert unsupported(choice, spec) is None


GPU = Machine("cuda", torch.bfloat16, gradients=True, flex=True, varlen=True, varlen_windows=True)
FLOAT32 = GPU._replace(dtype=torch.float32)
BARE = Machine("cuda", torch.bfloat16)
T5_BIAS = T5(num_buckets=8, max_distance=30)


@pytest.mark.parametrize(
    ("spec", "where", "more", "choice"),
    [
        pytest.param(layer(), GPU, {}, "sdpa", id="full attention has the causal flag"),
        pytest.param(layer(sink_logits=True), GPU, {}, "sdpa", id="sinks alone too"),
        pytest.param(layer(), GPU, {"documents": True}, "varlen", id="documents"),
        pytest.param(layer(window=64), GPU, {}, "varlen", id="window"),
        pytest.param(layer(window=64), GPU, {"documents": True}, "varlen", id="window and documents"),
        pytest.param(layer(window=4096), GPU, {}, "sdpa", id="a window that hides nothing"),
        pytest.param(layer(window=64), FLOAT32, {}, "flex", id="window in float32"),
        pytest.param(layer(window=64), GPU._replace(varlen_windows=False), {}, "flex", id="no windows in varlen"),
        pytest.param(layer(chunk=64), GPU, {}, "flex", id="chunk"),
        pytest.param(layer(window=64, sink_tokens=4), GPU, {}, "flex", id="kept tokens"),
        pytest.param(layer(window=64, sink_logits=True), GPU, {}, "flex", id="window with sinks"),
        pytest.param(layer(position=ALiBi()), GPU, {}, "flex", id="a fixed bias"),
        pytest.param(layer(softcap=2.0), GPU, {}, "flex", id="soft cap"),
        pytest.param(layer(position=ALiBi(learned=True)), GPU, {}, "sdpa", id="a trained bias"),
        pytest.param(layer(position=T5_BIAS, window=64), GPU, {}, "banded", id="a trained bias and a window"),
        pytest.param(layer(position=Shaw()), GPU, {"documents": True}, "reference", id="relative terms"),
        pytest.param(layer(position=AbsoluteBias()), GPU, {}, "sdpa", id="a bias without a form by distance"),
        pytest.param(layer(window=64), GPU, {"cached": True}, "sdpa", id="cached"),
        pytest.param(layer(softcap=2.0), GPU, {"cached": True}, "reference", id="cached, soft cap"),
        pytest.param(layer(window=64), GPU, {"length": 100}, "sdpa", id="shorter than a block"),
        pytest.param(layer(window=64), BARE, {}, "banded", id="a GPU whose torch has neither"),
        pytest.param(layer(softcap=2.0), BARE, {}, "reference", id="soft cap without flex"),
        pytest.param(layer(window=64, head_dim=4), FLOAT32, {}, "banded", id="heads too narrow for either"),
    ],
)
def test_auto_on_a_gpu_goes_by_layer_and_machine(
    spec: LayerSpec, where: Machine, more: dict[str, Any], choice: str
) -> None:
    wide = dataclasses.replace(spec, head_dim=spec.head_dim if spec.head_dim < 8 else 64)
    assert choose(wide, **{"length": 2048, "where": where, **more}) == choice
    assert unsupported(choice, wide) is None
    assert absent(choice, wide, where) is None


@pytest.mark.parametrize("spec", [layer(window=64), layer(softcap=2.0), layer(position=ALiBi()), layer(chunk=64)])
def test_auto_on_cpu_never_takes_what_is_for_gpus(spec: LayerSpec) -> None:
    for documents in (False, True):
        for gradients in (False, True):
            where = GPU._replace(device="cpu", gradients=gradients)
            assert choose(spec, 4096, where, documents=documents) in BACKENDS


@pytest.mark.parametrize("backend", FUSED)
def test_layers_of_one_kind_share_one_mask(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def counted(*args: object) -> torch.Tensor:
        made.append(1)
        return mask_module.visible(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(f"minillm.attention.{backend}.visible", counted)
    monkeypatch.setattr(sdpa_module, "_rows_at_once", lambda call, causal: 1000)
    tokens = LAYOUTS["packed documents"](2, 60)
    context = StepContext(tokens, contiguous=True)
    spec = layer(window=16)
    for _ in range(3):
        attend(*random_qkv(spec, 2, 60), spec, tokens, tokens, context, None, backend)
    assert len(made) == 1
    attend(*random_qkv(spec, 2, 60), layer(window=15), tokens, tokens, context, None, backend)
    assert len(made) == 2


@pytest.mark.parametrize("backend", FUSED)
def test_layers_of_unlike_biases_do_not_share(backend: str) -> None:
    tokens = arrange(1, 60, "cpu")
    context = StepContext(tokens, contiguous=True)
    for index, position in enumerate([*BIASES.values(), *BIASES.values()]):
        spec = LayerSpec(index, "tested", position, 4, 2, 8, window=16)
        qkv = random_qkv(spec, 1, 60)
        module = position.make(spec.shape)
        if index == 6 and module is not None:  # the second learned bias: other numbers, the same class
            for parameter in module.parameters():
                parameter.data.neg_()
        wanted = attend(*qkv, spec, tokens, tokens, context, module, "reference")
        got = attend(*qkv, spec, tokens, tokens, context, module, backend)
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.bug("B041")
@pytest.mark.parametrize("autocast", [False, True], ids=["bf16 inputs", "under autocast"])
@pytest.mark.parametrize(("backend", "window"), [("sdpa", None), ("banded", 2048)])
def test_half_precision_does_not_round_alibi_distances(
    backend: str, window: int | None, autocast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on processors with AMX; others keep attention in float32.
    monkeypatch.setattr(backends_module, "autocast_dtype", torch.get_autocast_dtype)
    # Equal scores; a key at distance d has the value +1, -1, 0, 0 for d % 4 = 0, 1, 2, 3. What is left is how much more
    # weight d gets than d + 1. In bf16 the two are equal beyond 256, where a third of the weight lies.
    length, decay = 4096, math.exp(-(2.0**-8))
    spec = layer(window=window, heads=1, kv_heads=1, position=ALiBi())  # slope 2 ** -8
    tokens = arrange(1, length, "cpu")
    dtype = torch.float32 if autocast else torch.bfloat16
    q = k = torch.zeros(1, 1, length, 8, dtype=dtype)
    distance = length - 1 - torch.arange(length)
    values = torch.tensor([1.0, -1.0, 0.0, 0.0])[distance % 4].to(dtype)
    v = values[None, None, :, None].expand(1, 1, length, 8)
    position = spec.position.make(spec.shape)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
        out = attend(q, k, v, spec, tokens, tokens, StepContext(tokens, contiguous=True), position, backend)
    assert out.dtype == torch.bfloat16
    assert out[0, 0, -1, 0].item() == pytest.approx((1 - decay) ** 2 / (1 - decay**4), rel=0.1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_bf16_is_near_float32(backend: str) -> None:
    spec = layer(window=20)
    qkv = random_qkv(spec, 2, 100)
    tokens = LAYOUTS["packed documents"](2, 100)
    wanted = run("reference", spec, qkv, tokens).out
    got = run(backend, spec, [x.bfloat16() for x in qkv], tokens).out
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.float(), wanted, atol=5e-2, rtol=0)
