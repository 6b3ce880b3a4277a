"""The suite against closed forms and against a plain loop over single predictions."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

import minillm
from minillm.errors import ConfigError, PositionUndefined
from minillm.evaluation.key_tokens import key_tokens
from minillm.evaluation.length_perplexity import Plan, measure
from minillm.evaluation.scoring import score_windows
from minillm.evaluation.settings import LengthPerplexitySettings
from minillm.evaluation.windows import Window

T = 16
SETTINGS = LengthPerplexitySettings(lengths=(1, 2, 4))
SIZES = [110, 81, 66, 97]
PROTOCOLS = ("same_target", "non_overlapping", "strided")


def pick(rows: list[dict[str, Any]], protocol: str, metric: str = "nll") -> dict[int, dict[str, Any]]:
    return {r["length"]: r for r in rows if r["protocol"] == protocol and r["metric"] == metric}


def limit_of(size: int) -> int:
    """Tokens that non_overlapping and strided read: up to 1.5 times the longest length, in whole training lengths."""
    return max(4 * T, min(size - 1, 6 * T) // T * T)


def end_of(size: int) -> int:
    return limit_of(size) if limit_of(size) > 4 * T else size - 1


def test_a_context_blind_model_has_the_same_loss_at_every_length_and_stride(blind: Any, make_documents: Any) -> None:
    documents = make_documents(SIZES)
    expected = np.concatenate([blind.nll(d)[: limit_of(len(d))] for d in documents]).mean()
    for stride in (None, 1, 3, 16):
        rows = measure(blind, documents, T, dataclasses.replace(SETTINGS, stride=stride))
        for protocol in ("non_overlapping", "strided"):
            for row in pick(rows, protocol).values():
                assert row["value"] == pytest.approx(expected, rel=1e-6)
                assert row["n"] == sum(limit_of(n) for n in SIZES)


def test_a_context_blind_model_loses_and_gains_nothing_by_context(blind: Any, make_documents: Any) -> None:
    documents = make_documents(SIZES)
    rows = measure(blind, documents, T, SETTINGS)
    expected = np.concatenate([blind.nll(d)[end_of(len(d)) - T // 2 : end_of(len(d))] for d in documents]).mean()
    for row in pick(rows, "same_target").values():
        assert row["value"] == pytest.approx(expected, rel=1e-6)
        assert row["n"] == 4 * T // 2
    for row in pick(rows, "same_target", "nll_change").values():
        assert (row["value"], row["low"], row["high"]) == (0.0, 0.0, 0.0)


def test_position_bins_hold_the_tokens_with_that_much_context(by_context: Any, make_documents: Any) -> None:
    rows = pick(measure(by_context, make_documents(SIZES, vocab_size=2), T, SETTINGS), "position")
    assert [r["bin"] for r in rows.values()] == ["1-16", "17-32", "33-64"]
    for row in rows.values():
        low, high = map(int, row["bin"].split("-"))
        expected = np.mean([by_context.loss(c) for c in range(low, high + 1)])
        assert row["value"] == pytest.approx(expected, rel=1e-5)
        assert row["n"] == 4 * (high - low + 1)


def test_longer_non_overlapping_windows_gain_though_no_context_beyond_is_better(
    by_context: Any, make_documents: Any
) -> None:
    """The early-token curse in numbers: the loss is a mean over contexts 1 .. length."""
    rows = pick(measure(by_context, make_documents([65 + 1] * 3, vocab_size=2), T, SETTINGS), "non_overlapping")
    for length, row in rows.items():
        assert row["value"] == pytest.approx(np.mean([by_context.loss(c) for c in range(1, length + 1)]), rel=1e-5)


def test_same_targets_have_nearly_the_whole_context(by_context: Any, make_documents: Any) -> None:
    rows = pick(measure(by_context, make_documents(SIZES, vocab_size=2), T, SETTINGS), "same_target")
    for length, row in rows.items():
        contexts = range(length - T // 2 + 1, length + 1)
        assert row["value"] == pytest.approx(np.mean([by_context.loss(c) for c in contexts]), rel=1e-5)


def context_start(protocol: str, target: int, length: int, size: int) -> int:
    """Where the context of a target token begins, by each protocol's definition and without its code."""
    if protocol == "position":
        return 0
    if protocol == "same_target":
        return end_of(size) - length
    if protocol == "non_overlapping":
        return (target - 1) // length * length
    stride, limit = length // 2, limit_of(size)
    windows_after_the_first = max(0, math.ceil((target - length) / stride))
    return max(0, min(length + windows_after_the_first * stride, limit) - length)


