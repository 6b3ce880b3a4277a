"""What must hold for every plan, over more than a thousand random ones.

A plan is one to four random layers: scheme, window or chunk, QK-norm, temperature, heads, soft-cap, backend. Weights
are large enough that every part of it moves the logits. Both passes of an exact comparison have the same shape, so that
equal inputs meet equal kernels and "unchanged" can mean bit for bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from minillm.config.expand import Heads, embedding_scheme, expand
from minillm.config.schema import BlockConfig, ModelConfig
from minillm.model.decoder import Decoder, build_model
from tests.model.small import enlarge, ids

pytestmark = pytest.mark.timeout(600)  # each test is hundreds of models

VOCAB, WIDTH, HEAD_DIM = 13, 12, 4
LONGEST = 24

ROPE = st.fixed_dictionaries(
    {"scheme": st.just("rope"), "theta": st.sampled_from([3.0, 50.0, 1e4])},
    optional={
        "layout": st.sampled_from(["half", "interleaved"]),
        "partial_rotary_factor": st.sampled_from([0.0, 0.5, 1.0]),
        "rule": st.sampled_from(["neox", "proportional"]),
        "scaling": st.sampled_from(
            [
                {"type": "linear", "factor": 2.5},
                {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
                {  # within its length, where a cache is exact; beyond it see position/test_scaling_by_length.py
                    "type": "longrope",
                    "factor": 4.0,
                    "original_max_position_embeddings": LONGEST,
                    "short_factor": 1.5,
                    "long_factor": 4.0,
                },
            ]
        ),
    },
).filter(lambda rope: rope.get("partial_rotary_factor") != 0.0 or "scaling" not in rope)  # refused: it scales nothing
LEARNED_BIASES: list[Any] = [
    {"scheme": "alibi", "learned": True},
    {"scheme": "t5", "num_buckets": 6, "max_distance": 15},
    {"scheme": "t5", "num_buckets": 6, "max_distance": 15, "shared": False},
]
RELATIVE: list[Any] = [
    "transformer_xl",
    {"scheme": "shaw", "max_distance": 3},
    {"scheme": "deberta", "max_distance": 4},
    {"scheme": "deberta", "max_distance": 20, "position_buckets": 6, "terms": ["p2c"], "shared": True},
]
LAYER = st.fixed_dictionaries(
    {
        "position": st.one_of(ROPE, st.sampled_from(["nope", "alibi", *LEARNED_BIASES, *RELATIVE])),
        "qk_norm": st.one_of(
            st.none(),
            st.fixed_dictionaries(
                {
                    "type": st.sampled_from(["rms", "l2", "layernorm"]),
                    "over": st.sampled_from(["head", "full"]),
                    "order": st.sampled_from(["before_rope", "after_rope"]),
                }
            ),
        ),
        "temperature": st.one_of(
            st.none(),
            st.sampled_from(
                [
                    {"type": "llama4", "scale": 0.5, "floor": 3},
                    {"type": "ministral", "scale": 0.5, "floor": 3},
                    {"type": "log_n", "base": 4},
                    {"type": "uniform", "scale": 1.3},
                    {"type": "per_head", "init": 1.3, "minimum": 1.0},
                    {"type": "ssmax", "init": 0.5},
                ]
            ),
        ),
        "sink_logits": st.booleans(),
        "gate": st.booleans(),
        "shared_qk": st.sampled_from([False, False, True]),
        "num_key_value_heads": st.sampled_from([1, 2, 4]),
        "softcap": st.sampled_from([None, None, 2.0]),
        "qkv_bias": st.booleans(),
    }
)
REACH = st.one_of(
    st.none(),
    st.fixed_dictionaries({"window": st.integers(1, 9)}, optional={"sink_tokens": st.integers(1, 5)}),
    st.fixed_dictionaries({"chunk": st.integers(1, 9)}),
)
BLOCK = st.sampled_from(
    [
        BlockConfig(norm_eps=1e-6),
        BlockConfig(norm="layernorm", norm_bias=True, mlp="gelu", mlp_bias=True, attention_bias=True),
        BlockConfig(norm="layernorm", norm_placement="parallel", logit_scale=0.5, residual_scale=0.7),
        BlockConfig(norm="layernorm", norm_placement="parallel_split", mlp="gelu_erf", embedding_norm=True),
        BlockConfig(norm_unit_offset=True, norm_placement="sandwich", mlp="geglu", embedding_scale="sqrt_hidden"),
        BlockConfig(norm_placement="branch_post", tie_word_embeddings=False),
        BlockConfig(norm_placement="post", final_logit_softcapping=5.0),
    ]
)


class Plan(NamedTuple):
    """A model to build, and the number of tokens it is tried on."""

    layers: list[dict[str, Any]]
    block: BlockConfig
    embedding: Any
    heads: int
    length: int
    backend: str

    def build(self) -> Decoder:
        names = [str(i) for i in range(len(self.layers))]
        layers = {"kinds": dict(zip(names, self.layers, strict=True)), "pattern": names}
        specs, _ = expand(layers, {}, len(names), Heads(self.heads, self.heads, HEAD_DIM), LONGEST)
        made = ModelConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            intermediate_size=16,
            num_hidden_layers=len(names),
            max_position_embeddings=LONGEST,
            layers=specs,
            block=self.block,
            embedding_position=embedding_scheme(self.embedding, WIDTH),
            backend=self.backend,  # type: ignore[arg-type]
        )
        return enlarge(build_model(made), std=0.3)

    @property
    def tokens(self) -> Tensor:
        return ids(1, self.length, vocab=VOCAB)


BY_RULE = ("sinusoidal", "binary", "integer")


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    layers = draw(st.lists(LAYER, min_size=1, max_size=4))
    heads = draw(st.sampled_from([4, 4, 2]))
    backend = draw(st.sampled_from(["auto", "auto", "reference", "sdpa"]))
    for layer in layers:
        layer.update(draw(REACH) or {})
        layer["num_key_value_heads"] = min(layer["num_key_value_heads"], heads)
        if backend == "sdpa":
            layer["softcap"] = None  # refused otherwise
            if layer["position"] in RELATIVE:
                layer["position"] = "alibi"
    embedding = draw(st.sampled_from([None, None, None, "learned", *({"scheme": n, "scale": 0.5} for n in BY_RULE)]))
    return Plan(layers, draw(BLOCK), embedding, heads, draw(st.integers(2, LONGEST)), backend)


@settings(max_examples=400)
@given(plans(), st.data())
@torch.no_grad()
def test_a_later_token_never_changes_an_earlier_logit(plan: Plan, data: st.DataObject) -> None:
    cut = data.draw(st.integers(1, plan.length - 1), label="first changed token")
    tokens = plan.tokens
    other = tokens.clone()
    other[0, cut:] = (other[0, cut:] + 1) % VOCAB
    model = plan.build()
    one, changed = model(tokens), model(other)
    assert torch.equal(one[0, :cut], changed[0, :cut])
    assert not torch.equal(one[0, cut], changed[0, cut]), "a token that does not change its own logits tests nothing"


@settings(max_examples=400)
@given(plans(), st.data())
@torch.no_grad()
def test_documents_packed_together_never_see_each_other(plan: Plan, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, plan.length - 1), label="start")
    stop = data.draw(st.integers(start + 1, plan.length), label="stop")
    names = data.draw(st.sampled_from([(0, 1, 2), (5, 3, 5), (-1, 0, -1)]), label="documents before, here, after")
    documents = torch.tensor([[names[0]] * start + [names[1]] * (stop - start) + [names[2]] * (plan.length - stop)])
    tokens = plan.tokens
    other = (tokens + 1) % VOCAB
    other[0, start:stop] = tokens[0, start:stop]
    model = plan.build()
    packed = model(tokens, document_ids=documents)[0, start:stop]
    beside_others = model(other, document_ids=documents)[0, start:stop]
    assert torch.equal(packed, beside_others)
    alone = model(tokens[:, start:stop])[0]
    assert (packed - alone).abs().max() <= 1e-4


@st.composite
def placings(draw: st.DrawFn, length: int) -> tuple[Tensor | None, Tensor | None]:
    """Document ids, or positions, or neither."""
    kind = draw(st.sampled_from(["plain", "packed", "placed"]))
    if kind == "packed":
        border = draw(st.integers(0, length))
        padding = draw(st.integers(0, border))
        return torch.tensor([[-1] * padding + [0] * (border - padding) + [1] * (length - border)]), None
    if kind == "placed":
        start = draw(st.integers(0, LONGEST - length))
        return None, torch.arange(start, start + length)[None]
    return None, None


@settings(max_examples=400)
@given(plans(), st.data())
@torch.no_grad()
def test_logits_do_not_depend_on_how_a_text_is_cut(plan: Plan, data: st.DataObject) -> None:
    cuts: list[int] = []
    while sum(cuts) < plan.length:
        cuts.append(data.draw(st.integers(1, plan.length - sum(cuts)), label="piece"))
    documents, positions = data.draw(placings(plan.length), label="documents and positions")
    model = plan.build()
    whole = model(plan.tokens, document_ids=documents, positions=positions)
    cache = model.new_cache(1)
    pieces = []
    at = 0
    for size in cuts:
        piece = slice(at, at + size)
        pieces.append(
            model(
                plan.tokens[:, piece],
                document_ids=None if documents is None else documents[:, piece],
                # Given once, positions go on from there.
                positions=None if positions is None or at else positions[:, piece],
                cache=cache,
            )
        )
        at += size
    assert len(cache) == plan.length
    assert (torch.cat(pieces, dim=1) - whole).abs().max() <= 1e-4


@st.composite
def stacked_windows(draw: st.DrawFn) -> Plan:
    """Layers of one window each."""
    layers = draw(st.lists(LAYER, min_size=1, max_size=4))
    for layer in layers:
        layer["window"] = draw(st.integers(1, 5))
        layer["temperature"] = None  # hot queries leave the farthest key no weight in float32
    return Plan(layers, draw(BLOCK), None, 4, LONGEST, draw(st.sampled_from(["auto", "reference"])))


@settings(max_examples=300)
@given(stacked_windows())
@torch.no_grad()
def test_stacked_windows_reach_exactly_as_far_as_they_add_up_to(plan: Plan) -> None:
    """n windows of W reach n * (W - 1) tokens back: nothing beyond that, something at it."""
    reach = sum(layer["window"] - 1 for layer in plan.layers)
    model, tokens, changed = plan.build(), plan.tokens, 3
    other = tokens.clone()
    other[0, changed] = (other[0, changed] + 1) % VOCAB
    moved = (model(tokens) != model(other)).any(dim=-1)[0]
    assert moved.nonzero().min() == changed
    assert moved.nonzero().max() == changed + reach
