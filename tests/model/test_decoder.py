"""The decoder as a whole: what a query sees layer by layer, padding, precision, cache, and training."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.attention.tokens import StepContext, arrange
from minillm.config.expand import Heads
from minillm.errors import ConfigError, MinillmError
from minillm.generation import generate
from minillm.model.decoder import Decoder, build_model
from tests.model.small import LENGTH, VOCAB, config, ids, large

LOCAL: dict[str, Any] = {"position": {"theta": 100.0}, "window": 4}
GLOBAL: dict[str, Any] = {"position": "nope"}


def layer_outputs(model: Decoder, tokens: Tensor, cuts: list[int] | None = None, **more: Any) -> list[Tensor]:
    """Each layer's output (B, T, D), of one pass or of pieces through a cache."""
    seen: list[list[Tensor]] = [[] for _ in model.layers]
    hooks = [
        layer.register_forward_hook(lambda _m, _i, out, own=own: own.append(out))
        for layer, own in zip(model.layers, seen, strict=True)
    ]
    if cuts is None:
        model.hidden(tokens, **more)
    else:
        cache = model.new_cache(len(tokens))
        for piece in tokens.split(cuts, dim=1):
            model.hidden(piece, cache=cache)
    for hook in hooks:
        hook.remove()
    return [torch.cat(own, dim=1) for own in seen]


def far_sighted_layers(model: Decoder, distance: int) -> list[int]:
    """Layers in which the last token feels a change `distance` tokens back that no layer below has brought nearer."""
    out = []
    for index, layer in enumerate(model.layers):
        spec = dataclasses.replace(model.layer_specs[index], index=0)
        alone = build_model(dataclasses.replace(model.config, layers=(spec,), num_hidden_layers=1))
        alone.layers[0].load_state_dict(layer.state_dict())
        one = ids(1, distance + 1)
        other = one.clone()
        other[0, 0] = (one[0, 0] + 1) % VOCAB
        if not torch.equal(alone(one)[0, -1], alone(other)[0, -1]):
            out.append(index)
    return out


@pytest.mark.bug("B009")
@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        pytest.param([LOCAL] * 5 + [GLOBAL] + [LOCAL] * 5 + [GLOBAL], [5, 11], id="every sixth"),
        pytest.param([LOCAL] * 4 + [GLOBAL] * 2, [4, 5], id="the first four are local"),
    ],
)
@torch.no_grad()
def test_the_layers_that_see_far_are_those_the_plan_names(kinds: list[dict[str, Any]], expected: list[int]) -> None:
    model = large(config(*kinds))
    assert far_sighted_layers(model, 4) == expected
    assert far_sighted_layers(model, 3) == list(range(len(kinds)))


@pytest.mark.bug("B003")
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("padded", [False, True], ids=["no padding", "padding"])
def test_a_window_is_in_force_in_every_backend_and_mode(train: bool, padded: bool) -> None:
    tokens = ids(2, 12)
    documents = torch.tensor([[-1] * 3 + [0] * 9, [0] * 12]) if padded else None
    out: dict[str, Tensor] = {}
    for backend in ("reference", "sdpa", "banded", "auto"):
        model = large(dataclasses.replace(config(LOCAL, LOCAL), backend=backend))  # type: ignore[arg-type]
        out[backend] = model.train(train)(tokens, document_ids=documents)[:, 3:]
    full = large(config({**LOCAL, "window": None}, LOCAL)).train(train)(tokens, document_ids=documents)[:, 3:]
    for backend in ("sdpa", "banded", "auto"):
        torch.testing.assert_close(out[backend], out["reference"], atol=1e-5, rtol=0)
    assert (out["reference"] - full).abs().max() > 1e-3


@pytest.mark.bug("B005")
@torch.no_grad()
def test_a_window_of_one_sees_only_itself() -> None:
    model = large(config({"position": "nope", "window": 1}, {"window": 1}))
    one, other = ids(1, 9), ids(1, 9, seed=2)
    other[0, 5] = one[0, 5]
    logits = model(one)
    assert logits.isfinite().all()
    assert torch.equal(logits[0, 5], model(other)[0, 5])
    cache = model.new_cache(1)
    pieces = [model(piece, cache=cache) for piece in one.split([4, 1, 4], dim=1)]
    torch.testing.assert_close(torch.cat(pieces, dim=1), logits, atol=1e-5, rtol=0)


