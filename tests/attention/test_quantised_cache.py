"""The cache in few bits: what a query sees by a naive formula, how far that is from the exact cache, and its bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from minillm.attention.backends import attend
from minillm.attention.cache import KVCache
from minillm.attention.cache_settings import CacheSettings, Evict
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError, MinillmError
from minillm.model.cost import cost, kv_bytes
from minillm.position.alibi import ALiBi
from tests.attention.cases import LAYOUTS, layer, random_qkv, run, sink_logits
from tests.attention.test_cache import CUTS, Piece, cut
from tests.model.small import config, ids, large

GROUP, BLOCK = 4, 8
INT8, INT4 = (CacheSettings(kind, GROUP, BLOCK) for kind in ("int8", "int4"))
MASKS: dict[str, dict[str, Any]] = {
    "full": {},
    "window of 9": {"window": 9},
    "window of 17": {"window": 17},
    "window of 20": {"window": 20},
    "chunk of 12": {"chunk": 12},
    "window of 10 and 3 kept": {"window": 10, "sink_tokens": 3},
    "window of 4, held as it is": {"window": 4},
    "full with sinks": {"sink_logits": True},
}


def in_pieces(spec: LayerSpec, qkv: list[Tensor], pieces: list[Piece], settings: CacheSettings) -> Tensor:
    """Attention of one layer with a cache, as the Decoder feeds it."""
    batch = qkv[0].shape[0]
    cache = KVCache([spec], batch, torch.float32, "cpu", settings)
    one = cache.layers[0]
    position = spec.position.make(spec.shape)
    outs, start = [], 0
    for size, ids_, given in pieces:
        done = 0
        for n in cache.pieces(size):
            q, k, v = (x[:, :, start : start + n] for x in qkv)
            at = slice(done, done + n)
            tokens = arrange_at(batch, n, None if ids_ is None else ids_[:, at], given, at, cache)
            context = StepContext(tokens, contiguous=len(cache) == 0)
            keys, values, stand = one.append(k, v, tokens)
            sinks = sink_logits(spec)
            outs.append(attend(q, keys, values, one.spec, tokens, stand, context, position, "auto", sinks))
            cache.advance(tokens)
            start, done = start + n, done + n
    return torch.cat(outs, dim=2)


def arrange_at(
    batch: int, size: int, document: Tensor | None, positions: Tensor | None, at: slice, cache: KVCache
) -> Tokens:
    return arrange(batch, size, "cpu", document, None if positions is None else positions[:, at], cache.past)


def rounded(x: Tensor, bits: int, axis: int) -> Tensor:
    """x in steps of (max - min) / (2^bits - 1) from the minimum over one axis, by the definition."""
    a = x.numpy()
    low, high = a.min(axis=axis, keepdims=True), a.max(axis=axis, keepdims=True)
    step = ((high - low) / np.float32(2**bits - 1)).astype(np.float32)
    return torch.from_numpy(low + np.rint((a - low) / step) * step)


def naive(spec: LayerSpec, qkv: list[Tensor], tokens: Tokens, settings: CacheSettings) -> Tensor:
    """Each block of queries against exact keys of its own and rounded keys of all before, with no cache at all."""
    q, k, v = qkv
    bits, most = settings.bits, settings.old_blocks(spec)
    assert bits is not None
    rounded_k, rounded_v = k.clone(), rounded(v, bits, axis=3)
    for start in range(0, q.shape[2] // GROUP * GROUP, GROUP):
        at = slice(start, start + GROUP)
        rounded_k[:, :, at] = rounded(k[:, :, at], bits, axis=2)
    out = torch.empty_like(q)
    for start in range(0, q.shape[2], BLOCK):
        # What the ring has forgotten is seen only of kept first tokens, which are exact.
        old = slice(0 if most is None else max(0, start - most * BLOCK), start)
        seen_k, seen_v = k.clone(), v.clone()
        seen_k[:, :, old], seen_v[:, :, old] = rounded_k[:, :, old], rounded_v[:, :, old]
        at = slice(start, start + BLOCK)
        out[:, :, at] = run("reference", spec, [q, seen_k, seen_v], tokens, backward=False).out[:, :, at]
    return out


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", [m for m in MASKS if "as it is" not in m])
def test_a_query_sees_its_own_block_exactly_and_earlier_ones_rounded_however_a_text_is_cut(
    mask: str, layout: str
) -> None:
    spec = layer(**MASKS[mask], position=ALiBi())
    tokens = LAYOUTS[layout](2, 30)
    qkv = [x.contiguous() for x in random_qkv(spec, 2, 30)]
    for settings, sizes in ((INT4, ("token by token", "pieces longer than the window")), (INT8, ("in one piece",))):
        wanted = naive(spec, qkv, tokens, settings)
        for name in sizes:
            with torch.no_grad():
                got = in_pieces(spec, qkv, cut(tokens, CUTS[name]), settings)
            torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("mask", MASKS)
def test_eight_bits_are_close_and_four_are_off_by_more_but_bounded(mask: str) -> None:
    plan = [{"position": {"theta": 100.0}, **MASKS[mask]}, {"position": "nope"}]
    model, tokens = large(config(*plan)), ids(2, 40)
    off = {}
    with torch.no_grad():
        exact = model(tokens)
        for settings in (INT8, INT4):
            cache = model.new_cache(2, settings)
            got = torch.cat([model(piece, cache=cache) for piece in tokens.split([21] + [1] * 19, dim=1)], dim=1)
            off[settings.bits] = ((got - exact).abs().max() / exact.abs().max()).item()
    assert 0 < off[8] < 0.01
    assert 4 * off[8] < off[4] < 0.2


@pytest.mark.bug("B008")
@pytest.mark.parametrize("sizes", CUTS.values(), ids=list(CUTS))
@pytest.mark.parametrize("settings", [INT8, INT4, CacheSettings("int4", GROUP, BLOCK, Evict(11, 2))], ids=str)
def test_logits_do_not_depend_on_how_a_prompt_is_cut(settings: CacheSettings, sizes: list[int]) -> None:
    model = large(config({"position": {"theta": 100.0}, "window": 12}, {"position": "nope"}, {"position": "alibi"}))
    tokens = ids(2, 30)

    def logits(cuts: list[int]) -> Tensor:
        cache = model.new_cache(2, settings)
        with torch.no_grad():
            return torch.cat([model(piece, cache=cache) for piece in tokens.split(cuts, dim=1)], dim=1)

    torch.testing.assert_close(logits(sizes), logits([30]), atol=2e-4, rtol=0)


@pytest.mark.parametrize("settings", [CacheSettings("int8"), CacheSettings("int4", 16, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_bytes_at_8192_are_those_of_the_formula(settings: CacheSettings, dtype: torch.dtype) -> None:
    made = config(
        {"position": {"theta": 100.0}, "window": 300}, {"position": "nope"}, {"window": 300, "sink_tokens": 4}
    )
    cache = KVCache(made.layers, 1, dtype, "cpu", settings)
    bytes_per_value = torch.finfo(dtype).bits // 8
    for length in (8192, 8193, 8200):
        while len(cache) < length:
            for size in cache.pieces(length - len(cache)):
                tokens = arrange(1, size, "cpu", past=cache.past)
                for one, spec in zip(cache.layers, made.layers, strict=True):
                    one.append(*random_qkv(spec, 1, size, dtype)[1:], tokens)
                cache.advance(tokens)
        counted = cost(made, length, bytes_per_value, settings).kv_bytes
        assert counted <= cache.nbytes() <= 1.02 * counted
        assert cache.used_bytes() <= cache.nbytes()
    assert counted < cost(made, 8192, bytes_per_value).kv_bytes


def test_the_formula_by_hand() -> None:
    """2 heads of 64 channels, 8192 tokens in blocks of 128 and groups of 32, float32 scales."""
    spec = layer(head_dim=64)
    keys = 2 * 64 * (8192 + 2 * 4 * 8192 // 32)
    values = 2 * 8192 * (64 + 2 * 4)
    newest = 2 * 2 * 64 * 4 * 128
    assert kv_bytes(spec, 8192, 4, CacheSettings("int8")) == keys + values + newest
    halved = 2 * 2 * 64 * 8192 // 2
    assert kv_bytes(spec, 8192, 4, CacheSettings("int4")) == keys + values + newest - halved
    window = layer(head_dim=64, window=130)  # a block's first token sees 129 before it, of two blocks
    assert kv_bytes(window, 8192, 4, CacheSettings("int8")) == (keys + values) // 32 + newest


def test_a_layer_of_a_ring_no_longer_than_a_block_is_held_as_it_is() -> None:
    short, long = layer(window=BLOCK), layer(window=BLOCK + 1)
    cache = KVCache([short, long], 1, torch.float32, "cpu", INT8)
    assert [type(one.keys).__name__ for one in cache.layers] == ["Store", "Blocks"]
    assert kv_bytes(short, 100, 4, INT8) == kv_bytes(short, 100, 4)


def test_a_constant_channel_or_token_is_exact_and_nothing_becomes_nan() -> None:
    spec = layer()
    cache = KVCache([spec], 1, torch.float32, "cpu", INT4)
    k = torch.full((1, 2, BLOCK, 8), 3.7)
    for _ in range(2):
        tokens = arrange(1, BLOCK, "cpu", past=cache.past)
        keys, values, _ = cache.layers[0].append(k, -k, tokens)
        cache.advance(tokens)
    assert torch.equal(keys, torch.full_like(keys, 3.7))
    assert torch.equal(values, -keys)


def test_a_large_channel_of_keys_does_not_spoil_the_others() -> None:
    """The reason for scales by channel: with one by token, as values have, the others would be lost."""
    spec, settings = layer(), CacheSettings("int4", GROUP, BLOCK)
    cache = KVCache([spec], 1, torch.float32, "cpu", settings)
    k = torch.randn(1, 2, BLOCK, 8)
    k[..., 3] += 1000
    for _ in range(2):
        tokens = arrange(1, BLOCK, "cpu", past=cache.past)
        keys, values, _ = cache.layers[0].append(k, k, tokens)
        cache.advance(tokens)
    rest = [i for i in range(8) if i != 3]
    assert (keys[:, :, :BLOCK] - k)[..., rest].abs().max() < 0.25
    assert (values[:, :, :BLOCK] - k)[..., rest].abs().max() > 1


def test_a_cache_of_one_text_is_repeated_for_several() -> None:
    model = large(config({"position": {"theta": 100.0}, "window": 12}, {"position": "nope"}))
    cache = model.new_cache(1, INT8)
    with torch.no_grad():
        model(ids(1, 21), cache=cache)
        three = cache.repeated(3)
        got = model(ids(3, 5), cache=three)
        for row in range(3):
            alone = cache.repeated(1)
            torch.testing.assert_close(got[row : row + 1], model(ids(3, 5)[row : row + 1], cache=alone))


def test_it_can_be_filled_in_inference_mode_and_used_in_training() -> None:
    model = large(config({"position": {"theta": 100.0}, "window": 12}, {"position": "nope"}))
    cache = model.new_cache(1, INT4)
    with torch.inference_mode():
        model(ids(1, 21), cache=cache)
    model(ids(1, 9), cache=cache).sum().backward()
    gradients = [p.grad for p in model.parameters()]
    assert all(g is not None and g.isfinite().all() for g in gradients)


def test_a_piece_that_crosses_a_block_is_refused_by_the_layer() -> None:
    cache = KVCache([layer()], 1, torch.float32, "cpu", INT8)
    with pytest.raises(MinillmError, match="a block of 8 tokens"):
        cache.layers[0].append(*random_qkv(layer(), 1, 9)[1:], arrange(1, 9, "cpu"))
    assert cache.pieces(20) == [8, 8, 4]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"kind": "int8", "group": 0}, "cache.group = 0: must be 1 or more."),
        (
            {"kind": "int8", "residual": 48, "group": 32},
            "cache.residual = 48: must be an even multiple of cache.group (32), 2 or more.",
        ),
        ({"group": 16}, "cache.group = 16: has no effect on cache.kind = full."),
        ({"evict": Evict(0)}, "cache.evict.window = 0: must be 1 or more."),
        ({"evict": Evict(3, -1)}, "cache.evict.sink_tokens = -1: must not be negative."),
    ],
)
def test_a_setting_out_of_range_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        CacheSettings(**given)
    assert str(error.value) == message


def test_few_bits_that_no_layer_would_use_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"no layer looks back further than 100 tokens, and cache\.residual = 128"):
        KVCache([layer(window=100), layer(window=4)], 1, torch.float32, "cpu", CacheSettings("int8"))


def test_settings_are_read_from_plain_values() -> None:
    assert CacheSettings.from_plain("int8", "cache") == CacheSettings("int8")
    mapping = {"kind": "int4", "residual": 64, "evict": {"window": 9}}
    assert CacheSettings.from_plain(mapping, "cache") == CacheSettings("int4", 32, 64, Evict(9, 4))
    with pytest.raises(ConfigError, match=r"cache.kind: 'int3' is not allowed.* Allowed: full, int8, int4"):
        CacheSettings.from_plain("int3", "cache")
    with pytest.raises(ConfigError, match=r"cache.residul.*Did you mean 'residual'"):
        CacheSettings.from_plain({"residul": 64}, "cache")
