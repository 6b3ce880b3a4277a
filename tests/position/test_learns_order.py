"""Does a scheme tell a model the order of its tokens? One small layer learns to name the token before, or cannot.

Without position, a causal layer sees of the tokens before only which they are and how many of each: one layer, because
a second one may find out how long the prefix is and count. What such a model can reach at best is known, the entropy
of drawing one of the earlier tokens at random, and it must not be better than that.
"""

from __future__ import annotations

import functools

import pytest
import torch
from torch import Tensor

from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.model.decoder import build_model
from minillm.position import SCHEMES, EmbeddingScheme, PositionScheme
from minillm.position.alibi import ALiBi
from minillm.position.binary import Binary
from minillm.position.deberta import DeBERTa
from minillm.position.integer import Integer
from minillm.position.learned import Learned
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.shaw import Shaw
from minillm.position.sinusoidal import Sinusoidal
from minillm.position.t5 import T5
from minillm.position.transformer_xl import TransformerXL

VOCAB, LENGTH, BATCH, STEPS = 8, 8, 16, 200

LEARNS: dict[str, PositionScheme] = {
    "alibi": ALiBi(),
    "alibi, learned": ALiBi(learned=True),
    "binary": Binary(),
    "deberta": DeBERTa(max_distance=4),
    "deberta, c2p": DeBERTa(max_distance=4, terms=("c2p",)),
    "deberta, p2c": DeBERTa(max_distance=4, terms=("p2c",)),
    "integer": Integer(scale=0.05),
    "learned": Learned(),
    "rope": RoPE(),
    "rope, interleaved and in part": RoPE(layout="interleaved", partial_rotary_factor=0.5),
    "shaw": Shaw(max_distance=3),
    "sinusoidal": Sinusoidal(),
    "t5": T5(num_buckets=6, max_distance=10),
    "transformer_xl": TransformerXL(),
}
"""A new scheme has a line here, by which it is trained, or stands in CARRIES_NO_ORDER."""
CARRIES_NO_ORDER = {"nope"}


def plan(scheme: PositionScheme) -> ModelConfig:
    """One layer of sixteen heads, as ALiBi needs: it tells neighbours apart by the differences of several slopes."""
    embedding = scheme if isinstance(scheme, EmbeddingScheme) else None
    layer = LayerSpec(0, "all", NoPE() if embedding else scheme, 16, 8, 4, qkv_bias=True)
    return ModelConfig(VOCAB, 32, 64, 1, LENGTH, (layer,), embedding_position=embedding)


def rows(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random tokens, and for each but the first the token before it."""
    tokens = torch.randint(VOCAB, (count, LENGTH), generator=torch.Generator().manual_seed(seed))
    targets = torch.full_like(tokens, -100)
    targets[:, 1:] = tokens[:, :-1]
    return tokens, targets


def loss_after_training(scheme: PositionScheme) -> float:
    """On rows not trained on, in nats."""
    model = build_model(plan(scheme), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.95), weight_decay=0.0, fused=True)
    for step in range(STEPS):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1, (step + 1) / 20, 3 * (STEPS - step) / STEPS)
        loss = model.loss(*rows(BATCH, seed=step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        return model.eval().loss(*rows(1000, seed=-1)).item()


@functools.cache
def best_without_order() -> float:
    """Mean entropy, over the same rows, of the token before among those that stand earlier in the row."""
    tokens, _ = rows(1000, seed=-1)
    seen = torch.nn.functional.one_hot(tokens, VOCAB).double().cumsum(1)[:, :-1]
    share = seen / seen.sum(-1, keepdim=True)
    return torch.special.entr(share).sum(-1).mean().item()


def test_every_scheme_is_tried() -> None:
    ours = {name for name, cls in SCHEMES.items() if cls.__module__.startswith("minillm.")}
    assert {scheme.scheme for scheme in LEARNS.values()} | CARRIES_NO_ORDER == ours


@pytest.mark.parametrize("name", LEARNS)
def test_one_layer_learns_to_name_the_token_before(name: str) -> None:
    assert loss_after_training(LEARNS[name]) < 0.1 < best_without_order() / 5


def test_without_position_it_does_no_better_than_chance_among_the_tokens_before() -> None:
    reached = loss_after_training(NoPE())
    assert best_without_order() - 0.03 < reached < best_without_order() + 0.3