@pytest.mark.bug("B012")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("backend", ["auto", "reference", "sdpa"])
def test_a_left_padded_batch_trains_with_finite_gradients(precision: str, backend: str) -> None:
    made = config(LOCAL, GLOBAL, {"chunk": 3}, {"position": "alibi", "window": 2}, name="gemma3")
    model = large(dataclasses.replace(made, backend=backend)).train()  # type: ignore[arg-type]
    tokens, targets = ids(2, 20), ids(2, 20, seed=2)
    documents = torch.tensor([[-1] * 15 + [0] * 5, [-1] * 1 + [0] * 19])
    targets[documents < 0] = -100
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
        loss = model.loss(tokens, targets, document_ids=documents)
    loss.backward()
    assert loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.any(), name


@torch.no_grad()
def test_padding_is_seen_by_no_other_token() -> None:
    model = large(config(LOCAL, GLOBAL, {"position": "alibi"}, {"chunk": 3}))
    documents = torch.tensor([[-1] * 4 + [0] * 10 + [-1] * 6])
    one, other = ids(1, 20), ids(1, 20, seed=2)
    other[0, 4:14] = one[0, 4:14]
    assert torch.equal(model(one, document_ids=documents)[0, 4:14], model(other, document_ids=documents)[0, 4:14])
    alone = model(one[:, 4:14])
    torch.testing.assert_close(model(one, document_ids=documents)[:, 4:14], alone, atol=1e-5, rtol=0)


@torch.no_grad()
def test_the_names_of_documents_do_not_matter() -> None:
    model = large(config(LOCAL, GLOBAL))
    tokens = ids(1, 12)
    named = [torch.tensor([[a] * 5 + [b] * 7]) for a, b in ((0, 1), (9, 2), (1, 0))]
    first, *others = [model(tokens, document_ids=documents) for documents in named]
    assert all(torch.equal(first, other) for other in others)


@torch.no_grad()
def test_rows_of_a_batch_do_not_meet() -> None:
    model = large(config(LOCAL, GLOBAL, {"position": "alibi"}))
    batch = ids(3, 20)
    together = model(batch)
    for row in range(3):
        torch.testing.assert_close(model(batch[row : row + 1]), together[row : row + 1], atol=1e-5, rtol=0)


@torch.no_grad()
def test_explicit_positions_are_those_that_would_be_counted() -> None:
    model = large(config({"position": {"theta": 50.0}, "temperature": {"type": "llama4", "floor": 4}}, {"chunk": 5}))
    tokens = ids(2, 12)
    counted = model(tokens)
    torch.testing.assert_close(model(tokens, positions=torch.arange(12).expand(2, 12)), counted, atol=1e-6, rtol=0)
    assert (model(tokens, positions=torch.arange(3, 15).expand(2, 12)) - counted).abs().max() > 1e-3


@pytest.mark.bug("B032")
@torch.no_grad()
def test_the_base_of_each_layer_reaches_its_rotation() -> None:
    low, high = {"position": {"theta": 1e4}}, {"position": {"theta": 1e6}}
    one, swapped, odd = (
        large(config(*kinds)) for kinds in ((low, high), (high, low), ({"position": {"theta": 12345}}, high))
    )
    tokens = ids(1, 30)
    assert (one(tokens) - swapped(tokens)).abs().max() > 1e-3
    assert (one(tokens) - odd(tokens)).abs().max() > 1e-4
    wide = build_model(config({"position": {"theta": 12345}}, heads=Heads(4, 2, 64)))
    assert wide.layers[0].attention.position.frequencies[1] == pytest.approx(12345 ** (-1 / 32), rel=1e-12)
    assert pytest.approx(0.7450, abs=1e-4) == 12345 ** (-1 / 32)


@pytest.mark.bug("B031")
@torch.no_grad()
def test_lengths_past_the_training_length_leave_the_shorter_ones_alone() -> None:
    model, tokens = large(config({}, LOCAL, {"position": "nope", "temperature": "log_n"})), ids(1, 40 * LENGTH)
    first, longer, again, longest = (model(tokens[:, : n * LENGTH]) for n in (1, 5, 1, 40))
    assert torch.equal(first, again)
    torch.testing.assert_close(longer[:, :LENGTH], first, atol=1e-4, rtol=0)
    torch.testing.assert_close(longest[:, : 5 * LENGTH], longer, atol=1e-4, rtol=0)


@pytest.mark.bug("B043")
@pytest.mark.parametrize("cuts", [[1] * 15, [1, 5, 9], [6, 1, 1, 7], [4, 0, 11], [15]], ids=str)
@torch.no_grad()
def test_every_layer_decodes_as_in_the_whole_pass(cuts: list[int]) -> None:
    model = large(config(LOCAL, {"position": "alibi", "window": 4}, LOCAL, {"chunk": 4}, GLOBAL))
    tokens = ids(2, 15)
    for cached, whole in zip(layer_outputs(model, tokens, cuts), layer_outputs(model, tokens), strict=True):
        torch.testing.assert_close(cached, whole, atol=1e-4, rtol=0)


