"""Eviction on full-attention layers: the same weights under a plan with `window` and `sink_tokens` there."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.attention.cache import KVCache
from minillm.attention.cache_settings import CacheSettings, Evict
from minillm.errors import ConfigError
from minillm.generation import generate
from minillm.model.cost import cost
from minillm.model.decoder import Decoder, build_model
from tests.attention.cases import layer
from tests.model.small import config, ids, large

PLANS: dict[str, list[dict[str, Any]]] = {
    "nope": [{"position": {"theta": 100.0}, "window": 4}, {"position": "nope"}],
    "rope": [{"position": {"theta": 100.0}}, {"position": {"theta": 100.0}, "chunk": 5}],
    "alibi": [{"position": "alibi"}, {"position": "nope", "sink_logits": True}],
    "t5": [{"position": "t5", "softcap": 20.0}, {"position": "shaw"}],
    "temperature": [{"position": "nope", "temperature": {"type": "log_n", "base": 3}}],
}
CUTS = ([30], [1] * 30, [12] + [1] * 18, [7, 11, 2, 10])


def two(plan: str, kept: int) -> tuple[Decoder, Decoder]:
    """A model, and its weights under the plan whose full layers see 6 tokens and the first `kept`."""
    model = large(config(*PLANS[plan]))
    seen = {"window": 6, **({"sink_tokens": kept} if kept else {})}
    other = build_model(config(*(one if "window" in one or "chunk" in one else {**one, **seen} for one in PLANS[plan])))
    other.load_state_dict(model.state_dict())
    return model, other.eval()


def logits(model: Decoder, tokens: Tensor, sizes: list[int], settings: CacheSettings | None) -> Tensor:
    cache = model.new_cache(len(tokens)) if settings is None else model.new_cache(len(tokens), settings)
    with torch.no_grad():
        return torch.cat([model(piece, cache=cache) for piece in tokens.split(sizes, dim=1)], dim=1)


@pytest.mark.bug("B008")
@pytest.mark.parametrize("kept", [0, 2])
@pytest.mark.parametrize("plan", PLANS)
def test_it_is_the_plan_with_windows_and_first_tokens_however_a_text_is_cut(plan: str, kept: int) -> None:
    model, other = two(plan, kept)
    tokens = ids(2, 30)
    with torch.no_grad():
        wanted, full = other(tokens), model(tokens)
    for sizes in CUTS:
        got = logits(model, tokens, sizes, CacheSettings(evict=Evict(6, kept)))
        torch.testing.assert_close(got, wanted, atol=1e-4, rtol=0)
    assert (wanted - full).abs().max() > 1e-2


def test_nothing_is_lost_before_the_window_is_full() -> None:
    model, _ = two("rope", 2)
    tokens = ids(2, 6)
    got = logits(model, tokens, [4, 1, 1], CacheSettings(evict=Evict(6, 2)))
    torch.testing.assert_close(got, logits(model, tokens, [6], None), atol=1e-5, rtol=0)


@pytest.mark.bug("B015")
def test_generation_is_that_of_the_other_plan_for_unequal_prompts() -> None:
    model, other = two("nope", 2)
    prompts = [ids(1, n, seed=n)[0].tolist() for n in (14, 3, 9)]
    evicting = generate(model, prompts, max_new_tokens=12, cache=CacheSettings(evict=Evict(6, 2)))
    assert evicting == generate(other, prompts, max_new_tokens=12)
    assert evicting != generate(model, prompts, max_new_tokens=12)


def test_memory_stands_still_and_is_what_the_formula_says() -> None:
    model, other = two("nope", 2)
    settings = CacheSettings(evict=Evict(6, 2))
    for length in (20, 200):
        cache = model.new_cache(1, settings)
        with torch.no_grad():
            model(ids(1, length), cache=cache)
        assert cache.nbytes() == cost(model.config, length, cache=settings).kv_bytes
        assert cache.nbytes() == cost(other.config, length).kv_bytes


def test_a_plan_without_full_layers_is_refused() -> None:
    with pytest.raises(ConfigError, match="no layer of this plan has full attention"):
        KVCache([layer(window=4), layer(chunk=5)], 1, torch.float32, "cpu", CacheSettings(evict=Evict(3)))
