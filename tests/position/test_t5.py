"""T5's bias: exact buckets, a table whose gradient no backend spoils, one table for all layers or one for each."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.attention.backends import attend, unsupported
from minillm.attention.tokens import StepContext, Tokens
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError
from minillm.model.decoder import build_model
from minillm.position import LayerPosition, LayerShape, PositionScheme, t5_bucket
from minillm.position.alibi import ALiBi
from minillm.position.t5 import T5
from tests.attention.cases import LAYOUTS, layer, random_qkv
from tests.model import small

At = Callable[..., Tokens]
SETTINGS = [(32, 128), (32, 64), (33, 100), (16, 20), (2, 8), (8, 32), (128, 2048)]


def module_of(scheme: PositionScheme, heads: int = 4) -> LayerPosition:
    module = scheme.make(LayerShape(0, heads, heads, 8))
    assert module is not None
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=torch.Generator().manual_seed(5))
    return module


def test_buckets_of_32_up_to_128_begin_where_the_facts_say() -> None:
    bucket = t5_bucket(torch.arange(500), 32, 128)
    assert bucket.dtype == torch.int64
    firsts = [int((bucket == b).nonzero()[0]) for b in range(32)]
    assert firsts == [*range(16), 16, 19, 21, 24, 27, 31, 35, 40, 46, 52, 59, 67, 77, 87, 99, 113]


@pytest.mark.parametrize(("num_buckets", "max_distance"), SETTINGS)
def test_buckets_are_those_of_transformers_at_every_distance(num_buckets: int, max_distance: int) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    distance = torch.arange(2001)
    theirs = t5.T5Attention._relative_position_bucket(
        -distance, bidirectional=False, num_buckets=num_buckets, max_distance=max_distance
    )
    assert torch.equal(t5_bucket(distance, num_buckets, max_distance), theirs)


def test_a_distance_that_float32_puts_a_bucket_too_high_is_put_right() -> None:
    """41 + 42 * log(796 / 41) / log(1000 / 41) is 79.999998: decided here without a logarithm."""
    assert Fraction(796, 41) ** 42 < Fraction(1000, 41) ** 39
    assert t5_bucket(torch.tensor([795, 796, 797]), 83, 1000).tolist() == [79, 79, 80]


def test_a_key_in_the_future_falls_into_the_first_bucket() -> None:
    assert t5_bucket(torch.tensor([[-300, -1], [0, 1]])).tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize("heads", [4, 6])
def test_the_bias_is_that_of_transformers_for_the_same_table(heads: int, at: At) -> None:
    t5 = pytest.importorskip("transformers.models.t5.modeling_t5")
    config = pytest.importorskip("transformers").T5Config(is_decoder=True, num_heads=heads)
    theirs = t5.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    ours = module_of(T5(), heads)
    ours.load_state_dict({"buckets.weight": theirs.relative_attention_bias.weight})
    wanted = theirs.compute_bias(150, 150)
    got = ours.bias(at(150), at(150))
    assert got is not None
    assert torch.equal(got.tril(), wanted.tril())


def test_far_neighbours_stay_apart_in_a_half_precision_model(at: At) -> None:
    module = module_of(T5(num_buckets=64, max_distance=4096)).to(torch.bfloat16)
    bias = module.bias(at([4095]), at(4096))
    assert bias is not None
    assert bias.dtype == torch.float32
    assert len(bias[0, 0, 0].unique()) > 50


def test_the_bias_reads_positions_and_not_places(at: At) -> None:
    module = module_of(T5())
    near, far = module.bias(at([[0, 1], [0, 50]]), at([[0, 1], [0, 50]])), module.bias(at([100, 150]), at([100, 150]))
    assert near is not None
    assert far is not None
    assert torch.equal(near[1], far[0])
    assert not torch.equal(near[0], near[1])


MASKS: dict[str, dict[str, int]] = {"full": {}, "window": {"window": 20}, "chunk": {"chunk": 20}}
LEARNED: dict[str, PositionScheme] = {
    "t5": T5(num_buckets=8, max_distance=30),
    "t5 per layer": T5(num_buckets=8, max_distance=30, shared=False),
    "alibi": ALiBi(learned=True),
}
POSSIBLE = [
    pytest.param(backend, mask, id=f"{backend}, {mask}")
    for backend in ("sdpa", "banded")
    for mask in MASKS
    if unsupported(backend, layer(**MASKS[mask])) is None
]


def gradients(backend: str, specs: list[LayerSpec], module: LayerPosition, qkv: list[Tensor], tokens: Tokens) -> Any:
    """Of two layers in one call, as a shared table has them."""
    context = StepContext(tokens, contiguous=True)
    out = sum(attend(*qkv, spec, tokens, tokens, context, module, backend).pow(2).sum() for spec in specs)
    return torch.autograd.grad(out, list(module.parameters()))  # type: ignore[arg-type]


@pytest.mark.parametrize("name", LEARNED)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(("backend", "mask"), POSSIBLE)
def test_a_tables_gradient_is_the_references(backend: str, mask: str, layout: str, name: str) -> None:
    specs = [
        LayerSpec(index, "tested", LEARNED[name], 4, 2, 8, **MASKS[mask])  # type: ignore[arg-type]
        for index in range(2)
    ]
    module = module_of(LEARNED[name])
    length = 150  # above what goes through a kernel at once, and no multiple of a block
    tokens, qkv = LAYOUTS[layout](2, length), random_qkv(specs[0], 2, length)
    got, wanted = (gradients(b, specs, module, qkv, tokens) for b in (backend, "reference"))
    assert wanted[0].abs().max() > 1e-2
    torch.testing.assert_close(got, wanted, atol=1e-4, rtol=1e-4)


def test_one_table_serves_all_layers_or_each_has_its_own() -> None:
    def tables(shared: bool) -> list[str]:
        plan = {"position": {"scheme": "t5", "shared": shared}}
        model = build_model(small.config(plan, {**plan, "window": 4}, plan))
        return [name for name, p in model.named_parameters() if p.shape == (32, 4)]

    assert len(tables(shared=True)) == 1
    assert len(tables(shared=False)) == 3


def test_layers_of_unlike_buckets_do_not_share() -> None:
    plans = [{"position": {"scheme": "t5", "num_buckets": n}} for n in (32, 8, 32)]
    model = build_model(small.config(*plans))
    assert sorted(len(p) for n, p in model.named_parameters() if n.startswith("shared_positions")) == [8, 32]


def test_a_shared_table_is_trained_by_every_layer() -> None:
    """Its gradient is the sum of those that the layers' own tables get."""
    plan = {"position": {"scheme": "t5", "num_buckets": 8, "max_distance": 16}}
    own = {"position": {**plan["position"], "shared": False}}
    shared, separate = small.large(small.config(plan, plan)), small.large(small.config(own, own))
    table = next(p for n, p in shared.named_parameters() if n.startswith("shared_positions"))
    weights = {n: p for n, p in shared.state_dict().items() if not n.startswith("shared_positions")}
    for index in range(2):
        weights[f"layers.{index}.attention.position.buckets.weight"] = table
    separate.load_state_dict(weights)
    ids, targets = small.ids(2, 20), small.ids(2, 20, seed=2)
    losses = [model.loss(ids, targets) for model in (shared, separate)]
    assert losses[0].item() == pytest.approx(losses[1].item(), abs=1e-6)
    for loss in losses:
        loss.backward()
    parts = [layer_.attention.position.buckets.weight.grad for layer_ in separate.layers]
    assert all(part is not None and part.abs().max() > 1e-5 for part in parts)
    torch.testing.assert_close(table.grad, parts[0] + parts[1], atol=1e-6, rtol=1e-4)  # type: ignore[operator]


