"""From cases to rows: what is looked up and where, attention whose numbers are known, what is said where none is."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
import torch

from minillm.attention.mask import Call
from minillm.attention.reference import reference
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.data.tasks.needle import Needle
from minillm.evaluation.attention.cases import BEGIN, SEGMENTS, Case, copied_span, recall
from minillm.evaluation.attention.collect import Collected, Reading, collect
from minillm.evaluation.attention.knockout import best_heads, control_heads, knockout
from minillm.evaluation.attention.position_probe import position_rows, ridge
from minillm.evaluation.attention.similarity import between_heads, divergence, pack, unpack
from minillm.evaluation.attention.suite import NOT_DEFINED, Recall, Text, measure, num_tokens
from minillm.evaluation.attention.summary import summarise
from minillm.evaluation.attention.walk import watching
from minillm.evaluation.settings import AttentionSettings
from minillm.model.decoder import Decoder, build_model
from minillm.position.learned import Learned
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE

T, VOCAB = 96, 128
QUICK = AttentionSettings(
    lengths=(1, 2), samples=3, recall_samples=3, rows=10, positions=20, knockout_draws=1, similarity_rows=3
)
PLAN = (
    LayerSpec(0, "local", RoPE(), 4, 2, 8, window=12),
    LayerSpec(1, "global", NoPE(), 4, 2, 8, sink_logits=True),
    LayerSpec(2, "global", NoPE(), 4, 2, 8, sink_logits=True),
)


def model_of(*specs: LayerSpec, **fields: Any) -> Decoder:
    return build_model(ModelConfig(VOCAB, 24, 40, len(specs), T, specs, **fields), seed=1).eval()


def documents(*sizes: int) -> list[np.ndarray]:
    draw = np.random.default_rng(0)
    return [np.concatenate([[0], draw.integers(1, VOCAB, n - 1)]) for n in sizes]


def of(rows: list[dict[str, Any]], metric: str, **where: Any) -> list[dict[str, Any]]:
    return [r for r in rows if r["metric"] == metric and all(r.get(k) == v for k, v in where.items())]


def summary(model: Decoder, cases: list[Case], **reading: Any) -> tuple[Collected, list[dict[str, Any]]]:
    found = collect(model, cases, even_rows=10, places=20, reading=Reading(**reading))
    return found, summarise(found, model.layer_specs, T, (0.1, 0.3, 0.5))


def test_the_end_of_a_text_case_repeats_its_needle_and_asks_for_each_token_by_the_one_before() -> None:
    texts = documents(T, T + 40, 2 * T)
    cases = copied_span(texts, T, span=16, per_document=2)
    assert [case.cluster for case in cases] == [0, 0, 1, 1, 2, 2]
    for case in cases:
        ((start, span),) = case.needles
        assert len(case.tokens) == T
        assert case.question == T - span == 80
        assert (case.tokens[:80] == texts[case.cluster][:80]).all()
        assert (case.tokens[80:] == case.tokens[start : start + span]).all()
        assert BEGIN <= start <= 80 - span
        assert (case.tokens[case.rows + 1] == case.answers).all()
        assert (case.tokens[case.copied_from] == case.answers).all()
        assert (case.tokens[case.copied_from - 1] == case.tokens[case.rows]).all()
    depths = sorted(case.needles[0][0] for case in cases)
    assert max(np.diff(depths)) <= (80 - 16 - BEGIN) / 6 + 1, "depths are spread evenly"
    assert [c.needles for c in cases] == [c.needles for c in copied_span(texts, T, 16, 2)]
    assert [c.needles for c in cases] != [c.needles for c in copied_span(texts, T, 16, 2, seed=1)]


def test_a_recall_case_knows_where_each_answer_stands() -> None:
    cases = recall(Needle(), T, count=4, rows=100)
    for case in cases:
        assert len(case.rows) == 8
        assert (case.tokens[case.copied_from] == case.answers).all()
        assert case.question == case.rows[0] > max(case.copied_from)
        for row, needle, source in zip(case.rows, case.needle_of, case.copied_from, strict=True):
            start, length = case.needles[needle]
            assert start < source < start + length - 1, "one token on either side"
            assert case.tokens[start] in case.tokens[row - 1 : row + 1], "the needle's key is what was asked"
    assert [len(case.rows) for case in recall(Needle(), T, 2, rows=3)] == [3, 3]


def uniform() -> Decoder:
    """Scores are all 0."""
    model = model_of(LayerSpec(0, "all", NoPE(), 2, 1, 8), LayerSpec(1, "all", NoPE(), 2, 1, 8))
    for layer in model.layers:
        torch.nn.init.zeros_(layer.attention.qkv_proj.weight[: 2 * 8])
    return model


@pytest.mark.parametrize(
    "cases", [copied_span(documents(T, T), T, 16), recall(Needle(), T, 3, 16)], ids=["text", "task"]
)
def test_uniform_attention_lies_on_segments_by_their_share_and_nowhere_else(cases: list[Case]) -> None:
    _, rows = summary(uniform(), cases)
    for r in of(rows, "segment_ratio"):
        assert r["value"] == pytest.approx(1, abs=1e-6)
    for r in of(rows, "entropy_share"):
        assert r["value"] == pytest.approx(1, abs=1e-6)
    needle = np.mean([of_case(case) for case in cases])
    assert of(rows, "segment_mass", kind="all", layer=None, segment="needle")[0]["value"] == pytest.approx(needle)
    seen = np.concatenate([1 / (case.even_rows(10, 0) + 1) for case in cases])
    assert of(rows, "sink_mass", layer=1, head=None)[0]["value"] == pytest.approx(seen.mean(), rel=1e-5)
    assert {r["value"] for r in of(rows, "sink_rate")} == {0.0}
    assert {round(r["value"], 6) for r in of(rows, "recency")} == {1}
    by_distance = of(rows, "attention_by_distance")
    assert len(by_distance) > 4
    for r in by_distance[:3]:  # every row sees that far
        assert r["value"] == pytest.approx(seen.mean(), rel=1e-5)


def of_case(case: Case) -> float:
    """Mean share of the keys up to a row that are the row's own needle."""
    size = np.bincount(case.categories(), minlength=3 + len(case.needles))[3:]
    return float(np.mean([size[n] / (row + 1) for row, n in zip(case.rows, case.needle_of, strict=True)]))


