"""Compiled blocks compute what plain ones do, under any plan, and are compiled no more often than they have to be."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import jaxtyping
import pytest
import torch

import minillm
from minillm.config.schema import ModelConfig
from minillm.model.compiled import compile_blocks
from minillm.model.decoder import Decoder

SIZE = [
    "size.hidden_size=24",
    "size.intermediate_size=40",
    "size.num_attention_heads=4",
    "size.num_key_value_heads=2",
    "size.head_dim=6",
    "size.window=5",
    "size.seq_len=16",
    "model.vocab_size=31",
]
TWELVE = [
    "size.num_hidden_layers=12",
    "model.layers.overrides={1: {window: 3}, 2: {window: 4}, 3: {position: alibi}, 4: {qk_norm: rms}, 5: {chunk: 7, "
    "window: null}, 6: {position: {scheme: rope, theta: 500.0, partial_rotary_factor: 0.34}}, 7: {gate: true}, 8: "
    "{position: {scheme: rope, layout: interleaved}}, 9: {num_key_value_heads: 4}, 10: {temperature: ssmax}, 11: "
    "{sink_logits: true, qkv_bias: true}}",
]
"""No two layers alike."""
PLANS = {
    "twelve layers, none like another": TWELVE,
    "gated linear, tied": ["model=rnope_swa", "size.num_hidden_layers=4"],
    "post-norm": ["model=t5", "size.num_hidden_layers=2", "block.norm_placement=post"],
    "gemma3": ["model=gemma3", "block=gemma3", "size.num_hidden_layers=6"],
    "olmo2": ["model=rope_qknorm", "block=olmo2", "size.num_hidden_layers=2"],
    "parallel": ["model=rope", "block=cohere2", "size.num_hidden_layers=2"],
    "two norms in parallel": ["model=rope", "block=gpt_neox", "size.num_hidden_layers=2"],
    "one projection for queries and keys": [
        "model=rope",
        "size.num_hidden_layers=2",
        "++model.attention.shared_qk=true",
    ],
    "content-dependent position": ["model=shaw", "size.num_hidden_layers=2"],
    "length-dependent rotation": ["model=longrope", "size.num_hidden_layers=2"],
}


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No graphs of other tests; and no checks of shapes in calls, which cannot be captured."""
    torch._dynamo.reset()
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
    torch._dynamo.reset()


def config(*overrides: str) -> ModelConfig:
    return minillm.compose([*SIZE, *overrides], warn=False).model


def pair(plan: ModelConfig, backend: str) -> tuple[Decoder, Decoder]:
    plain, compiled = minillm.build_model(plan, seed=3), minillm.build_model(plan, seed=3)
    compile_blocks(compiled, backend)
    return plain, compiled


def ids(length: int, rows: int = 2) -> torch.Tensor:
    return torch.randint(0, 31, (rows, length), generator=torch.Generator().manual_seed(length))


def step(model: Decoder, length: int, documents: torch.Tensor | None = None) -> torch.Tensor:
    tokens = ids(length + 1)
    loss = model.loss(tokens[:, :-1], tokens[:, 1:], document_ids=documents)
    loss.backward()
    return loss.detach()


def assert_alike(plain: Decoder, compiled: Decoder, length: int, documents: torch.Tensor | None = None) -> None:
    assert torch.allclose(step(plain, length, documents), step(compiled, length, documents), atol=1e-6)
    for (name, one), other in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None), name
        if one.grad is not None and other.grad is not None:
            assert torch.allclose(one.grad, other.grad, atol=1e-5), name


@pytest.mark.parametrize("name", PLANS)
def test_losses_and_gradients_are_those_of_plain_blocks(name: str) -> None:
    plain, compiled = pair(config(*PLANS[name]), "eager")
    assert_alike(plain, compiled, 16)
    documents = torch.tensor([[0] * 4 + [1] * 9 + [2] * 3, [0] * 11 + [1] * 5])
    assert_alike(plain, compiled, 16, documents)


def test_twelve_layers_unlike_each_other_are_compiled_in_the_first_steps_and_never_again() -> None:
    plan = config(*TWELVE)
    assert len({(spec.window, spec.chunk, spec.position, spec.qk_norm, spec.gate) for spec in plan.layers}) > 8
    model = minillm.build_model(plan, seed=0)
    compile_blocks(model, "eager")
    optimizer = torch.optim.AdamW(model.parameters())
    for length in (16, 11, 16):
        step(model, length)
        optimizer.step()
        optimizer.zero_grad()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for length in (16, 11, 16, 11):
            step(model, length)
            optimizer.step()
            optimizer.zero_grad()


def test_layers_that_differ_in_window_and_base_alone_share_their_graphs() -> None:
    plan = config("model=gemma3", "size.num_hidden_layers=6")
    assert len({(spec.window, spec.position) for spec in plan.layers}) > 1
    model = minillm.build_model(plan, seed=0)
    compile_blocks(model, "eager")
    torch._dynamo.utils.counters.clear()
    step(model, 16)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2


def test_names_of_the_state_dict_stay_as_they_are() -> None:
    plain, compiled = pair(config("model=rnope_swa", "size.num_hidden_layers=4"), "eager")
    assert list(plain.state_dict()) == list(compiled.state_dict())
    compiled.load_state_dict(plain.state_dict())


def test_without_gradients_blocks_run_as_they_are() -> None:
    plain, compiled = pair(config("model=rnope_swa", "size.num_hidden_layers=4"), "eager")
    torch._dynamo.utils.counters.clear()
    with torch.no_grad():
        assert torch.equal(plain(ids(13)), compiled(ids(13)))
        cache = compiled.new_cache(2)
        cached = torch.cat([compiled(part, cache=cache) for part in ids(13).split([6, 1, 6], dim=1)], dim=1)
        assert torch.allclose(cached, plain(ids(13)), atol=1e-5)
    assert "unique_graphs" not in torch._dynamo.utils.counters["stats"]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here to compile with")
def test_generated_code_computes_the_same_within_rounding() -> None:
    plain, compiled = pair(
        config("model=rnope_swa", "size.num_hidden_layers=4", "model.layers.pattern=[local]"), "inductor"
    )
    assert_alike(plain, compiled, 16)
