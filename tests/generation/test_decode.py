"""Decoding: unequal prompts as if each were alone, pieces of any size, and what the sampling settings mean."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.errors import ConfigError, PositionUndefined
from minillm.generation import decode as generation
from minillm.generation import generate
from minillm.generation.sampling import Sampling, pick
from minillm.model.decoder import Decoder
from tests.model.small import LENGTH, VOCAB, config, ids, large

LOCAL: dict[str, Any] = {"position": {"theta": 100.0}, "window": 4}
PLANS: dict[str, Any] = {
    "rnope_swa": [LOCAL, LOCAL, {"position": "nope"}],
    "llama4": [
        {"position": {"layout": "interleaved"}, "chunk": 5, "qk_norm": "l2"},
        {"position": "nope", "temperature": {"type": "llama4", "floor": 4}},
    ],
    "alibi": [{"position": "alibi"}, {"position": "alibi", "window": 3}],
    "swan": [{"position": "nope", "temperature": {"type": "log_n", "base": 3}}, LOCAL],
}
LENGTHS = (9, 1, 14, 4)


def prompts(*lengths: int) -> list[list[int]]:
    return [ids(1, n, seed=n)[0].tolist() for n in lengths]


def argmax_by_hand(model: Decoder, prompt: list[int], count: int) -> list[int]:
    """Greedy decoding without a cache: the whole text again for each token."""
    text = list(prompt)
    for _ in range(count):
        with torch.no_grad():
            text.append(int(model(torch.tensor([text]))[0, -1].argmax()))
    return text[len(prompt) :]


@pytest.fixture(params=PLANS)
def model(request: pytest.FixtureRequest) -> Decoder:
    return large(config(*PLANS[request.param]))


@pytest.fixture
def any_model() -> Decoder:
    return large(config(*PLANS["rnope_swa"]))


# ---- prompts ----------------------------------------------------------------------------------------------------


@pytest.mark.bug("B008")
def test_a_prompt_longer_than_every_window_goes_on_as_without_a_cache(model: Decoder) -> None:
    (prompt,) = prompts(23)
    assert generate(model, [prompt], max_new_tokens=8) == [argmax_by_hand(model, prompt, 8)]


@pytest.mark.bug("B015")
def test_unequal_prompts_go_on_as_each_alone(model: Decoder) -> None:
    together = generate(model, prompts(*LENGTHS), max_new_tokens=7)
    assert together == [generate(model, [prompt], max_new_tokens=7)[0] for prompt in prompts(*LENGTHS)]
    assert together == [argmax_by_hand(model, prompt, 7) for prompt in prompts(*LENGTHS)]
    assert len({tuple(row) for row in together}) > 1


@torch.no_grad()
def test_the_logits_of_padded_prompts_are_those_of_each_alone(model: Decoder) -> None:
    tokens, documents = generation._left_pad(prompts(*LENGTHS), torch.device("cpu"))
    cache = model.new_cache(len(LENGTHS))
    steps = [model(tokens, document_ids=documents, cache=cache)[:, -1:]]
    following = ids(len(LENGTHS), 6, seed=8)
    steps += [model(following[:, i : i + 1], cache=cache) for i in range(6)]
    for row, prompt in enumerate(prompts(*LENGTHS)):
        alone = model(torch.tensor([prompt + following[row].tolist()]))[0, len(prompt) - 1 :]
        torch.testing.assert_close(torch.cat(steps, dim=1)[row], alone, atol=1e-4, rtol=0)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_a_prompt_may_be_read_in_pieces_of_any_size(model: Decoder, size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = generate(model, prompts(*LENGTHS), max_new_tokens=6)
    monkeypatch.setattr(generation, "PREFILL_TOKENS", size * len(LENGTHS))
    assert generate(model, prompts(*LENGTHS), max_new_tokens=6) == expected


def test_a_batch_larger_than_a_piece_is_read_one_token_at_a_time(
    any_model: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = generate(any_model, prompts(*LENGTHS), max_new_tokens=3)
    monkeypatch.setattr(generation, "PREFILL_TOKENS", 2)
    assert generate(any_model, prompts(*LENGTHS), max_new_tokens=3) == expected


def test_no_prompts_and_no_new_tokens_give_empty_lists(any_model: Decoder) -> None:
    assert generate(any_model, [], max_new_tokens=5) == []
    assert generate(any_model, prompts(3, 4), max_new_tokens=0) == [[], []]


def test_a_learned_table_ends_generation_where_it_ends() -> None:
    model = large(config({"position": "nope"}, embedding="learned"))
    assert len(generate(model, prompts(4), max_new_tokens=LENGTH - 3)[0]) == LENGTH - 3
    with pytest.raises(PositionUndefined):
        generate(model, prompts(4), max_new_tokens=LENGTH - 2)


def test_the_model_is_left_in_the_mode_it_was_in(any_model: Decoder) -> None:
    for training in (True, False):
        generate(any_model.train(training), prompts(3), max_new_tokens=2)
        assert any_model.training is training
    any_model.train()
    with pytest.raises(ConfigError):
        generate(any_model, [[]], max_new_tokens=2)
    assert any_model.training


# ---- stopping and errors ----------------------------------------------------------------------------------------


def test_a_row_ends_with_its_stop_id_and_the_others_go_on(any_model: Decoder) -> None:
    free = generate(any_model, prompts(*LENGTHS), max_new_tokens=10)
    stop = free[0][2]
    stopped = generate(any_model, prompts(*LENGTHS), max_new_tokens=10, stop_ids=[stop, VOCAB - 1])
    for row, all_of_it in zip(stopped, free, strict=True):
        ends = [i for i, token in enumerate(all_of_it) if token in (stop, VOCAB - 1)]
        assert row == (all_of_it[: ends[0] + 1] if ends else all_of_it)
    assert len(stopped[0]) <= 3


def test_decoding_ends_when_all_rows_have(any_model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = any_model.hidden
    monkeypatch.setattr(any_model, "hidden", lambda *a, **k: calls.append(1) or forward(*a, **k))
    first = generate(any_model, prompts(5), max_new_tokens=1)[0][0]
    calls.clear()
    assert generate(any_model, prompts(5), max_new_tokens=50, stop_ids=[first]) == [[first]]
    assert len(calls) == 1


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"prompts": [[1], []]}, "prompts[1] is empty: give at least one id, e.g. the tokenizer's bos_id."),
        ({"prompts": [[1, VOCAB]]}, f"prompts[0] holds the id {VOCAB}; the model knows 0 to {VOCAB - 1}."),
        ({"prompts": [[1], [-1]]}, f"prompts[1] holds the id -1; the model knows 0 to {VOCAB - 1}."),
        ({"max_new_tokens": -1}, "max_new_tokens = -1: must not be negative."),
        ({"temperature": -0.1}, "temperature = -0.1: must be 0 (greedy) or above."),
        ({"temperature": math.nan}, "temperature = nan: must be 0 (greedy) or above."),
        ({"top_k": -1}, "top_k = -1: must not be negative."),
        ({"top_p": 0.0}, "top_p = 0.0: must be above 0 and at most 1."),
        ({"top_p": 1.1}, "top_p = 1.1: must be above 0 and at most 1."),
    ],
)
def test_a_setting_out_of_range_is_refused(any_model: Decoder, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        generate(any_model, **{"prompts": [[1]], "max_new_tokens": 2, **given})
    assert str(error.value) == message


# ---- sampling ---------------------------------------------------------------------------------------------------

LOGITS = torch.tensor([[2.0, 1.0, 0.0, -1.0, -2.0]])


def drawn(logits: Tensor, count: int = 2000, **settings: Any) -> list[int]:
    """Ids of `count` draws from one row."""
    generator = torch.Generator().manual_seed(0)
    sampling = Sampling(**{"temperature": 1.0, **settings})
    return pick(logits.expand(count, -1), sampling, [generator] * count).tolist()


def shares(ids_: list[int], classes: int = 5) -> list[float]:
    return [ids_.count(i) / len(ids_) for i in range(classes)]


@pytest.mark.bug("B122")
@pytest.mark.parametrize("temperature", [0.0, 1e-300, 1e-8])
def test_no_temperature_and_next_to_none_are_greedy_and_never_nan(temperature: float) -> None:
    assert set(drawn(LOGITS, temperature=temperature)) == {0}
    assert set(drawn(LOGITS * 1e4, temperature=temperature, top_k=3, top_p=0.9)) == {0}


@pytest.mark.bug("B122")
@pytest.mark.parametrize("temperature", [0.5, 1.0, 2.0])
def test_ids_are_drawn_from_the_softmax_of_logits_over_temperature(temperature: float) -> None:
    expected = torch.softmax(LOGITS[0] / temperature, dim=0).tolist()
    assert shares(drawn(LOGITS, temperature=temperature)) == pytest.approx(expected, abs=0.03)


@pytest.mark.bug("B122")
def test_top_p_cuts_after_the_temperature() -> None:
    """Probabilities at temperature 1 are 0.64, 0.23, 0.09, 0.03, 0.01, of which 0.9 keeps three."""
    kept = {t: len(set(drawn(LOGITS, temperature=t, top_p=0.9))) for t in (0.5, 1.0, 2.0)}
    assert kept == {0.5: 2, 1.0: 3, 2.0: 4}


def test_top_p_keeps_the_id_that_crosses_the_line_and_no_more() -> None:
    logits = torch.tensor([[0.5, 0.25, 0.25 - 1e-6, 1e-6]]).log()
    assert set(drawn(logits, top_p=0.49)) == {0}
    assert set(drawn(logits, top_p=0.51)) == {0, 1}
    assert set(drawn(logits, top_p=1e-9)) == {0}
    assert shares(drawn(logits, top_p=0.7), 4) == pytest.approx([2 / 3, 1 / 3, 0, 0], abs=0.03)


def test_top_k_keeps_the_k_likeliest_and_their_proportions() -> None:
    kept = torch.softmax(LOGITS[0, :2], dim=0).tolist()
    assert shares(drawn(LOGITS, top_k=2)) == pytest.approx([*kept, 0, 0, 0], abs=0.03)
    assert set(drawn(LOGITS, top_k=1)) == {0}
    assert drawn(LOGITS, top_k=0) == drawn(LOGITS, top_k=5) == drawn(LOGITS, top_k=99) == drawn(LOGITS)


def test_top_k_keeps_k_of_equal_logits() -> None:
    assert len(set(drawn(torch.zeros(1, 5), top_k=1))) == 1
    assert len(set(drawn(torch.zeros(1, 5), top_k=2))) == 2
    assert len(set(drawn(torch.zeros(1, 5), top_p=0.5))) == 3


def test_top_p_is_taken_of_what_top_k_leaves() -> None:
    """Of the two likeliest, renormalised to 0.73 and 0.27, 0.7 keeps one; of all five it would keep two."""
    assert set(drawn(LOGITS, top_p=0.7)) == {0, 1}
    assert set(drawn(LOGITS, top_k=2, top_p=0.7)) == {0}


def test_a_seed_repeats_and_another_differs(any_model: Decoder) -> None:
    def sample(seed: int | None, rows: int = 2) -> list[list[int]]:
        return generate(any_model, prompts(5) * rows, max_new_tokens=12, temperature=2.0, seed=seed)

    assert sample(1) == sample(1)
    assert len({str(sample(seed)) for seed in (0, 1, 2, 4096, 2**32, 2**40)}) == 6
    assert sample(1)[0] != sample(1)[1], "equal prompts in one batch do not get the same numbers"
    assert sample(1, rows=3)[:2] == sample(1), "a row does not depend on how many follow it"
    torch.manual_seed(5)
    first = sample(None)
    torch.manual_seed(5)
    assert sample(None) == first
    assert sample(None) != first


def test_greedy_decoding_draws_nothing(any_model: Decoder) -> None:
    before = torch.random.get_rng_state()
    generate(any_model, prompts(5), max_new_tokens=3)
    assert torch.equal(torch.random.get_rng_state(), before)
