"""Our adapter against lm-evaluation-harness's own `HFLM` on one exported folder: likelihoods, rolling, generation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

import minillm
from minillm.data.tokenizer import Tokenizer
from minillm.errors import MinillmError, PositionUndefined
from minillm.evaluation.harness.adapter import Adapter
from minillm.evaluation.harness.scoring import LONG, log_likelihoods
from minillm.hub import from_transformers
from minillm.hub.api import load_tokenizer
from minillm.hub.runs import save
from minillm.model.decoder import Decoder
from tests.evaluation.ruler_tools import TEXT, byte_level

WINDOW = 64
SIZE = [
    "size.hidden_size=24",
    "size.intermediate_size=40",
    "size.num_hidden_layers=3",
    "size.num_attention_heads=2",
    "size.num_key_value_heads=1",
    "size.head_dim=12",
    f"size.seq_len={WINDOW}",
    "size.window=8",
]


def tiny(arm: str, vocab_size: int) -> Decoder:
    """Random weights, large enough that predictions differ from place to place."""
    cfg = minillm.compose([f"model={arm}", *SIZE], warn=False)
    model = minillm.build_model(dataclasses.replace(cfg.model, vocab_size=vocab_size), seed=1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0 if "embed" in name else 3.0)
    return model.eval()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama that transformers reads, with its tokenizer."""
    tokenizer = byte_level(600)
    out = tmp_path_factory.mktemp("llama")
    save(tiny("rope", tokenizer.vocab_size), out, tokenizer, "llama")
    return out


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> Tokenizer:
    return load_tokenizer(folder)


@pytest.fixture(scope="module")
def ours(folder: Path, tokenizer: Tokenizer) -> Adapter:
    # So few tokens that most batches hold two or three texts, and some one.
    return Adapter(from_transformers(folder), tokenizer, WINDOW, batch_tokens=80)


def theirs(folder: Path, **how: Any) -> HFLM:
    return HFLM(pretrained=str(folder), device="cpu", dtype="float32", batch_size=3, **how)


def asked(kind: Any, *arguments: tuple[Any, ...]) -> list[Instance]:
    return [Instance(kind, {}, one, i, metadata=("a task", i, 1)) for i, one in enumerate(arguments)]


PAIRS = [
    ("The union of", " the states"),
    ("The union of ", "the states"),  # a space that goes over to the continuation
    ("The union of", " x"),
    ("", " the states shall stand"),
    ("It spoke of war", " and of peace, and of the long road home."),
    ("a", "bc"),
    *((TEXT[:90], f" {word}") for word in ("river", "a council of the people", "7")),
]


def test_likelihoods_and_the_greedy_flag_are_those_of_the_harness(folder: Path, ours: Adapter) -> None:
    reference = theirs(folder)
    # What the model itself would say, so that some flags are true.
    likeliest = reference.generate_until(asked("generate_until", ("The river", {"max_gen_toks": 1, "until": []})))[0]
    pairs = [*PAIRS, ("The river", likeliest)]
    expected = reference.loglikelihood(asked("loglikelihood", *pairs), disable_tqdm=True)
    found = ours.loglikelihood(asked("loglikelihood", *pairs))
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert [flag for _, flag in found] == [flag for _, flag in expected]
    assert {flag for _, flag in found} == {True, False}


def test_a_text_longer_than_the_window_is_rolled_as_the_harness_does(folder: Path, ours: Adapter) -> None:
    texts = [(TEXT,), ("The river",), (TEXT[:40] * 3,)]
    assert len(ours.tok_encode(TEXT)) > 2 * WINDOW
    # By itself HFLM reads the marker twice, and counts the second one as a token of the text.
    expected = theirs(folder, add_bos_token=False).loglikelihood_rolling(
        asked("loglikelihood_rolling", *texts), disable_tqdm=True
    )
    found = ours.loglikelihood_rolling(asked("loglikelihood_rolling", *texts))
    assert found == pytest.approx(expected, abs=1e-4, rel=1e-6)
    assert ours.loglikelihood_rolling(asked("loglikelihood_rolling", ("",))) == [0.0]


def test_generated_text_and_where_it_stops_are_those_of_the_harness(folder: Path, ours: Adapter) -> None:
    prompts = ["The union of", "a", "It spoke of war and of peace", "The long road"]
    free = {"max_gen_toks": 12, "until": [], "do_sample": False, "temperature": 0.0}
    whole = theirs(folder).generate_until(asked("generate_until", *((p, free) for p in prompts)), disable_tqdm=True)
    assert ours.generate_until(asked("generate_until", *((p, free) for p in prompts))) == whole
    assert len(set(whole)) > 1
    # Something that stands within a text, over the borders of tokens.
    stop = max(whole, key=len)[2:5]
    how = {**free, "until": [stop, "never said"]}
    expected = theirs(folder).generate_until(asked("generate_until", *((p, how) for p in prompts)), disable_tqdm=True)
    assert ours.generate_until(asked("generate_until", *((p, how) for p in prompts))) == expected
    assert expected != whole


