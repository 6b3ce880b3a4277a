"""The sliced loss is `F.cross_entropy` on full logits: values and gradients, under any head and any targets."""

from __future__ import annotations

from typing import Any, Literal

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from minillm.model import loss as module
from minillm.model.loss import linear_cross_entropy, scale_logits
from tests.model.small import VOCAB, config, ids, large

HEADS: list[Any] = [
    pytest.param(None, None, id="plain"),
    pytest.param(0.25, None, id="scaled"),
    pytest.param(None, 1.5, id="capped"),
    pytest.param(0.5, 2.0, id="scaled and capped"),
]


@pytest.fixture
def few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slices of 3 tokens, so that 20 tokens take several and the last is not full."""
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 3 * VOCAB)


def case(tokens: int = 20, ignored: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(tokens, 8, generator=generator).requires_grad_()
    weight = torch.randn(VOCAB, 8, generator=generator).requires_grad_()
    targets = torch.randint(VOCAB, (tokens,), generator=generator)
    if ignored:
        targets[[0, 7, tokens - 1]] = -100
    return hidden, weight, targets


def plain(
    hidden: Tensor, weight: Tensor, targets: Tensor, scale: float | None, cap: float | None, reduction: str
) -> Tensor:
    logits = hidden @ weight.T
    logits = logits if scale is None else logits * scale
    logits = logits if cap is None else cap * torch.tanh(logits / cap)
    return F.cross_entropy(logits, targets, reduction=reduction)


@pytest.mark.usefixtures("few_at_once")
@pytest.mark.parametrize(("scale", "cap"), HEADS)
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("ignored", [False, True], ids=["all targets", "some ignored"])
def test_values_and_gradients_are_those_of_full_logits(
    scale: float | None, cap: float | None, reduction: Literal["mean", "sum"], ignored: bool
) -> None:
    hidden, weight, targets = case(ignored=ignored)
    ours = linear_cross_entropy(hidden, weight, targets, scale, cap, reduction)
    theirs = plain(hidden, weight, targets, scale, cap, reduction)
    torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-6)
    # Not a unit gradient: what comes from above must be multiplied in.
    mine = torch.autograd.grad(3 * ours, (hidden, weight))
    other = torch.autograd.grad(3 * theirs, (hidden, weight))
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_one_slice_and_many_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets = case()
    whole = linear_cross_entropy(hidden, weight, targets)
    gradient = torch.autograd.grad(whole, weight)[0]
    for tokens in (1, 7, 19, 20, 21):
        monkeypatch.setattr(module, "SLICE_ELEMENTS", tokens * VOCAB)
        sliced = linear_cross_entropy(hidden, weight, targets)
        torch.testing.assert_close(sliced, whole, atol=1e-6, rtol=0)
        torch.testing.assert_close(torch.autograd.grad(sliced, weight)[0], gradient, atol=1e-6, rtol=0)


def test_a_vocabulary_larger_than_a_slice_still_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SLICE_ELEMENTS", 5)
    hidden, weight, targets = case()
    torch.testing.assert_close(
        linear_cross_entropy(hidden, weight, targets), plain(hidden, weight, targets, None, None, "mean")
    )


@pytest.mark.parametrize("which", [0, 1], ids=["hidden alone", "weight alone"])
def test_a_gradient_that_is_not_wanted_is_not_made(which: int) -> None:
    hidden, weight, targets = case()
    wanted = (hidden, weight)[which]
    other = (hidden, weight)[1 - which].detach()
    loss = linear_cross_entropy(*((wanted, other) if which == 0 else (other, wanted)), targets)
    expected = plain(*((wanted, other) if which == 0 else (other, wanted)), targets, None, None, "mean")
    torch.testing.assert_close(
        torch.autograd.grad(loss, wanted)[0], torch.autograd.grad(expected, wanted)[0], atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_without_a_target_the_loss_and_its_gradients_are_zero_and_not_nan(reduction: Literal["mean", "sum"]) -> None:
    hidden, weight, targets = case()
    loss = linear_cross_entropy(hidden, weight, torch.full_like(targets, -100), reduction=reduction)
    loss.backward()
    assert loss.item() == 0.0
    assert not hidden.grad.any()
    assert not weight.grad.any()


def test_the_gradient_of_an_ignored_token_is_exactly_zero() -> None:
    hidden, weight, targets = case()
    linear_cross_entropy(hidden, weight, targets).backward()
    assert not hidden.grad[targets == -100].any()
    assert hidden.grad[targets != -100].any(dim=1).all()


@pytest.mark.bug("B116")
def test_bf16_logits_lose_nothing_in_the_loss() -> None:
    """64 tokens of 1000 classes, logits of size 4: a log-softmax in bf16 would be off by 0.04."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(64, 16, generator=generator).bfloat16()
    weight = torch.randn(1000, 16, generator=generator).bfloat16()
    targets = torch.randint(1000, (64,), generator=generator)
    logits = hidden @ weight.T
    assert 3 < logits.std() < 5
    ours = linear_cross_entropy(hidden, weight, targets)
    assert ours.dtype == torch.float32
    assert abs(ours.item() - F.cross_entropy(logits.float(), targets).item()) < 1e-4
    assert abs(F.cross_entropy(logits, targets).item() - F.cross_entropy(logits.float(), targets).item()) > 1e-3