def test_segments_add_up_to_one_and_windows_leave_needle_and_sink_out() -> None:
    _, rows = summary(model_of(*PLAN), copied_span(documents(T, T, T), T, 16))
    for where in ({"layer": i, "head": None} for i in range(3)):
        assert sum(r["value"] for r in of(rows, "segment_mass", **where)) == pytest.approx(1)
    assert {r["segment"] for r in of(rows, "segment_mass", kind="local")} == set(SEGMENTS)
    local = {"kind": "local", "layer": None}
    assert of(rows, "segment_mass", segment="begin", **local)[0]["value"] == 0
    # No needle ends within 12 tokens of a question's first row in these cases.
    assert of(rows, "segment_mass", segment="needle", **local)[0]["value"] < 0.05
    for metric in ("sink_mass", "sink_rate"):
        for r in of(rows, metric, **local):
            assert r["value"] is None
            assert "beyond the reach" in r["note"]
    assert len(of(rows, "sink_rate", kind="global")) == 3
    logit = of(rows, "sink_logit_mass")
    assert [r["layer"] for r in logit] == [1, 2, None], "only layers that have sink logits"
    assert 0 < logit[0]["value"] < 1
    longest = of(rows, "attention_by_distance", kind="local")[-1]["bin"]
    assert longest == "8-15", "a window of 12 has no distance from 16 on"


