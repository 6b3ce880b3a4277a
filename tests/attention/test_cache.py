"""The key-value cache: rings on windowed layers, and the same numbers however a text is cut."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from minillm.attention import sdpa as sdpa_module
from minillm.attention.backends import attend, unsupported
from minillm.attention.cache import KVCache
from minillm.attention.stores import GROWTH
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.errors import MinillmError
from minillm.position.alibi import ALiBi
from tests.attention.cases import BIASES, LAYOUTS, layer, random_qkv, run, sink_logits

MASKS = {
    "full": {},
    "window of 1": {"window": 1},
    "window of 4": {"window": 4},
    "window of 40": {"window": 40},
    "chunk of 5": {"chunk": 5},
    "window of 4 and 2 kept": {"window": 4, "sink_tokens": 2},
    "window of 3 and 7 kept": {"window": 3, "sink_tokens": 7},
    "window of 4 with sinks": {"window": 4, "sink_logits": True},
    "full with sinks": {"sink_logits": True},
}
CUTS = {
    "in one piece": [30],
    "token by token": [1] * 30,
    "a prompt, then tokens": [12] + [1] * 18,
    "pieces longer than the window": [7, 11, 2, 10],
    "pieces of the window and one more": [4, 5, 3, 1, 4, 13],
}


Piece = tuple[int, Tensor | None, Tensor | None]
"""Tokens, their document ids, their positions."""


def in_pieces(spec: LayerSpec, qkv: list[Tensor], pieces: list[Piece], backend: str = "auto") -> Tensor:
    """Attention of one layer with a cache."""
    batch = qkv[0].shape[0]
    cache = KVCache([spec], batch, torch.float32, "cpu")
    position = spec.position.make(spec.shape)
    outs = []
    sizes = [size for size, _, _ in pieces]
    parts = [x.split(sizes, dim=2) for x in qkv]
    for q, k, v, (size, ids, given) in zip(*parts, pieces, strict=True):
        tokens = arrange(batch, size, "cpu", ids, given, cache.past)
        context = StepContext(tokens, contiguous=len(cache) == 0)
        keys, values, stand = cache.layers[0].append(k, v, tokens)
        outs.append(attend(q, keys, values, spec, tokens, stand, context, position, backend, sink_logits(spec)))
        cache.advance(tokens)
    return torch.cat(outs, dim=2)


def cut(tokens: Tokens, sizes: list[int]) -> list[Piece]:
    """What a caller would give for each piece of a text that stands as `tokens` say."""
    pieces: list[Piece] = []
    for start, size in zip([sum(sizes[:i]) for i in range(len(sizes))], sizes, strict=True):
        at = slice(start, start + size)
        if tokens.document is not None:
            pieces.append((size, tokens.document[:, at], None))
        else:
            pieces.append((size, None, None if tokens.position is tokens.index else tokens.position[:, at]))
    return pieces


@pytest.mark.bug("B008")
@pytest.mark.parametrize("sizes", CUTS)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mask", MASKS)
def test_cached_equals_uncached_however_a_text_is_cut(mask: str, layout: str, sizes: str) -> None:
    for position in BIASES.values():
        spec = layer(**MASKS[mask], position=position)
        tokens = LAYOUTS[layout](2, 30)
        qkv = random_qkv(spec, 2, 30)
        wanted = run("reference", spec, qkv, tokens, backward=False).out
        for backend in ("reference", "sdpa", "banded"):
            if unsupported(backend, spec) is None:
                with torch.no_grad():
                    got = in_pieces(spec, qkv, cut(tokens, CUTS[sizes]), backend)
                torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.bug("B008")
def test_every_row_of_a_prompt_longer_than_the_window_is_right() -> None:
    spec = layer(window=4)
    tokens = arrange(1, 12, "cpu")
    qkv = random_qkv(spec, 1, 12)
    wanted = run("reference", spec, qkv, tokens).out
    for sizes in ([12], [6, 6], [1, 11]):
        got = in_pieces(spec, qkv, cut(tokens, sizes))
        torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize("sizes", [[200], [1] * 200, [150, 50]], ids=["at once", "token by token", "in two"])
@pytest.mark.parametrize(
    "reach", [{"window": 7}, {"window": 64}, {"chunk": 16}, {}, {"window": 64, "sink_tokens": 4}], ids=str
)
def test_memory_is_what_the_spec_says(reach: dict[str, int], sizes: list[int]) -> None:
    spec = layer(**reach)
    cache = KVCache([spec, spec], 3, torch.float32, "cpu")
    held = 0
    for size in sizes:
        tokens = arrange(3, size, "cpu", past=cache.past)
        for one in cache.layers:
            one.append(*random_qkv(spec, 3, size)[1:], tokens)
        cache.advance(tokens)
        held += size
        formula = 2 * 3 * spec.kv_bytes_per_token(4) * spec.cached_tokens(held)
        block = 2 * 3 * spec.kv_bytes_per_token(4) * (GROWTH + (spec.sink_tokens or 0))
        assert formula <= cache.nbytes() <= max(1.02 * formula, formula + block)
    if spec.reach is not None:
        assert cache.nbytes() == 2 * 3 * spec.kv_bytes_per_token(4) * (spec.reach + (spec.sink_tokens or 0))


def test_a_full_layer_grows_in_blocks_and_a_token_copies_nothing_before_it() -> None:
    spec = layer()
    cache = KVCache([spec], 1, torch.float32, "cpu")
    grown, held = 0, None
    for _ in range(20 * GROWTH):
        tokens = arrange(1, 1, "cpu", past=cache.past)
        keys, _, _ = cache.layers[0].append(*random_qkv(spec, 1, 1)[1:], tokens)
        cache.advance(tokens)
        grown += cache.layers[0].keys.held is not held
        held = cache.layers[0].keys.held
        assert keys.data_ptr() == held.data_ptr() or len(cache) == 1
        assert cache.used_bytes() == spec.kv_bytes_per_token(4) * len(cache) <= cache.nbytes()
    assert grown == 20


def test_an_empty_cache_holds_nothing() -> None:
    cache = KVCache([layer()], 1, torch.float32, "cpu")
    assert (len(cache), cache.nbytes(), cache.used_bytes()) == (0, 0, 0)


def test_a_step_on_a_full_ring_copies_nothing_and_makes_no_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = layer(window=8)
    cache = KVCache([spec], 1, torch.float32, "cpu")

    def step(length: int) -> tuple[Tensor, Tensor]:
        tokens = arrange(1, length, "cpu", past=cache.past)
        q, k, v = random_qkv(spec, 1, length)
        keys, values, stand = cache.layers[0].append(k, v, tokens)
        context = StepContext(tokens, contiguous=len(cache) == 0)
        attend(q, keys, values, spec, tokens, stand, context, None)
        cache.advance(tokens)
        return keys, values

    step(20)
    monkeypatch.setattr(sdpa_module, "visible", None)
    places = {tuple(held.data_ptr() for held in step(1)) for _ in range(20)}
    assert len(places) == 1
    keys, _ = step(1)
    assert keys.shape[2] == 8
    assert len(cache) == 41


@pytest.mark.bug("B043")
def test_all_layers_stand_at_the_same_place_until_the_cache_advances() -> None:
    specs = [layer(window=4), layer(), layer(window=4), layer(chunk=3)]
    cache = KVCache(specs, 1, torch.float32, "cpu")
    for size in (6, 1, 1, 5, 1):
        tokens = arrange(1, size, "cpu", past=cache.past)
        before = len(cache)
        newest = []
        for one, spec in zip(cache.layers, specs, strict=True):
            _, _, keys = one.append(*random_qkv(spec, 1, size)[1:], tokens)
            newest.append(int(keys.index.max()))
            assert len(cache) == before
        assert newest == [before + size - 1] * 4
        cache.advance(tokens)
        assert len(cache) == before + size


@pytest.mark.bug("B043")
def test_the_counter_counts_tokens_seen_and_not_rows_kept() -> None:
    cache = KVCache([layer(window=4)], 1, torch.float32, "cpu")
    for size in (9, 1, 3):
        tokens = arrange(1, size, "cpu", past=cache.past)
        cache.layers[0].append(*random_qkv(layer(window=4), 1, size)[1:], tokens)
        cache.advance(tokens)
    assert len(cache) == 13
    assert arrange(1, 1, "cpu", past=cache.past).position.tolist() == [[13]]


def test_layers_of_one_reach_share_the_places_of_their_keys() -> None:
    cache = KVCache([layer(window=4), layer(), layer(window=4)], 1, torch.float32, "cpu")
    for size in (6, 2):
        tokens = arrange(1, size, "cpu", past=cache.past)
        stand = [one.append(*random_qkv(layer(), 1, size)[1:], tokens)[2] for one in cache.layers]
        cache.advance(tokens)
    assert stand[0] is stand[2]
    assert stand[0] is not stand[1]


@pytest.mark.parametrize(
    ("side", "window"),
    [
        pytest.param("left", 5, id="left, window"),
        pytest.param("left", None, id="left, full"),
        # Padding between prompt and answer takes places of a window: it does no harm in full attention only.
        pytest.param("right", None, id="right, full"),
    ],
)
def test_a_batch_of_unequal_prompts_is_each_prompt_alone(side: str, window: int | None) -> None:
    spec = layer(window=window, position=ALiBi())
    qkv = random_qkv(spec, 2, 11)
    ids = torch.zeros(2, 7, dtype=torch.long)
    ids[1, slice(0, 4) if side == "left" else slice(3, 7)] = -1
    together = in_pieces(spec, qkv, [(7, ids, None), *[(1, None, None)] * 4])
    for row in range(2):
        real = torch.cat([ids[row] == 0, torch.ones(4, dtype=torch.bool)])
        alone = [x[row : row + 1, :, real] for x in qkv]
        wanted = run("reference", spec, alone, arrange(1, int(real.sum()), "cpu")).out
        torch.testing.assert_close(together[row : row + 1, :, real], wanted, atol=1e-5, rtol=0)


def test_document_ids_may_begin_after_tokens_without_them() -> None:
    spec = layer(window=6, position=ALiBi())
    qkv = random_qkv(spec, 2, 10)
    ids = torch.tensor([[0] * 7 + [1] * 3, [0] * 10])
    wanted = run("reference", spec, qkv, arrange(2, 10, "cpu", ids)).out
    got = in_pieces(spec, qkv, [(5, None, None), (3, ids[:, 5:8], None), (2, None, None)])
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


def test_keys_are_held_in_the_dtype_of_the_cache() -> None:
    spec = layer(window=4)
    cache = KVCache([spec], 1, torch.bfloat16, "cpu")
    tokens = arrange(1, 6, "cpu")
    q, k, v = random_qkv(spec, 1, 6)
    keys, values, stand = cache.layers[0].append(k, v, tokens)
    assert keys.dtype == values.dtype == torch.bfloat16
    out = attend(q, keys, values, spec, tokens, stand, StepContext(tokens, contiguous=True), None)
    assert out.dtype == torch.float32
    assert cache.nbytes() == spec.kv_bytes_per_token(2) * 4


def test_what_is_cached_carries_no_gradient() -> None:
    spec = layer()
    cache = KVCache([spec], 1, torch.float32, "cpu")
    first = [x.requires_grad_() for x in random_qkv(spec, 1, 3)[1:]]
    tokens = arrange(1, 3, "cpu")
    cache.layers[0].append(*first, tokens)
    cache.advance(tokens)
    later = [x.requires_grad_() for x in random_qkv(spec, 1, 2)[1:]]
    keys, values, _ = cache.layers[0].append(*later, arrange(1, 2, "cpu", past=cache.past))
    assert not keys.requires_grad
    assert not values.requires_grad


def test_a_cache_filled_in_inference_mode_can_be_used_outside_of_it() -> None:
    spec = layer(window=4)
    cache = KVCache([spec], 1, torch.float32, "cpu")
    with torch.inference_mode():
        tokens = arrange(1, 6, "cpu")
        cache.layers[0].append(*random_qkv(spec, 1, 6)[1:], tokens)
        cache.advance(tokens)
    tokens = arrange(1, 1, "cpu", past=cache.past)
    keys, _, _ = cache.layers[0].append(*random_qkv(spec, 1, 1)[1:], tokens)
    assert keys.shape[2] == 4


def test_another_batch_size_is_refused() -> None:
    cache = KVCache([layer()], 2, torch.float32, "cpu")
    with pytest.raises(MinillmError, match="made for batch size 2, got 3 rows"):
        cache.layers[0].append(*random_qkv(layer(), 3, 4)[1:], arrange(3, 4, "cpu"))
