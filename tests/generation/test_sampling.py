"""Sampling settings against the logits processors of transformers, on random logits."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.errors import ConfigError
from minillm.generation import generate
from minillm.generation.sampling import Repetition, Sampling, generators_for, probabilities
from tests.model.small import config, ids, large

transformers = pytest.importorskip("transformers")

ROWS, VOCAB = 6, 50


def logits(seed: int = 0) -> Tensor:
    return 3 * torch.randn(ROWS, VOCAB, generator=torch.Generator().manual_seed(seed))


def theirs(scores: Tensor, held: Tensor, sampling: Sampling) -> Tensor:
    """Their processors in the order in which their `generate` calls them."""
    chain: list[Any] = []
    if sampling.repetition_penalty != 1:
        chain.append(transformers.RepetitionPenaltyLogitsProcessor(sampling.repetition_penalty))
    chain.append(transformers.TemperatureLogitsWarper(sampling.temperature))
    if sampling.top_k:
        chain.append(transformers.TopKLogitsWarper(sampling.top_k))
    if sampling.top_p is not None:
        chain.append(transformers.TopPLogitsWarper(sampling.top_p))
    if sampling.min_p is not None:
        chain.append(transformers.MinPLogitsWarper(sampling.min_p))
    for one in chain:
        scores = one(held, scores)
    return torch.softmax(scores.double(), dim=-1)


@pytest.mark.bug("B122")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize(
    "given",
    [
        {},
        {"top_k": 1},
        {"top_k": 7},
        {"top_k": 500},
        {"top_p": 0.1},
        {"top_p": 0.8},
        {"min_p": 0.05},
        {"min_p": 1.0},
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"top_k": 9, "top_p": 0.7, "min_p": 0.1, "repetition_penalty": 1.2},
    ],
    ids=str,
)
def test_probabilities_are_those_of_transformers(given: dict[str, Any], temperature: float) -> None:
    sampling = Sampling(temperature, **given)
    for seed in range(5):
        scores = logits(seed)
        held = torch.randint(VOCAB, (ROWS, 12), generator=torch.Generator().manual_seed(seed))
        repetition = Repetition(sampling.repetition_penalty, held.tolist(), VOCAB, scores.device)
        got = probabilities(repetition.apply(scores), sampling)
        wanted = theirs(scores.clone(), held, sampling)
        assert torch.equal(got > 0, wanted > 0)
        torch.testing.assert_close(got / got.sum(dim=-1, keepdim=True), wanted, atol=1e-6, rtol=0)


def test_a_penalty_counts_the_prompt_and_what_was_made_since_but_no_padding() -> None:
    model = large(config({"position": {"theta": 100.0}}, {"position": "nope"}))
    prompts = [ids(1, n, seed=n)[0].tolist() for n in (5, 9)]
    got = generate(model, prompts, max_new_tokens=10, repetition_penalty=1.8)
    for prompt, new in zip(prompts, got, strict=True):
        text = list(prompt)
        for token in new:
            with torch.no_grad():
                last = model(torch.tensor([text]))[0, -1:]
            penalise = transformers.RepetitionPenaltyLogitsProcessor(1.8)
            assert token == int(penalise(torch.tensor([text]), last).argmax())
            text.append(token)
    assert got != generate(model, prompts, max_new_tokens=10)


def test_min_p_of_nothing_keeps_all() -> None:
    assert torch.equal(probabilities(logits(), Sampling(1.0, min_p=0.0)), probabilities(logits(), Sampling(1.0)))


def test_a_seed_for_each_row_does_not_depend_on_its_place() -> None:
    model = large(config({"position": "nope"}))
    prompt = ids(1, 5)[0].tolist()

    def sample(seeds: list[int]) -> list[list[int]]:
        return generate(model, [prompt] * len(seeds), max_new_tokens=8, temperature=2.0, seed=seeds)

    one, two, three = sample([1, 2, 3])
    assert sample([3, 1]) == [three, one]
    assert one != two
    with pytest.raises(ConfigError, match="3 seeds for 2 prompts"):
        generators_for([1, 2, 3], 2, torch.device("cpu"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"min_p": -0.1}, "min_p = -0.1: must be from 0 to 1."),
        ({"min_p": 1.1}, "min_p = 1.1: must be from 0 to 1."),
        ({"repetition_penalty": 0.0}, "repetition_penalty = 0.0: must be above 0; 1 changes nothing."),
    ],
)
def test_a_setting_out_of_range_is_refused(given: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Sampling(**given)
    assert str(error.value) == message
