"""ALiBi: golden slopes for any number of heads, and a bias that half precision cannot spoil."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from minillm.attention.cache import KVCache
from minillm.attention.tokens import Tokens
from minillm.errors import ConfigError
from minillm.position import LayerPosition, LayerShape, alibi_slopes
from minillm.position.alibi import ALiBi
from tests.model import small

At = Callable[..., Tokens]


def bias_module(heads: int, kv_heads: int | None = None) -> LayerPosition:
    module = ALiBi().make(LayerShape(0, heads, kv_heads or heads, 8))
    assert module is not None
    return module


@pytest.mark.parametrize(
    ("heads", "exponents"),
    [
        (1, [-8]),
        (2, [-4, -8]),
        (3, [-4, -8, -2]),
        (4, [-2, -4, -6, -8]),
        (6, [-2, -4, -6, -8, -1, -3]),
        (8, [-1, -2, -3, -4, -5, -6, -7, -8]),
        (12, [-1, -2, -3, -4, -5, -6, -7, -8, -0.5, -1.5, -2.5, -3.5]),
        (16, [-0.5 * i for i in range(1, 17)]),
        (20, [*(-0.5 * i for i in range(1, 17)), -0.25, -0.75, -1.25, -1.75]),
    ],
)
def test_slopes_are_the_reference_list_in_its_order(heads: int, exponents: list[float]) -> None:
    slopes = alibi_slopes(heads)
    assert slopes.dtype == torch.float32
    torch.testing.assert_close(slopes, 2.0 ** torch.tensor(exponents, dtype=torch.float32))


def test_no_heads_is_an_error() -> None:
    with pytest.raises(ConfigError, match="num_attention_heads = 0"):
        alibi_slopes(0)


def test_the_bias_is_minus_slope_times_distance(at: At) -> None:
    bias = bias_module(2).bias(at(4), at(4))
    assert bias is not None
    assert bias.dtype == torch.float32
    seen = bias[0].tril()
    distance = torch.tensor([[0, 0, 0, 0], [1, 0, 0, 0], [2, 1, 0, 0], [3, 2, 1, 0]]).float()
    torch.testing.assert_close(seen, torch.stack((-distance / 16, -distance / 256)), atol=0, rtol=0)


def test_the_bias_is_never_positive_even_where_the_mask_will_hide_it(at: At) -> None:
    bias = bias_module(3).bias(at([0, 9, 2]), at([5, 0, 2]))
    assert bias is not None
    assert (bias <= 0).all()


@pytest.mark.bug("B041")
def test_far_neighbours_stay_apart_in_a_half_precision_model(at: At) -> None:
    module = bias_module(8).to(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        bias = module.bias(at([4095]), at(4096))
    assert bias is not None
    assert bias.dtype == torch.float32
    step = bias[0, :, 0, 1095] - bias[0, :, 0, 1094]  # distances 3000 and 3001
    torch.testing.assert_close(step, alibi_slopes(8), atol=0, rtol=1e-3)
    assert len(bias[0, 7, 0].unique()) == 4096


def test_a_decoded_token_gets_the_row_it_had_in_the_full_pass(at: At) -> None:
    module = bias_module(4)
    full, one = module.bias(at(9), at(9)), module.bias(at([8]), at(9))
    assert full is not None
    assert one is not None
    assert torch.equal(one[:, :, 0], full[:, :, 8])


def test_slopes_belong_to_query_heads(at: At) -> None:
    bias = bias_module(6, kv_heads=2).bias(at(3), at(3))
    assert bias is not None
    assert bias.shape == (1, 6, 3, 3)


def test_each_row_may_have_its_own_positions(at: At) -> None:
    bias = bias_module(2).bias(at([[0, 1], [0, 5]]), at([[0, 1], [0, 5]]))
    assert bias is not None
    torch.testing.assert_close(bias[:, 0, 1, 0], torch.tensor([-1 / 16, -5 / 16]))


@pytest.mark.bug("B030")
def test_slopes_survive_a_build_on_the_meta_device(at: At) -> None:
    with torch.device("meta"):
        module = bias_module(2)
    module.to_empty(device="cpu")
    bias, expected = module.bias(at(3), at(3)), bias_module(2).bias(at(3), at(3))
    assert bias is not None
    assert expected is not None
    assert torch.equal(bias, expected)


def test_layers_may_share_one_bias() -> None:
    assert ALiBi().bias_key == ALiBi().bias_key is not None


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_those_of_bloom_and_mpt_in_their_order(heads: int) -> None:
    bloom = pytest.importorskip("transformers.models.bloom.modeling_bloom")
    mpt = pytest.importorskip("transformers.models.mpt.modeling_mpt")
    theirs = bloom.build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(alibi_slopes(heads), theirs, rtol=1e-6, atol=0)
    torch.testing.assert_close(alibi_slopes(heads), -mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0], rtol=1e-6, atol=0)


def learned_module(heads: int) -> LayerPosition:
    module = ALiBi(learned=True).make(LayerShape(0, heads, heads, 8))
    assert module is not None
    module.reset_parameters()  # type: ignore[operator]
    return module


@pytest.mark.parametrize("heads", [1, 6, 8])
def test_learned_slopes_start_as_exactly_the_fixed_ones(heads: int, at: At) -> None:
    learned, fixed = learned_module(heads).bias(at(50), at(50)), bias_module(heads).bias(at(50), at(50))
    assert learned is not None
    assert fixed is not None
    assert torch.equal(learned, fixed)


def test_learned_slopes_are_powers_that_never_favour_distance(at: At) -> None:
    module = learned_module(2)
    with torch.no_grad():
        module.log2_change.copy_(torch.tensor([1.0, -30.0]))  # type: ignore[operator, union-attr]
    bias = module.bias(at(4), at(4))
    assert bias is not None
    torch.testing.assert_close(bias[0, 0, 3], torch.tensor([-3 / 8, -2 / 8, -1 / 8, 0]))
    assert (bias <= 0).all()


def test_learned_slopes_are_the_layers_own() -> None:
    assert ALiBi(learned=True).bias_key is None
    assert [n for n, _ in bias_module(4).named_parameters()] == []
    assert [n for n, _ in learned_module(4).named_parameters()] == ["log2_change"]


def cached_keys(caches: list[KVCache], layer: int) -> list[torch.Tensor]:
    held = [cache.layers[layer].keys.held for cache in caches]
    return [keys for keys in held if keys is not None]


@pytest.mark.parametrize("learned", [False, True], ids=["fixed", "learned"])
def test_a_prefix_cached_once_serves_at_any_offset(learned: bool) -> None:
    """ALiBi leaves keys as they are, so what is cached of a prefix does not know where it stood (RoPE's keys do)."""

    def standing_at(start: int, stop: int) -> torch.Tensor:
        return torch.arange(start, stop).expand(2, -1)

    model = small.large(small.config(*[{"position": {"scheme": "alibi", "learned": learned}}] * 2))
    prefix, rest = small.ids(2, 9), small.ids(2, 5, seed=3)
    caches = [model.new_cache(2) for _ in range(2)]
    answers = []
    for cache, start in zip(caches, (0, 700), strict=True):
        model(prefix, positions=standing_at(start, start + 9), cache=cache)
        answers.append(model(rest, positions=standing_at(start + 9, start + 14), cache=cache))
    for layer in range(2):
        near, far = cached_keys(caches, layer)
        assert torch.equal(near[:, :, :9], far[:, :, :9])
    assert torch.equal(*answers)

    rope = small.large(small.config({"position": "rope"}))
    caches = [rope.new_cache(2) for _ in range(2)]
    for cache, start in zip(caches, (0, 700), strict=True):
        rope(prefix, positions=standing_at(start, start + 9), cache=cache)
    near, far = cached_keys(caches, 0)
    assert not torch.allclose(near[:, :, :9], far[:, :, :9], atol=1e-2)