def test_batches_change_nothing() -> None:
    cases = copied_span(documents(T, T, T), T, 16)
    _, together = summary(model_of(*PLAN), cases)
    _, alone = summary(model_of(*PLAN), cases, batch_tokens=1)
    assert len(together) == len(alone)
    for a, b in zip(together, alone, strict=True):
        assert {k: v for k, v in a.items() if k not in ("value", "low", "high")} == {
            k: v for k, v in b.items() if k not in ("value", "low", "high")
        }
        assert a["value"] == pytest.approx(b["value"], abs=1e-5)


def test_retrieval_is_how_often_a_heads_highest_key_is_the_token_to_be_copied() -> None:
    model = model_of(*PLAN)
    (case,) = copied_span(documents(T), T, 16)
    tops: list[torch.Tensor] = []

    def see(index: int, attention: Any, x: torch.Tensor, context: Any) -> None:
        q, k, v = attention.project(x, context)
        call = Call(
            q, k, v, attention.spec, context.tokens, context.tokens, context, attention.position, attention.sinks
        )
        tops.append(reference(call, return_probs=True)[1][0, :, case.rows].argmax(-1))

    with torch.no_grad(), watching(model, see):
        model.hidden(torch.from_numpy(case.tokens)[None])
    # As if head 2 of layer 1 always looked at the right token, and then head 0 of layer 2 by chance.
    wanted = tops[1][2].numpy()
    _, rows = summary(model, [dataclasses.replace(case, copied_from=wanted)])
    assert of(rows, "retrieval", layer=1, head=2)[0]["value"] == 1
    other = float((tops[2][0].numpy() == wanted).mean())
    assert of(rows, "retrieval", layer=2, head=0)[0]["value"] == pytest.approx(other)
    near = float((abs(tops[2][0].numpy() - wanted) <= 2).mean())
    assert of(rows, "retrieval_near", layer=2, head=0)[0]["value"] == pytest.approx(near)
    (best,) = of(rows, "retrieval_best", kind="global")
    assert (best["layer"], best["head"], best["value"]) == (1, 2, 1)


def test_accuracy_and_log_probability_are_those_of_the_answers() -> None:
    model = model_of(*PLAN)
    cases = copied_span(documents(T, T), T, 16)
    _, rows = summary(model, cases)
    with torch.no_grad():
        log_p = torch.log_softmax(model(torch.from_numpy(np.stack([c.tokens for c in cases]))), dim=-1)
    gold = [log_p[i, torch.from_numpy(c.rows), torch.from_numpy(c.answers)] for i, c in enumerate(cases)]
    assert of(rows, "answer_log_prob")[0]["value"] == pytest.approx(float(torch.cat(gold).mean()), abs=1e-5)


def test_controls_are_as_many_other_heads_of_the_same_layers() -> None:
    scores = {0: np.array([0.0, 0.9]), 1: np.array([0.5, 0.0, 0.7, 0.1]), 2: np.zeros(4)}
    chosen = best_heads(scores, 3)
    assert chosen == [(0, 1), (1, 2), (1, 0)]
    assert best_heads(scores, 99) == [(0, 1), (1, 2), (1, 0), (1, 3)], "a head that never looks there is none"
    assert best_heads(scores, None) == [(0, 1), (1, 2)], "half as good as the best, two of ten at most"
    assert best_heads({0: np.array([0.9, 0.1, 0.44, 0.5]), 1: np.zeros(8)}, None) == [(0, 0), (0, 3)]
    assert best_heads({0: np.zeros(4)}, None) == []
    draw = np.random.default_rng(0)
    for _ in range(20):
        control = control_heads(chosen, {0: 2, 1: 4, 2: 4}, draw)
        assert [layer for layer, _ in control] == [0, 1, 1]
        assert len(set(control) - set(chosen)) == 3
    crowded = control_heads([(0, 0), (0, 1)], {0: 2, 1: 4, 2: 4}, draw)
    assert [layer for layer, _ in crowded] == [1, 1], "the nearest layer with heads to spare"
    both = [control_heads([(1, h) for h in range(4)], {0: 4, 1: 4, 2: 4}, draw) for _ in range(9)]
    assert {layer for heads in both for layer, _ in heads} == {0, 2}


