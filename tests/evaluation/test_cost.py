"""Speed and cache bytes: the counts against the formula, the rows whole, the model left as it was."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

import minillm
from minillm.evaluation.cost import measure
from minillm.evaluation.settings import CostSettings

T = 32
SETTINGS = CostSettings(lengths=(1, 2, 4), seconds=1e-6, train_tokens=64, decode_tokens=4)


def tiny(overrides: list[str], arm: str) -> minillm.Decoder:
    cfg = minillm.compose([*overrides, f"model={arm}", f"size.seq_len={T}", "size.window=4"], warn=False)
    return minillm.build_model(dataclasses.replace(cfg.model, vocab_size=50)).eval()


def values(rows: list[dict[str, Any]], metric: str, kind: str | None = None) -> dict[int, float]:
    return {r["length"]: r["value"] for r in rows if r["metric"] == metric and r["kind"] == kind}


@pytest.mark.parametrize("arm", ["rope", "rnope_swa", "swa_only", "llama4"])
def test_the_bytes_of_the_cache_are_those_of_the_formula(arm: str, tiny_overrides: list[str]) -> None:
    rows = measure(tiny(tiny_overrides, arm), T, SETTINGS)
    measured, formula = values(rows, "kv_bytes", "measured"), values(rows, "kv_bytes", "formula")
    assert list(measured) == list(formula) == [32, 64, 128]
    for length in measured:
        # A full layer's store grows by blocks of 32 entries, so that these lengths are exact.
        assert measured[length] == formula[length]


def test_windowed_layers_stop_growing_and_full_ones_do_not(tiny_overrides: list[str]) -> None:
    full = values(measure(tiny(tiny_overrides, "rope"), T, SETTINGS), "kv_bytes", "measured")
    window = values(measure(tiny(tiny_overrides, "swa_only"), T, SETTINGS), "kv_bytes", "measured")
    assert full[128] == 4 * full[32]
    assert window[128] == window[32]


def test_speeds_are_medians_with_the_quartiles_of_their_repeats(tiny_overrides: list[str]) -> None:
    rows = measure(tiny(tiny_overrides, "rope"), T, SETTINGS)
    for metric, n in (("train_tokens_per_second", 3), ("decode_tokens_per_second", 4)):
        found = [r for r in rows if r["metric"] == metric]
        assert [r["length"] for r in found] == [32, 64, 128]
        for row in found:
            assert 0 < row["low"] <= row["value"] <= row["high"]
            assert row["n"] == n


def test_training_speed_counts_every_token_of_the_step(
    tiny_overrides: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from minillm.evaluation import cost

    monkeypatch.setattr(cost, "_time", lambda step, seconds, device: [2.0, 2.0])
    rows = values(measure(tiny(tiny_overrides, "rope"), T, SETTINGS), "train_tokens_per_second")
    # 64 tokens a step: two rows of 32, one of 64; a longer sequence than that goes alone.
    assert rows == {32: 32.0, 64: 32.0, 128: 64.0}


def test_flops_grow_with_the_length_for_full_attention(tiny_overrides: list[str]) -> None:
    model = tiny(tiny_overrides, "rope")
    flops = values(measure(model, T, SETTINGS), "flops_per_token", "formula")
    assert flops == {n: minillm.cost(model.config, n).flops_per_token for n in (32, 64, 128)}
    assert flops[128] > flops[32]


def test_a_learned_table_has_speeds_up_to_its_end_and_none_beyond(tiny_overrides: list[str]) -> None:
    rows = measure(tiny(tiny_overrides, "learned"), T, SETTINGS)
    for metric, kind in (
        ("train_tokens_per_second", None),
        ("decode_tokens_per_second", None),
        ("kv_bytes", "measured"),
    ):
        found = {r["length"]: r for r in rows if r["metric"] == metric and r["kind"] == kind}
        assert found[32]["value"] is not None
        for length in (64, 128):
            assert (found[length]["value"], found[length]["note"]) == (None, "not defined")


@pytest.mark.parametrize("arm", ["dynamic_ntk", "longrope"])
def test_where_no_cache_is_exact_decoding_has_no_speed_and_training_has(arm: str, tiny_overrides: list[str]) -> None:
    rows = measure(tiny(tiny_overrides, arm), T, SETTINGS)
    assert all(value is not None for value in values(rows, "train_tokens_per_second").values())
    for metric, kind in (("decode_tokens_per_second", None), ("kv_bytes", "measured")):
        found = {r["length"]: r for r in rows if r["metric"] == metric and r["kind"] == kind}
        assert found[32]["value"] is not None
        for length in (64, 128):
            assert (found[length]["value"], found[length]["note"]) == (None, "no exact cache")


def test_measuring_leaves_the_model_as_it_was(tiny_overrides: list[str]) -> None:
    model = tiny(tiny_overrides, "rnope_swa")
    before = {k: v.clone() for k, v in model.state_dict().items()}
    measure(model, T, SETTINGS)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert not model.training


def test_progress_counts_each_measurement(tiny_overrides: list[str]) -> None:
    ticks: list[int] = []
    measure(tiny(tiny_overrides, "rope"), T, SETTINGS, progress=ticks.append)
    assert sum(ticks) == 2 * len(SETTINGS.lengths)