@pytest.mark.parametrize(
    ("num_buckets", "max_distance", "message"),
    [
        (1, 128, r"position\.num_buckets = 1: must be at least 2"),
        (32, 16, r"position\.max_distance = 16: must be above num_buckets // 2 = 16"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(num_buckets: int, max_distance: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        T5(num_buckets, max_distance).validate(LayerShape(0, 4, 2, 8))


def test_the_smallest_allowed_setting_works() -> None:
    assert t5_bucket(torch.arange(6), 2, 2).tolist() == [0, 1, 1, 1, 1, 1]
    assert t5_bucket(torch.arange(40), 32, 17).max() == 31


@pytest.mark.parametrize("window", [None, 20], ids=["full", "windows"])
def test_layers_with_other_key_heads_share_the_table_that_belongs_to_query_heads(window: int | None) -> None:
    layers = tuple(LayerSpec(i, "a", T5(), 4, groups, 8, window=window) for i, groups in enumerate((2, 4, 1)))
    made = ModelConfig(50, 32, 48, 3, 64, layers)
    model = build_model(made)
    with torch.no_grad():
        for p in model.parameters():
            p.normal_(0, 0.3)
    assert [n for n in model.state_dict() if "buckets" in n] == ["shared_positions.t5_4.buckets.weight"]
    oracle = build_model(dataclasses.replace(made, backend="reference"))
    oracle.load_state_dict(model.state_dict())
    tokens = torch.arange(2 * 90).reshape(2, 90) % 50
    torch.testing.assert_close(model(tokens), oracle(tokens), atol=1e-4, rtol=0)


def test_two_shared_tables_keep_their_names_whichever_layer_comes_first() -> None:
    near, far = T5(8, 20), T5(8, 30)

    def tables(*schemes: T5) -> list[str]:
        layers = tuple(LayerSpec(i, "a", scheme, 4, 2, 8) for i, scheme in enumerate(schemes))
        model = build_model(ModelConfig(50, 32, 48, len(layers), 64, layers), device="meta")
        return sorted(model.shared_positions)

    names = ["t5_num_buckets8_max_distance20_4", "t5_num_buckets8_max_distance30_4"]
    assert tables(near, far, near) == tables(far, near) == names
    assert tables(far) == names[1:]