@pytest.mark.bug("B043")
@torch.no_grad()
def test_the_cache_counts_tokens_seen_and_not_those_it_keeps() -> None:
    model = large(config(LOCAL, LOCAL))
    cache = model.new_cache(1)
    for step, total in ((5, 5), (1, 6), (9, 15)):
        model(ids(1, step), cache=cache)
        assert len(cache) == total


def test_a_cache_for_another_batch_is_refused() -> None:
    model = large(config(LOCAL))
    with pytest.raises(MinillmError, match="made for batch size 2, got 3 rows"):
        model(ids(3, 4), cache=model.new_cache(2))


@pytest.mark.bug("B018")
def test_heads_that_do_not_fill_the_width_train_and_generate() -> None:
    model = build_model(config(LOCAL, GLOBAL, heads=Heads(4, 2, 16), hidden_size=48))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tokens = ids(2, 17)
    losses = []
    for _ in range(3):
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[2] < losses[1] < losses[0]
    (new,) = generate(model, [tokens[0, :9].tolist()], max_new_tokens=6)
    for step, token in enumerate(new):
        with torch.no_grad():
            logits = model(torch.tensor([tokens[0, :9].tolist() + new[:step]]))
        assert token == logits[0, -1].argmax().item()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_logits_are_float32_in_any_precision(dtype: torch.dtype) -> None:
    model = large(config(LOCAL, {**GLOBAL, "qk_norm": "rms"}, name="gemma3", embedding="sinusoidal"), std=0.1)
    expected = model(ids(2, 20))
    model = model.to(dtype)
    assert model.hidden(ids(2, 20)).dtype == dtype
    logits = model(ids(2, 20))
    assert logits.dtype == torch.float32
    assert (logits - expected).abs().max() < (1e-6 if dtype == torch.float32 else 0.5) * expected.abs().max()


@torch.no_grad()
def test_autocast_changes_little() -> None:
    model, tokens = large(config(LOCAL, GLOBAL, {"position": "alibi"}), std=0.1), ids(2, 20)
    expected = model(tokens)
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(tokens)
    assert logits.dtype == torch.float32
    assert 0 < (logits - expected).abs().max() < 0.05 * expected.abs().max()


@pytest.mark.parametrize(
    ("backend", "kinds", "message"),
    [
        ("banded", [LOCAL, GLOBAL], r"'banded' cannot compute layer 1 .* 'sdpa' and 'reference' can"),
        ("sdpa", [LOCAL, {"softcap": 3.0}], r"'sdpa' cannot compute layer 1 .* 'reference' can"),
    ],
)
def test_a_backend_that_cannot_compute_a_layer_is_refused_when_the_model_is_built(
    backend: str, kinds: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        build_model(dataclasses.replace(config(*kinds), backend=backend))  # type: ignore[arg-type]


@torch.no_grad()
def test_the_scale_of_embeddings_is_rounded_to_the_weights_precision() -> None:
    """Gemma's sqrt(640) is 25.25 in bfloat16; a float32 factor would give other embeddings."""
    model = build_model(config({}, name="gemma3", hidden_size=640)).to(torch.bfloat16)
    tokens = ids(1, 5)
    embedded = model.embed(tokens, torch.arange(5)[None])
    assert torch.equal(embedded, model.embed_tokens(tokens) * torch.tensor(25.25, dtype=torch.bfloat16))


@torch.no_grad()
def test_an_embedding_scale_may_be_a_number() -> None:
    one, scaled = large(config({})), large(config({}, embedding_scale=3.0))
    tokens = ids(1, 4)
    torch.testing.assert_close(
        scaled.embed(tokens, torch.arange(4)[None]), 3 * one.embed(tokens, torch.arange(4)[None])
    )


@torch.no_grad()
def test_post_norm_normalises_after_each_sum_and_needs_no_last_norm() -> None:
    model = large(config(LOCAL, GLOBAL, norm_placement="post"))
    (layer, _), tokens = model.layers, ids(1, 9)
    x = torch.randn(1, 9, 24)
    context = StepContext(arrange(1, 9, "cpu"), contiguous=True)
    once = layer.post_attention_layernorm(x + layer.attention(x, context))
    twice = layer.post_feedforward_layernorm(once + layer.mlp(once))
    torch.testing.assert_close(layer(x, context), twice)
    torch.testing.assert_close(model.hidden(tokens), layer_outputs(model, tokens)[-1])
    assert "norm.weight" not in model.state_dict()
