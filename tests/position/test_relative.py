"""Shaw, Transformer-XL and DeBERTa: the papers' formulas pair by pair, forward and backward, under every mask."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.attention.backends import attend, check
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError
from minillm.model.cost import cost
from minillm.model.decoder import build_model
from minillm.position import LayerPosition, LayerShape, PositionScheme
from minillm.position.deberta import DeBERTa
from minillm.position.shaw import Shaw
from minillm.position.transformer_xl import TransformerXL
from tests.model import small
from tests.position import relative_naive

LENGTH = 9
SCHEMES: dict[str, PositionScheme] = {
    "shaw": Shaw(max_distance=3),
    "shaw, keys only": Shaw(max_distance=3, values=False),
    "transformer_xl": TransformerXL(),
    "deberta": DeBERTa(max_distance=5),
    "deberta, c2p": DeBERTa(max_distance=5, terms=("c2p",)),
    "deberta, p2c": DeBERTa(max_distance=50, terms=("p2c",)),
}
MASKS: dict[str, dict[str, int]] = {"full": {}, "window": {"window": 4}, "chunk": {"chunk": 4}}
ROWS: dict[str, tuple[list[list[int]], int]] = {
    "one document": ([[0] * LENGTH] * 2, 0),
    "positions from 50": ([[0] * LENGTH] * 2, 50),
    "packed documents": ([[0] * 3 + [1] * 6, [0] * 7 + [1] * 2], 0),
    "padded rows": ([[-1] * 2 + [0] * 7, [0] * 4 + [1] * 3 + [-1] * 2], 0),
}


def layer(scheme: PositionScheme, **fields: Any) -> LayerSpec:
    """Two query heads for each key head, and heads of odd width."""
    return LayerSpec(0, "tested", scheme, 4, 2, 5, **fields)


def module_of(spec: LayerSpec) -> LayerPosition:
    module = spec.position.make(spec.shape)
    assert module is not None
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.7)
    return module


def projected(spec: LayerSpec, batch: int = 2, length: int = LENGTH) -> list[Tensor]:
    heads = (spec.num_attention_heads, spec.num_key_value_heads, spec.num_key_value_heads)
    return [torch.randn(batch, n, length, spec.head_dim) for n in heads]


def attended(spec: LayerSpec, module: LayerPosition, qkv: list[Tensor], tokens: Tokens) -> Tensor:
    q, k, v = qkv
    return attend(q, k, v, spec, tokens, tokens, StepContext(tokens, contiguous=True), module)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("name", SCHEMES)
def test_it_is_the_formula_pair_by_pair_with_its_gradients(name: str, mask: str, rows: str) -> None:
    spec = layer(SCHEMES[name], **MASKS[mask])
    documents, start = ROWS[rows]
    module, qkv = module_of(spec), [x.requires_grad_() for x in projected(spec)]
    positions = [start + t for t in range(LENGTH)]
    if len(set(documents[0])) == 1:
        tokens = arrange(2, LENGTH, "cpu", positions=None if start == 0 else torch.tensor(positions))
    else:
        tokens = arrange(2, LENGTH, "cpu", torch.tensor(documents))
    weight = torch.linspace(-1, 1, qkv[0].numel()).reshape(qkv[0].shape)
    out = attended(spec, module, qkv, tokens)
    trained = dict(module.named_parameters())
    grads = torch.autograd.grad((out * weight).sum(), [*qkv, *trained.values()])

    own = {n: p.detach().double().requires_grad_() for n, p in trained.items()}
    q, k, v = (x.detach().double().requires_grad_() for x in qkv)
    wanted = relative_naive.attention(spec, own, q, k, v, documents, positions)
    wanted_grads = torch.autograd.grad((wanted * weight).sum(), [q, k, v, *own.values()])
    torch.testing.assert_close(out.double(), wanted, atol=1e-5, rtol=0)
    for got, want in zip(grads, wanted_grads, strict=True):
        torch.testing.assert_close(got.double(), want, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("name", SCHEMES)
def test_every_parameter_learns_in_a_model(name: str) -> None:
    spec = LayerSpec(0, "tested", SCHEMES[name], 4, 2, 8)
    model = build_model(dataclasses.replace(small.config({"position": "nope"}), layers=(spec,)))
    model.loss(small.ids(2, 30), small.ids(2, 30, seed=2)).backward()
    trained = dict(model.layers[0].attention.position.named_parameters())
    assert trained
    assert [n for n, p in trained.items() if p.grad is None or not p.grad.abs().max() > 0] == []


@pytest.mark.parametrize("name", SCHEMES)
def test_a_plain_row_is_computed_without_waiting_for_the_device(name: str) -> None:
    """Tensors of the meta device have no values, so reading one would raise."""
    spec = layer(SCHEMES[name])
    tokens = arrange(2, LENGTH, "meta")
    module, q = module_of(spec).to("meta"), torch.empty(2, 4, LENGTH, 5, device="meta")
    assert module.scores(q, q, tokens, tokens).shape == (2, 4, LENGTH, LENGTH)


@pytest.mark.bug("B021")
@pytest.mark.parametrize("backend", ["sdpa", "banded"])
@pytest.mark.parametrize("name", SCHEMES)
def test_fused_backends_are_refused_by_name_at_build_time(name: str, backend: str) -> None:
    scheme = SCHEMES[name]
    with pytest.raises(ConfigError, match=rf"'{backend}' cannot compute layer 0 .*'{scheme.scheme}'.*'reference' can"):
        check(backend, layer(scheme, window=4))


def test_a_distance_beyond_the_clip_is_the_clip() -> None:
    spec = layer(Shaw(max_distance=2))
    module, (q, k, _) = module_of(spec), projected(spec)
    tokens = arrange(2, LENGTH, "cpu")
    terms = module.scores(q, k.repeat_interleave(2, 1), tokens, tokens)
    assert torch.equal(terms[:, :, -1, :-2], terms[:, :, -1, :1].expand(-1, -1, LENGTH - 2))
    assert (terms[:, :, -1, -3:].diff() != 0).all()


def test_deberta_divides_by_one_more_term_for_each_it_adds() -> None:
    assert layer(DeBERTa()).score_scale == (3 * 5) ** -0.5
    assert layer(DeBERTa(terms=("p2c",))).score_scale == (2 * 5) ** -0.5
    assert layer(Shaw()).score_scale == layer(TransformerXL()).score_scale == 5**-0.5


def test_shared_deberta_has_one_table_for_all_layers() -> None:
    config = small.config(*[{"position": {"scheme": "deberta", "shared": shared}} for shared in (True, True, False)])
    names = [name for name in build_model(config).state_dict() if name.endswith("table.weight")]
    assert len(names) == 2
    assert "layers.2.attention.position.table.weight" in names


@pytest.mark.parametrize(
    ("scheme", "shape", "message"),
    [
        (Shaw(max_distance=0), (4, 2, 5), r"max_distance = 0: must be at least 1"),
        (TransformerXL(), (3, 3, 5), r"head_dim = 15: transformer_xl needs an even width"),
        (DeBERTa(max_distance=1), (4, 2, 5), r"max_distance = 1: must be at least 2"),
        (DeBERTa(position_buckets=7), (4, 2, 5), r"position_buckets = 7: must be even"),
        (DeBERTa(max_distance=8, position_buckets=8), (4, 2, 5), r"below max_distance = 8"),
        (DeBERTa(terms=()), (4, 2, 5), r"terms = \[\]: must be c2p, p2c, or both"),
        (DeBERTa(terms=("c2p", "c2p")), (4, 2, 5), r"must be c2p, p2c, or both, each once"),
    ],
)
def test_numbers_that_mean_nothing_are_refused(
    scheme: PositionScheme, shape: tuple[int, int, int], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        scheme.validate(LayerShape(0, *shape))


@pytest.mark.parametrize("name", SCHEMES)
def test_its_flops_are_those_of_its_products_at_the_distances_seen(name: str) -> None:
    """Counted one by one: products per query and different (clipped) distance, and what is projected once."""
    scheme, heads, kv_heads, width, length = SCHEMES[name], 4, 2, 5, 9
    shape = LayerShape(0, heads, kv_heads, width)
    flops = 0.0
    for query in range(length):
        if isinstance(scheme, Shaw):
            seen = len({min(query - key, scheme.max_distance) for key in range(query + 1)})
            flops += (2 if scheme.values else 1) * 2 * heads * width * seen
        elif isinstance(scheme, TransformerXL):
            flops += 2 * heads * width * (query + 1) + 2 * heads * width  # r, and u . k of its own key
            flops += 2 * (heads * width) ** 2  # one more distance to project
        elif isinstance(scheme, DeBERTa):
            seen = len({min(query - key, scheme.max_distance - 1) for key in range(query + 1)})
            flops += len(scheme.terms) * 2 * heads * width * seen
    if isinstance(scheme, DeBERTa):
        outputs = sum({"c2p": kv_heads, "p2c": heads}[term] * width for term in scheme.terms)
        flops += 2 * scheme.max_distance * heads * width * outputs
    assert scheme.flops_per_token(shape, length) == pytest.approx(flops / length)


def test_the_cost_of_a_plan_has_the_terms_in_it() -> None:
    plain, shaw = (cost(small.config({"position": name}), 64) for name in ("nope", "shaw"))
    assert shaw.forward_flops_per_token > plain.forward_flops_per_token
    assert shaw.parameters - plain.parameters == 2 * 17 * 8