@pytest.mark.parametrize("arm", ["rope", "rnope_swa", "alibi"])
def test_every_protocol_equals_a_plain_loop_over_single_predictions(
    arm: str, tiny_overrides: list[str], make_documents: Any
) -> None:
    cfg = minillm.compose([*tiny_overrides, f"model={arm}"], warn=False)
    model = minillm.build_model(dataclasses.replace(cfg.model, vocab_size=11)).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # far from uniform, so that contexts matter
            parameter.mul_(3 if parameter.ndim > 1 else 1)
    documents = make_documents([69, 100])

    @functools.cache
    def log_p(document: int, start: int) -> np.ndarray:
        """Of each token after `start` from the context that begins there, float64; a pass for each beginning."""
        ids = documents[document][start:]
        with torch.no_grad():
            logits = model(torch.from_numpy(ids[None, :-1]))[0].double()
        return torch.log_softmax(logits, dim=-1).numpy()[np.arange(len(ids) - 1), ids[1:]]

    for row in measure(model, documents, T, SETTINGS):
        if row["metric"] != "nll":
            continue
        total, count = 0.0, 0
        for i, document in enumerate(documents):
            size = len(document)
            targets = range(1, limit_of(size) + 1)
            if row["protocol"] == "same_target":
                targets = range(end_of(size) - T // 2 + 1, end_of(size) + 1)
            if row["protocol"] == "position":
                low, high = map(int, row["bin"].split("-"))
                targets = range(low, high + 1)
            for target in targets:
                start = context_start(row["protocol"], target, row["length"], size)
                total -= log_p(i, start)[target - start - 1]
                count += 1
        assert count == row["n"], row
        assert total / count == pytest.approx(row["value"], abs=2e-5), row


@pytest.mark.bug("B115")
def test_the_start_marker_stands_where_a_document_starts_and_nowhere_else(recorder: Any, make_documents: Any) -> None:
    measure(recorder, make_documents(SIZES), T, SETTINGS)
    starts = [ids for ids in recorder.fed if ids[0] == 0]
    assert len(starts) > 0
    assert all(0 not in ids[1:] for ids in recorder.fed)
    # Exactly the windows that begin a document have it: one per length and document, read once for all protocols.
    assert len(starts) == len(SIZES) * len(SETTINGS.lengths)


@pytest.mark.bug("B115")
def test_no_context_of_the_same_targets_has_the_start_marker(recorder: Any, make_documents: Any) -> None:
    measure(recorder, make_documents(SIZES), T, dataclasses.replace(SETTINGS, protocols=("same_target",)))
    assert len(recorder.fed) == len(SIZES) * 3
    assert all(0 not in ids for ids in recorder.fed)


def test_windows_that_protocols_share_are_read_once(recorder: Any, make_documents: Any) -> None:
    """At sizes that let them: same_target needs no window of its own, position none beside non_overlapping's."""
    documents = make_documents([100, 100])
    measure(recorder, documents, T, SETTINGS)
    both = len(recorder.fed)
    recorder.fed.clear()
    measure(recorder, documents, T, dataclasses.replace(SETTINGS, protocols=("non_overlapping", "strided")))
    assert len(recorder.fed) == both
    assert both == Plan([100, 100], T, SETTINGS).num_tokens() / np.mean([len(ids) for ids in recorder.fed])


def test_a_document_that_only_just_fits_is_left_out(blind: Any, make_documents: Any) -> None:
    """64 tokens of context and a target besides the start marker are 66 tokens."""
    assert Plan([66, 66], T, SETTINGS).used == [0, 1]
    assert Plan([66, 65, 66], T, SETTINGS).used == [0, 2]
    rows = measure(blind, make_documents([66, 65, 66]), T, SETTINGS)
    assert {r["documents"] for r in rows} == {2}


def test_a_length_that_too_few_documents_reach_is_said_and_not_measured(blind: Any, make_documents: Any) -> None:
    rows = measure(blind, make_documents([40, 40, 70]), T, SETTINGS)
    for protocol in PROTOCOLS:
        by_length = pick(rows, protocol)
        assert [by_length[n]["value"] is None for n in (16, 32, 64)] == [False, False, True]
        assert by_length[64]["note"] == "not measured: too few documents longer than 64 tokens"
        assert by_length[64]["n"] == 0


def test_documents_that_are_all_too_short_give_rows_without_values(blind: Any, make_documents: Any) -> None:
    rows = measure(blind, make_documents([10, 12]), T, SETTINGS)
    assert rows
    assert all(r["value"] is None and "too few documents" in r["note"] for r in rows)


def test_at_most_the_asked_number_of_documents_is_read(make_documents: Any) -> None:
    assert Plan([100] * 9, T, dataclasses.replace(SETTINGS, max_documents=3)).used == [0, 1, 2]


def test_a_learned_table_is_not_defined_beyond_its_end_and_right_before_it(
    tiny_overrides: list[str], make_documents: Any
) -> None:
    cfg = minillm.compose([*tiny_overrides, "model=learned"], warn=False)
    model = minillm.build_model(dataclasses.replace(cfg.model, vocab_size=11)).eval()
    documents = make_documents(SIZES)
    rows = measure(model, documents, T, SETTINGS)
    for protocol in PROTOCOLS:
        by_length = pick(rows, protocol)
        assert by_length[16]["value"] is not None
        for length in (32, 64):
            assert (by_length[length]["value"], by_length[length]["note"]) == (None, "not defined")
    alone = measure(model, documents, T, dataclasses.replace(SETTINGS, lengths=(1,)))
    assert pick(rows, "position")[16]["value"] == pytest.approx(pick(alone, "position")[16]["value"])
    assert pick(rows, "position")[32]["note"] == "not defined"


@pytest.mark.bug("B031")
def test_reading_a_long_window_changes_nothing_for_a_short_one(tiny_overrides: list[str], make_documents: Any) -> None:
    """64, 300, 64, 1000 tokens by a model trained at 16: all are read, and a long window begins as a short one."""
    cfg = minillm.compose([*tiny_overrides, "model=rope"], warn=False)
    model = minillm.build_model(dataclasses.replace(cfg.model, vocab_size=11)).eval()
    documents = make_documents([1010])

    def at(length: int) -> np.ndarray:
        (nll,) = score_windows(model, documents, [Window(0, 0, length)]).values()
        assert nll is not None
        return nll

    first, longer, again, longest = at(64), at(300), at(64), at(1000)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(longer[:64], first, atol=1e-5)
    np.testing.assert_allclose(longest[:300], longer, atol=1e-5)


def test_an_undefined_position_is_no_error_of_the_suite(make_documents: Any) -> None:
    class Nowhere:
        def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
            raise PositionUndefined("nowhere")

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    rows = measure(Nowhere(), make_documents(SIZES), T, SETTINGS)
    assert all(r["value"] is None and r["note"] == "not defined" for r in rows)


def test_losses_that_are_no_numbers_are_said_and_spoil_no_other_row(blind: Any, make_documents: Any) -> None:
    class Overflows:
        def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
            logits = blind.hidden(tokens)
            return logits * float("nan") if tokens.shape[1] > 16 else logits

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    rows = measure(Overflows(), make_documents(SIZES), T, SETTINGS)
    for protocol in PROTOCOLS:
        assert pick(rows, protocol)[16]["value"] is not None
        assert {pick(rows, protocol)[n]["note"] for n in (32, 64)} == {"not finite"}
    assert pick(rows, "same_target", "nll_change")[64]["note"] == "not finite"
    assert {r["note"] for r in pick(rows, "position").values()} == {"not finite"}
    assert "NaN" not in json.dumps(rows)


@pytest.mark.parametrize("name", ["targets", "stride"])
def test_targets_and_strides_beyond_the_shortest_window_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"suite.length_perplexity.{name} = 17: must not exceed .* 16 tokens"):
        Plan([100], T, dataclasses.replace(SETTINGS, **{name: 17}))