def test_silencing_heads_that_do_nothing_changes_nothing() -> None:
    model = model_of(*PLAN)
    with torch.no_grad():
        model.layers[1].attention.o_proj.weight[:, 8:16] = 0  # head 1
        model.layers[0].attention.o_proj.weight *= 30  # and all of layer 0 does much
    cases = copied_span(documents(T, T, T), T, 16, per_document=2)
    scores = {0: np.zeros(4), 1: np.array([0, 1.0, 0, 0]), 2: np.zeros(4)}
    idle = knockout(model, cases, scores, 1, 1, T)
    assert of(idle, "knockout_log_prob_change", heads="retrieval")[0]["value"] == pytest.approx(0, abs=1e-9)
    assert of(idle, "knockout_log_prob", heads="retrieval")[0]["which"] == ["1.1"]
    scores = {0: np.ones(4), 1: np.zeros(4), 2: np.zeros(4)}
    busy = knockout(model, cases, scores, 4, 1, T)
    assert abs(of(busy, "knockout_log_prob_change", heads="retrieval")[0]["value"]) > 1e-3
    (none,) = knockout(model, cases, {0: np.zeros(4), 1: np.zeros(4), 2: np.zeros(4)}, 4, 1, T)
    assert "no head" in none["note"]


def test_ridge_is_least_squares_where_the_penalty_vanishes() -> None:
    draw = np.random.default_rng(0)
    x, y = draw.normal(size=(50, 4)) * [1, 10, 0.1, 3] + [0, 5, 0, 0], draw.normal(size=50)
    design = np.column_stack([x, np.ones(50)])
    np.testing.assert_allclose(ridge(x, y, 1e-14), np.linalg.lstsq(design, y, rcond=None)[0], atol=1e-8)
    still = np.column_stack([x, np.full(50, 7.0)])  # a column that never changes tells nothing
    assert np.isfinite(ridge(still, y, 1e-3)).all()
    assert ridge(still, y, 1e-3)[4] == 0


def test_position_is_found_in_position_embeddings_and_not_in_bare_tokens() -> None:
    specs = (LayerSpec(0, "all", NoPE(), 4, 2, 8),)
    cases = copied_span(documents(*[T] * 8), T, 16)
    bare = model_of(*specs)
    told = model_of(*specs, embedding_position=Learned())
    with torch.no_grad():
        assert told.embed_positions is not None
        ramp = torch.linspace(-1, 1, T)[:, None] * torch.linspace(-1, 1, 24)
        next(told.embed_positions.parameters()).copy_(ramp)
    r2 = {}
    for name, model in (("bare", bare), ("told", told)):
        found = collect(model, cases, even_rows=4, places=T)
        rows = position_rows(found, model.layer_specs, T, 0.01)
        assert [r["kind"] for r in of(rows, "position_r2")] == ["embeddings", "all"]
        r2[name] = of(rows, "position_r2", kind="embeddings")[0]
        assert r2[name]["n"] == 8 * T
        assert r2[name]["low"] <= r2[name]["value"] <= r2[name]["high"]
    assert r2["bare"]["value"] < 0.2
    assert r2["told"]["value"] > 0.95


