"""Kinds, pattern, overrides and interval, and who wins where several of them speak."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from minillm.config.expand import Heads
from minillm.config.layers import LayerSpec, QKNorm
from minillm.position.alibi import ALiBi
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.scaling import Linear, YaRN
from minillm.position.temperature import Llama4, LogN
from tests.config.plans import one_kind, specs

LOCAL_GLOBAL: dict[str, Any] = {
    "kinds": {"local": {"position": "rope", "window": 8}, "global": {"position": "nope", "window": None}},
    "pattern": ["local", "local", "local", "global"],
}


def windows(layers: tuple[LayerSpec, ...]) -> list[int | None]:
    return [spec.window for spec in layers]


def schemes(layers: tuple[LayerSpec, ...]) -> list[str]:
    return [spec.position.scheme for spec in layers]


# ---- forms ------------------------------------------------------------------------------------------------------


def test_a_plan_that_says_nothing_is_plain_rope_with_full_attention() -> None:
    (spec,) = specs(one_kind(), depth=1)
    assert spec == LayerSpec(0, "a", RoPE(), 4, 2, 8)
    assert (spec.window, spec.chunk, spec.qk_norm, spec.temperature, spec.softcap, spec.scale) == (None,) * 6
    assert spec.qkv_bias is False


def test_the_pattern_is_cycled_over_the_depth_and_cut_there() -> None:
    layers = specs(LOCAL_GLOBAL, depth=6)
    assert [spec.kind for spec in layers] == ["local", "local", "local", "global", "local", "local"]
    assert [spec.index for spec in layers] == [0, 1, 2, 3, 4, 5]
    assert windows(layers) == [8, 8, 8, None, 8, 8]
    assert schemes(layers) == ["rope", "rope", "rope", "nope", "rope", "rope"]


@pytest.mark.bug("B009")
def test_five_local_then_one_global_puts_the_global_layers_at_five_and_eleven() -> None:
    plan = {**LOCAL_GLOBAL, "pattern": ["local"] * 5 + ["global"]}
    assert [spec.index for spec in specs(plan, depth=12) if spec.window is None] == [5, 11]


@pytest.mark.bug("B009")
def test_the_first_four_local_are_layers_zero_to_three() -> None:
    plan = {**LOCAL_GLOBAL, "pattern": ["local"] * 4 + ["global"] * 2}
    assert [spec.index for spec in specs(plan, depth=6) if spec.window == 8] == [0, 1, 2, 3]


def test_one_kind_needs_no_pattern() -> None:
    assert windows(specs({"kinds": {"only": {"window": 3}}}, depth=3)) == [3, 3, 3]


def test_a_kind_without_fields_takes_what_holds_everywhere() -> None:
    plan = {"kinds": {"a": None}, "pattern": ["a"]}
    assert windows(specs(plan, {"window": 5}, depth=2)) == [5, 5]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param("nope", NoPE(), id="a bare name"),
        pytest.param("alibi", ALiBi(), id="another bare name"),
        pytest.param({"scheme": "rope", "theta": 12345}, RoPE(theta=12345.0), id="a mapping"),
        pytest.param({"theta": "5e5"}, RoPE(theta=5e5), id="a mapping without a name, a number as text"),
        pytest.param(
            {"scheme": "rope", "partial_rotary_factor": 0.5, "layout": "interleaved", "rule": "neox"},
            RoPE(partial_rotary_factor=0.5, layout="interleaved"),
            id="all fields of rope",
        ),
        pytest.param(
            {"scheme": "rope", "scaling": {"type": "linear", "factor": 4}}, RoPE(scaling=Linear(4.0)), id="scaling"
        ),
    ],
)
def test_a_position_is_a_name_or_a_mapping(value: Any, expected: Any) -> None:
    assert specs(one_kind(position=value), depth=1)[0].position == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, None, id="null"),
        pytest.param("rms", QKNorm("rms"), id="rms"),
        pytest.param("l2", QKNorm("l2"), id="l2"),
        pytest.param("layernorm", QKNorm("layernorm"), id="layernorm"),
        pytest.param({"type": "rms", "over": "full"}, QKNorm("rms", "full"), id="full width"),
        pytest.param({"type": "l2", "order": "after_rope"}, QKNorm("l2", order="after_rope"), id="after the rotation"),
    ],
)
def test_a_qk_norm_is_null_or_a_name_or_a_mapping(value: Any, expected: QKNorm | None) -> None:
    assert specs(one_kind(qk_norm=value), depth=1)[0].qk_norm == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(None, None, id="null"),
        pytest.param("llama4", Llama4(), id="llama4"),
        pytest.param({"type": "llama4", "scale": 0.5, "floor": 16}, Llama4(0.5, 16.0), id="llama4 with fields"),
        pytest.param({"type": "log_n", "base": 20}, LogN(20.0), id="log_n with its field"),
    ],
)
def test_a_temperature_is_null_or_a_name_or_a_mapping(value: Any, expected: Any) -> None:
    assert specs(one_kind(temperature=value), depth=1)[0].temperature == expected


def test_every_plain_field_reaches_the_spec() -> None:
    fields = {"window": 5, "softcap": 30, "scale": 0.25, "qkv_bias": True, "num_key_value_heads": 1}
    (spec,) = specs(one_kind(**fields), depth=1)
    assert {name: getattr(spec, name) for name in fields} == fields
    assert specs(one_kind(chunk=6), depth=1)[0].chunk == 6


@pytest.mark.parametrize("given", [128.0, "128", "1.28e2"], ids=["a float", "digits", "an exponent"])
def test_a_whole_number_may_be_written_in_other_ways(given: Any) -> None:
    window = specs(one_kind(window=given), depth=1, seq_len=512)[0].window
    assert window == 128
    assert type(window) is int


# ---- overrides and interval -------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [2, "2"], ids=["an int", "a digit string"])
def test_an_override_changes_one_field_of_one_layer(key: int | str) -> None:
    plain, changed = specs(LOCAL_GLOBAL), specs({**LOCAL_GLOBAL, "overrides": {key: {"window": 3}}})
    assert changed[2] == dataclasses.replace(plain[2], window=3)
    assert changed[:2] + changed[3:] == plain[:2] + plain[3:]


@pytest.mark.parametrize("given", ["global", {"kind": "global"}], ids=["its name alone", "the field `kind`"])
def test_an_override_may_give_a_layer_another_kind(given: Any) -> None:
    layers = specs({**LOCAL_GLOBAL, "overrides": {1: given}})
    assert [spec.kind for spec in layers] == ["local", "global", "local", "global"]
    assert windows(layers) == [8, None, 8, None]


def test_a_kind_may_be_named_by_a_number() -> None:
    plan = {"kinds": {0: {"window": 3}, 1: {"window": 5}}, "pattern": [0, 1], "overrides": {2: {"kind": 1}}}
    assert windows(specs(plan)) == [3, 5, 5, 5]


def test_an_override_of_another_kind_may_change_its_fields_too() -> None:
    layers = specs({**LOCAL_GLOBAL, "overrides": {0: {"kind": "global", "window": 2}}})
    assert (layers[0].kind, layers[0].window, layers[0].position) == ("global", 2, NoPE())


def test_null_overrides_nothing() -> None:
    assert specs({**LOCAL_GLOBAL, "overrides": None}) == specs({**LOCAL_GLOBAL, "overrides": {1: None}})
    assert specs({**LOCAL_GLOBAL, "overrides": {}}) == specs(LOCAL_GLOBAL)


@pytest.mark.bug("B026")
@pytest.mark.parametrize(
    ("interval", "depth", "without"),
    [
        (4, 12, [3, 7, 11]),
        (4, 13, [3, 7, 11]),
        (1, 3, [0, 1, 2]),
        (3, 3, [2]),
        (0, 4, []),
        (None, 4, []),
        (5, 4, []),
    ],
)
def test_every_nth_layer_loses_its_position_and_nothing_else(
    interval: int | None, depth: int, without: list[int]
) -> None:
    plan = one_kind(position={"scheme": "rope", "theta": 777.0}, window=8, qk_norm="rms")
    plain = specs(plan, depth=depth)
    layers = specs({**plan, "no_rope_layer_interval": interval}, depth=depth)
    assert [spec.index for spec in layers if spec.position == NoPE()] == without
    for before, after in zip(plain, layers, strict=True):
        assert after == (dataclasses.replace(before, position=NoPE()) if after.index in without else before)


def test_an_override_wins_over_the_interval() -> None:
    plan = {**one_kind(position={"scheme": "rope", "theta": 777.0}), "no_rope_layer_interval": 2}
    layers = specs({**plan, "overrides": {1: {"position": "rope"}, 2: {"window": 4}}})
    # The interval replaced the kind's position, so the override starts from the scheme's defaults.
    assert [spec.position for spec in layers] == [RoPE(theta=777.0), RoPE(), RoPE(theta=777.0), NoPE()]


# ---- precedence, field by field ---------------------------------------------------------------------------------


def test_each_field_is_decided_by_the_last_that_gives_it() -> None:
    plan = {
        "kinds": {"a": {"window": 6, "softcap": 20.0, "scale": 0.3}},
        "pattern": ["a"],
        "overrides": {0: {"scale": 0.4}},
    }
    first, second = specs(plan, {"window": 5, "softcap": 10.0, "scale": 0.2, "qk_norm": "l2"}, depth=2)
    assert (first.window, first.softcap, first.scale, first.qk_norm) == (6, 20.0, 0.4, QKNorm("l2"))
    assert (second.window, second.softcap, second.scale, second.qk_norm) == (6, 20.0, 0.3, QKNorm("l2"))


def test_null_in_a_kind_is_full_attention_and_not_a_silence() -> None:
    assert windows(specs(one_kind(window=None), {"window": 5}, depth=1)) == [None]
    assert windows(specs(one_kind(), {"window": 5}, depth=1)) == [5]


@pytest.mark.parametrize(
    ("attention", "kind", "override", "expected"),
    [
        pytest.param({"theta": 2e4}, "rope", None, RoPE(theta=2e4), id="the same scheme by its bare name keeps fields"),
        pytest.param({"theta": 2e4}, {"layout": "interleaved"}, None, RoPE(2e4, layout="interleaved"), id="no name"),
        pytest.param(
            {"theta": 2e4},
            {"scheme": "rope", "partial_rotary_factor": 0.5},
            {"theta": 3e4},
            RoPE(3e4, partial_rotary_factor=0.5),
            id="three sources",
        ),
        pytest.param({"theta": 2e4}, "alibi", "rope", RoPE(), id="another scheme in between forgets the fields"),
        pytest.param({"theta": 2e4}, "nope", None, NoPE(), id="another scheme replaces the whole field"),
        pytest.param(
            {"scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}},
            {"scaling": {"factor": 8}},
            {"scaling": {"beta_fast": 16}},
            RoPE(scaling=YaRN(8.0, 64, beta_fast=16.0)),
            id="scaling merges as well",
        ),
        pytest.param(
            {"scaling": {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}},
            {"theta": 5e4},
            {"scaling": {"type": "linear", "factor": 2}},
            RoPE(5e4, scaling=Linear(2.0)),
            id="another scaling replaces the scaling alone",
        ),
        pytest.param(
            {"scaling": {"type": "linear", "factor": 2}},
            {"theta": 5e4},
            {"scaling": None},
            RoPE(5e4),
            id="null takes the scaling away",
        ),
    ],
)
def test_positions_merge_where_they_name_the_same_scheme_or_none(
    attention: Any, kind: Any, override: Any, expected: Any
) -> None:
    plan = one_kind(position=kind)
    if override is not None:
        plan["overrides"] = {0: {"position": override}}
    assert specs(plan, {"position": attention}, depth=1)[0].position == expected


@pytest.mark.parametrize(
    ("attention", "kind", "expected"),
    [
        pytest.param("rms", {"over": "full"}, QKNorm("rms", "full"), id="no name refines"),
        pytest.param(
            {"type": "rms", "over": "full"},
            {"order": "after_rope"},
            QKNorm("rms", "full", "after_rope"),
            id="fields merge",
        ),
        pytest.param({"type": "rms", "over": "full"}, "rms", QKNorm("rms", "full"), id="the same name keeps fields"),
        pytest.param({"type": "rms", "over": "full"}, "l2", QKNorm("l2"), id="another name forgets them"),
        pytest.param({"type": "rms", "over": "full"}, None, None, id="null takes it away"),
    ],
)
def test_qk_norms_merge_by_the_same_rule(attention: Any, kind: Any, expected: QKNorm | None) -> None:
    assert specs(one_kind(qk_norm=kind), {"qk_norm": attention}, depth=1)[0].qk_norm == expected


def test_temperatures_merge_by_the_same_rule() -> None:
    attention = {"temperature": {"type": "llama4", "scale": 0.5, "floor": 16}}
    assert specs(one_kind(temperature={"floor": 32}), attention, depth=1)[0].temperature == Llama4(0.5, 32.0)
    assert specs(one_kind(temperature="log_n"), attention, depth=1)[0].temperature == LogN()


@pytest.mark.bug("B032")
def test_bases_belong_to_layers() -> None:
    kinds = {"low": {"position": {"theta": 1e4}}, "high": {"position": {"theta": 1e6}}}
    layers = specs({"kinds": kinds, "pattern": ["low", "high"]})
    assert [spec.position.theta for spec in layers] == [1e4, 1e6, 1e4, 1e6]  # type: ignore[attr-defined]


def test_key_value_heads_may_differ_between_layers() -> None:
    kinds = {"a": {"num_key_value_heads": 4}, "b": {"num_key_value_heads": 1}, "c": {}}
    layers = specs({"kinds": kinds, "pattern": ["a", "b", "c"]}, depth=3, heads=Heads(4, 2, 8))
    assert [spec.num_key_value_heads for spec in layers] == [4, 1, 2]


def test_the_mapping_that_was_given_is_not_changed() -> None:
    attention = {"position": {"scheme": "rope", "theta": 5.0}}
    kind = {"position": {"layout": "interleaved"}}
    specs({"kinds": {"a": kind}, "pattern": ["a"]}, attention)
    assert attention == {"position": {"scheme": "rope", "theta": 5.0}}
    assert kind == {"position": {"layout": "interleaved"}}


def test_a_spec_cannot_be_changed() -> None:
    (spec,) = specs(one_kind(qk_norm="rms", temperature="log_n"), depth=1)
    for frozen, name in (
        (spec, "window"),
        (spec.position, "theta"),
        (spec.qk_norm, "type"),
        (spec.temperature, "base"),
    ):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(frozen, name, 1)
    assert hash(spec) == hash(specs(one_kind(qk_norm="rms", temperature="log_n"), depth=1)[0])