def test_every_row_says_what_it_is_and_over_how_much(blind: Any, make_documents: Any) -> None:
    for row in measure(blind, make_documents(SIZES), T, SETTINGS):
        assert {"metric", "protocol", "length", "multiple", "depth", "value", "n", "low", "high"} <= set(row)
        assert row["depth"] is None
        assert row["multiple"] == row["length"] / T
        assert row["low"] <= row["value"] <= row["high"]


def test_bits_per_byte_are_nats_over_the_bytes_of_what_was_scored(blind: Any, make_documents: Any) -> None:
    documents = make_documents(SIZES)
    sizes = np.arange(1, 12)
    rows = measure(blind, documents, T, SETTINGS, token_bytes=sizes)
    nats = sum(blind.nll(d)[: limit_of(len(d))].sum() for d in documents)
    total = sum(sizes[d[1 : limit_of(len(d)) + 1]].sum() for d in documents)
    for protocol in ("non_overlapping", "strided"):
        for row in pick(rows, protocol, "bits_per_byte").values():
            assert row["value"] == pytest.approx(nats / math.log(2) / total, rel=1e-6)
            assert row["n"] == total
    assert not pick(measure(blind, documents, T, SETTINGS), "strided", "bits_per_byte")


def test_key_tokens_complete_what_was_read_long_before() -> None:
    ids = np.array([0, 1, 2, 3, 9, 1, 2, 3, 8, 8, 8, 1, 2, 4, 2, 3])
    assert np.flatnonzero(key_tokens(ids, 3, 3)).tolist() == [7]  # 1 2 3 again, 4 tokens on
    assert np.flatnonzero(key_tokens(ids, 3, 4)).tolist() == []
    assert np.flatnonzero(key_tokens(ids, 2, 4)).tolist() == [12, 15]  # 1 2 at 6 and 12, 2 3 at 7 and 15
    assert not key_tokens(ids[:2], 3, 1).any()