def test_divergence_is_nothing_of_equal_rows_and_one_bit_of_rows_apart() -> None:
    p = torch.softmax(3 * torch.randn(2, 3, 4, 9), dim=-1).double().numpy()
    np.testing.assert_allclose(divergence(p, p), 0, atol=1e-12)
    apart = np.eye(4)
    assert divergence(apart[0], apart[1]) == pytest.approx(1)
    a, b = torch.from_numpy(p[0, 0, 0]), torch.from_numpy(p[1, 1, 1])
    middle = ((a + b) / 2).log()
    kl = torch.nn.functional.kl_div
    wanted = (kl(middle, a, reduction="sum") + kl(middle, b, reduction="sum")) / 2 / np.log(2)
    assert divergence(a.numpy(), b.numpy()) == pytest.approx(float(wanted))
    heads = between_heads(p, p)
    assert heads.shape == (3, 3)
    np.testing.assert_allclose(np.diagonal(heads), 0, atol=1e-12)
    back = unpack(json.loads(json.dumps(pack(p))))
    assert divergence(p, back).max() < 1e-4
    np.testing.assert_allclose(back.sum(-1), 1)


def test_a_run_has_rows_of_every_length_and_reads_the_tokens_it_announces() -> None:
    model, texts = model_of(*PLAN), documents(T, 2 * T, 2 * T, 50)
    source = Text(texts, QUICK)
    assert source.used(T) == [0, 1, 2]
    read: list[int] = []
    rows = measure(model, T, QUICK, source, progress=read.append)
    assert sum(read) == num_tokens(T, QUICK, source)
    assert json.loads(json.dumps(rows, allow_nan=False)) == rows
    assert {r["multiple"] for r in of(rows, "entropy_bits")} == {1, 2}
    assert {r["length"] for r in of(rows, "attention_rows")} == {T}
    assert {r["length"] for r in of(rows, "knockout_accuracy")} == {T}
    assert {r["source"] for r in rows} == {"a span of the document repeated at its end"}
    for r in rows:
        if r["value"] is not None and r["low"] is not None:
            assert r["low"] - 1e-9 <= r["value"] <= r["high"] + 1e-9
    assert len(of(rows, "retrieval", length=T)) == 12 + 3 + 2  # heads, layers, kinds
    too_short = measure(model, T, dataclasses.replace(QUICK, lengths=(1, 4)), source)
    assert "too few documents of 384 tokens" in of(too_short, "segment_mass", length=4 * T)[0]["note"]


def test_a_length_without_meaning_is_said_to_have_none() -> None:
    model = model_of(LayerSpec(0, "all", NoPE(), 2, 1, 8), embedding_position=Learned())
    rows = measure(model, T, QUICK, Text(documents(*[2 * T] * 3), QUICK))
    assert [(r["metric"], r["note"]) for r in rows if r["length"] == 2 * T] == [("segment_mass", NOT_DEFINED)]


def test_a_length_beyond_the_memory_is_said_and_the_others_stand(monkeypatch: pytest.MonkeyPatch) -> None:
    from minillm.evaluation.attention import suite

    def fails_when_long(model: Decoder, cases: list[Case], *args: Any) -> Collected:
        if len(cases[0].tokens) > T:
            raise RuntimeError(
                "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes"
            )
        return collect(model, cases, *args)

    monkeypatch.setattr(suite, "collect", fails_when_long)
    model, source = model_of(*PLAN), Text(documents(*[2 * T] * 3), QUICK)
    rows = measure(model, T, QUICK, source)
    assert [r["note"] for r in rows if r["length"] == 2 * T] == ["not measured: 192 tokens do not fit the memory"]
    assert of(rows, "entropy_bits", length=T)
    monkeypatch.setattr(suite, "collect", lambda *args: 1 / torch.zeros(2, 3).mm(torch.zeros(2, 3)))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        measure(model, T, QUICK, source)


def test_a_recall_task_is_read_through_its_own_samples() -> None:
    model = model_of(*PLAN)
    rows = measure(model, T, QUICK, Recall(Needle(), QUICK))
    assert {r["source"] for r in rows} == {"test samples of the task needle"}
    assert of(rows, "answer_accuracy", length=T)[0]["n"] == 3 * 8
    assert of(rows, "knockout_accuracy", heads="none")[0]["n"] == 6 * 8