def test_generation_ends_where_the_stop_string_is_complete(tokenizer: Tokenizer, ours: Adapter) -> None:
    steps: list[int] = []
    model = ours.model
    real = model.logits

    def counted(hidden: torch.Tensor) -> torch.Tensor:
        steps.append(1)
        return real(hidden)

    how = {"max_gen_toks": 30, "until": []}
    (whole,) = ours.generate_until(asked("generate_until", ("The union of", how)))
    model.logits = counted  # type: ignore[method-assign]
    try:
        (cut,) = ours.generate_until(asked("generate_until", ("The union of", {**how, "until": [whole[3:5]]})))
    finally:
        del model.logits
    assert whole.startswith(cut)
    assert len(steps) < 15


def test_the_marker_stands_in_front_once_however_the_text_begins(tokenizer: Tokenizer, ours: Adapter) -> None:
    ids = tokenizer.encode("The river")
    assert ours.tok_encode("The river") == [tokenizer.bos_id, *ids]
    assert ours.tok_encode(f"{tokenizer.bos_token}The river") == [tokenizer.bos_id, *ids]
    assert ours.tok_encode("The river", add_special_tokens=False) == ids
    bare = Adapter(ours.model, tokenizer, WINDOW, start_marker=False)
    assert bare.tok_encode("The river") == ids


def test_without_the_marker_the_numbers_are_those_of_a_tokenizer_that_puts_none(folder: Path, ours: Adapter) -> None:
    expected = theirs(folder, add_bos_token=False).loglikelihood(asked("loglikelihood", *PAIRS), disable_tqdm=True)
    found = Adapter(ours.model, ours.text, WINDOW, start_marker=False).loglikelihood(asked("loglikelihood", *PAIRS))
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)


def naive(model: Decoder, context: Sequence[int], continuation: Sequence[int]) -> tuple[float, bool]:
    with torch.no_grad():
        logits = model(torch.tensor([[*context, *continuation][:-1]]))[0, len(context) - 1 :].double()
    of_tokens = torch.log_softmax(logits, -1)[range(len(continuation)), list(continuation)]
    return float(of_tokens.sum()), logits.argmax(-1).tolist() == list(continuation)


@pytest.mark.parametrize("arm", ["rnope_swa", "alibi", "dynamic_ntk"])
def test_pairs_of_any_size_score_as_one_by_one(arm: str) -> None:
    model = tiny(arm, 50)
    draw = torch.Generator().manual_seed(0)

    def ids(count: int) -> list[int]:
        return torch.randint(50, (count,), generator=draw).tolist()

    long = ids(LONG + 20)
    pairs = [(ids(n), ids(k)) for n, k in ((1, 1), (9, 3), (7, 5), (90, 2), (4, 30))]
    pairs += [(long, ids(3)), (long, ids(1)), (long, ids(6)), (long[:9], ids(2)), (long[:9], ids(4))]
    with torch.no_grad():
        pairs.append((long, [int(model(torch.tensor([long]))[0, -1].argmax())]))
    done: list[int] = []
    found = log_likelihoods(model, pairs, batch_tokens=60, progress=done.append)
    expected = [naive(model, *pair) for pair in pairs]
    assert [value for value, _ in found] == pytest.approx([value for value, _ in expected], abs=1e-4)
    assert [flag for _, flag in found] == [flag for _, flag in expected]
    assert found[-1][1] is True
    assert sum(done) == len(pairs)


def test_a_text_beyond_a_table_of_positions_is_refused_and_never_cut(tokenizer: Tokenizer) -> None:
    adapter = Adapter(tiny("learned", tokenizer.vocab_size), tokenizer, WINDOW)
    context = "river " * (WINDOW + 1)
    with pytest.raises(PositionUndefined):
        adapter.loglikelihood(asked("loglikelihood", (context, " x")))
    with pytest.raises(PositionUndefined):
        adapter.generate_until(asked("generate_until", ("river", {"max_gen_toks": WINDOW + 1, "until": []})))
    assert adapter.loglikelihood_rolling(asked("loglikelihood_rolling", (context,)))[0] < 0


def test_ways_to_generate_that_we_do_not_have_are_named(ours: Adapter) -> None:
    with pytest.raises(MinillmError, match="asks to generate with num_beams; known here: do_sample"):
        ours.generate_until(asked("generate_until", ("a", {"num_beams": 4, "until": []})))
    with pytest.raises(MinillmError, match="leaves nothing of the continuation"):
        ours.loglikelihood(asked("loglikelihood", ("a", "")))