def test_key_tokens_and_the_others_are_all_that_is_scored(blind: Any, make_documents: Any) -> None:
    documents = make_documents(SIZES)
    rows = measure(blind, documents, T, dataclasses.replace(SETTINGS, key_ngram=2, key_distance=5))
    for protocol in ("same_target", "strided"):
        for length, whole in pick(rows, protocol).items():
            key, other = (pick(rows, protocol, m)[length] for m in ("key_nll", "other_nll"))
            assert key["n"] + other["n"] == whole["n"]
            assert min(key["n"], other["n"]) > 10
            total = key["value"] * key["n"] + other["value"] * other["n"]
            assert total == pytest.approx(whole["value"] * whole["n"], rel=1e-9)
    keys = [np.flatnonzero(key_tokens(d, 2, 5)) for d in documents]
    wanted = [blind.nll(d)[k[k <= limit_of(len(d))] - 1] for d, k in zip(documents, keys, strict=True)]
    got = pick(rows, "strided", "key_nll")[T]["value"]
    assert got == pytest.approx(np.concatenate(wanted).mean(), rel=1e-6)
    assert not pick(rows, "non_overlapping", "key_nll")


def test_a_text_that_repeats_nothing_has_no_key_tokens(blind: Any) -> None:
    documents = [np.arange(70) % 11 for _ in range(2)]
    rows = measure(blind, documents, T, dataclasses.replace(SETTINGS, key_distance=60))
    row = pick(rows, "strided", "key_nll")[T]
    assert (row["value"], row["note"]) == (None, "no such token")