@pytest.mark.bug("B116")
def test_under_autocast_the_products_are_bf16_and_the_sums_are_not() -> None:
    hidden, weight, targets = case()
    logits = hidden.bfloat16() @ weight.bfloat16().T
    with torch.autocast("cpu", torch.bfloat16):
        ours = linear_cross_entropy(hidden, weight, targets)
    assert abs(ours.item() - F.cross_entropy(logits.float(), targets).item()) < 1e-4
    assert ours.item() != linear_cross_entropy(hidden, weight, targets).item()
    ours.backward()
    assert (hidden.grad.dtype, weight.grad.dtype) == (torch.float32, torch.float32)
    wanted = torch.autograd.grad(plain(hidden, weight, targets, None, None, "mean"), (hidden, weight))
    for got, want in zip((hidden.grad, weight.grad), wanted, strict=True):
        torch.testing.assert_close(got, want, atol=5e-3, rtol=5e-2)


@pytest.mark.parametrize(("scale", "cap"), HEADS)
def test_scaled_logits_are_what_the_loss_sees(scale: float | None, cap: float | None) -> None:
    hidden, weight, targets = case()
    logits = scale_logits(hidden @ weight.T, scale, cap)
    torch.testing.assert_close(
        linear_cross_entropy(hidden, weight, targets, scale, cap), F.cross_entropy(logits, targets)
    )


@pytest.mark.parametrize("name", ["standard", "cohere2", "gemma3", "olmo2", "gpt2"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_models_loss_is_the_cross_entropy_of_its_logits(name: str, reduction: Literal["mean", "sum"]) -> None:
    model = large(config({}, {"position": "nope", "window": 3}, name=name, final_logit_softcapping=2.0))
    tokens, targets = ids(2, 11), ids(2, 11, seed=2)
    targets[0, 3:6] = -100
    documents = torch.tensor([[0] * 4 + [1] * 7, [0] * 11])
    ours = model.loss(tokens, targets, document_ids=documents, reduction=reduction)
    logits = model(tokens, document_ids=documents)
    theirs = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction=reduction)
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-6)
    mine = torch.autograd.grad(ours, list(model.parameters()))
    other = torch.autograd.grad(theirs, list(model.parameters()))
    for a, b in zip(mine, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-3)


@pytest.mark.bug("B068")
def test_a_tied_embedding_gets_the_gradient_of_both_its_uses() -> None:
    model = large(config({}))
    assert model.lm_head is None
    tokens, targets = ids(1, 9), ids(1, 9, seed=2)
    model.loss(tokens, targets).backward()
    whole = model.embed_tokens.weight.grad
    untied = large(config({}, tie_word_embeddings=False))
    untied.load_state_dict({**model.state_dict(), "lm_head.weight": model.embed_tokens.weight})
    untied.loss(tokens, targets).backward()
    torch.testing.assert_close(whole, untied.embed_tokens.weight.grad + untied.lm_head.weight.grad)
    assert untied.embed_tokens.weight.grad.abs().max() > 1e-3
    assert untied.lm_head.weight.grad.abs().max() > 1e-3
