"""Plans that cannot be honoured are refused: where, which value, what is allowed, and the nearest right name."""

from __future__ import annotations

from typing import Any

import pytest

from minillm.config.expand import Heads, embedding_scheme
from minillm.errors import ConfigError
from minillm.position.learned import Learned
from minillm.position.sinusoidal import Sinusoidal
from tests.config.plans import one_kind, refused

TWO: dict[str, Any] = {"kinds": {"local": {"window": 8}, "global": {}}, "pattern": ["local", "global"]}
YARN = {"type": "yarn", "factor": 4, "original_max_position_embeddings": 64}


@pytest.mark.bug("B005")
@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("field", ["window", "chunk"])
def test_a_window_below_one_is_refused_and_never_taken_for_full(field: str, value: int) -> None:
    plan = {"kinds": {"wide": {}, "bad": {field: value}}, "pattern": ["wide", "bad"]}
    expected = f"layer 1 (kind 'bad'): {field} = {value}: must be 1 or more, or null for full attention."
    assert refused(plan) == expected


@pytest.mark.parametrize("value", [1.5, "many", True, [4], {}], ids=str)
def test_a_window_that_is_no_whole_number_is_refused(value: Any) -> None:
    assert refused(one_kind(window=value)) == f"layer 0 (kind 'a'): window: expected a whole number, got {value!r}."


def test_window_and_chunk_together_are_refused() -> None:
    message = refused(one_kind(window=8), {"chunk": 4})
    assert message == "layer 0 (kind 'a'): window = 8 and chunk = 4 exclude each other; set one of them to null."


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"position": {"scheme": "nope", "theta": 1e4}},
            "layer 0 (kind 'a'): position.theta = 10000.0: 'nope' has no such field. It has no fields.",
            id="theta on nope",
        ),
        pytest.param(
            {"position": {"scheme": "alibi", "scaling": YARN}},
            f"layer 0 (kind 'a'): position.scaling = {YARN!r}: 'alibi' has no such field. Allowed here: learned.",
            id="scaling on alibi",
        ),
        pytest.param(
            {"position": {"thta": 1e4}},
            "layer 0 (kind 'a'): position.thta = 10000.0: 'rope' has no such field. Did you mean 'theta'? "
            "Allowed here: layout, partial_rotary_factor, rule, scaling, theta.",
            id="a misspelt field",
        ),
        pytest.param(
            {"temperature": {"type": "log_n", "scale": 2}},
            "layer 0 (kind 'a'): temperature.scale = 2: 'log_n' has no such field. Allowed here: base.",
            id="another temperature's field",
        ),
        pytest.param(
            {"qk_norm": {"type": "rms", "ovr": "full"}},
            "layer 0 (kind 'a'): qk_norm.ovr = 'full': unknown key. Did you mean 'over'? "
            "Allowed here: order, over, type.",
            id="a misspelt field of qk_norm",
        ),
    ],
)
def test_a_field_that_its_scheme_does_not_have_is_refused(fields: Any, expected: str) -> None:
    assert refused(one_kind(**fields)) == expected


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        pytest.param(
            {"position": "ropee"},
            "layer 0 (kind 'a'): position: unknown position scheme 'ropee'. Did you mean 'rope'?",
            id="position",
        ),
        pytest.param(
            {"temperature": "llama"},
            "layer 0 (kind 'a'): temperature: unknown temperature 'llama'. Did you mean 'llama4'?",
            id="temperature",
        ),
        pytest.param(
            {"qk_norm": "rmss"},
            "layer 0 (kind 'a'): qk_norm.type: 'rmss' is not allowed. Did you mean 'rms'? Allowed: rms, l2, layernorm.",
            id="qk_norm",
        ),
        pytest.param(
            {"qk_norm": {"type": "rms", "over": "heads"}},
            "layer 0 (kind 'a'): qk_norm.over: 'heads' is not allowed. Did you mean 'head'? Allowed: head, full.",
            id="over",
        ),
        pytest.param(
            {"qk_norm": {"type": "rms", "order": "after"}},
            "layer 0 (kind 'a'): qk_norm.order: 'after' is not allowed. Did you mean 'after_rope'? "
            "Allowed: before_rope, after_rope.",
            id="order",
        ),
        pytest.param(
            {"position": {"layout": "halves"}},
            "layer 0 (kind 'a'): position.layout: 'halves' is not allowed. Did you mean 'half'? "
            "Allowed: half, interleaved.",
            id="layout",
        ),
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest_one(fields: Any, expected: str) -> None:
    assert refused(one_kind(**fields)).startswith(expected)


@pytest.mark.bug("B037")
@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        pytest.param({"type": "yarn"}, "scaling.factor: missing", id="nothing but a type"),
        pytest.param(
            {"type": "yarn", "factor": 4}, "scaling.original_max_position_embeddings: missing", id="no length"
        ),
        pytest.param({"factor": 4}, "scaling.type: missing (given: factor)", id="no type"),
        pytest.param({"rope_type": "yarn", "factor": 4}, "scaling.type: missing", id="the other spelling of type"),
        pytest.param({"type": "yarm"}, "scaling.type: unknown type 'yarm'. Did you mean 'yarn'?", id="a misspelt type"),
        pytest.param({**YARN, "beta": 1}, "scaling.beta = 1: unknown key. Did you mean 'beta_", id="an unknown key"),
        pytest.param("linear", "scaling: expected null or a mapping with `type`", id="a bare name"),
        pytest.param({**YARN, "factor": 0.5}, "scaling.factor = 0.5: must be at least 1", id="a factor below one"),
    ],
)
def test_an_incomplete_scaling_block_is_refused(scaling: Any, expected: str) -> None:
    assert refused(one_kind(position={"scaling": scaling})).startswith(f"layer 0 (kind 'a'): position.{expected}")


@pytest.mark.parametrize(
    ("position", "head_dim"),
    [
        pytest.param({"partial_rotary_factor": 0.4}, 8, id="a share"),
        pytest.param("rope", 7, id="an odd head"),
    ],
)
def test_an_odd_rotary_width_is_refused(position: Any, head_dim: int) -> None:
    message = refused(one_kind(position=position), heads=Heads(4, 2, head_dim))
    assert message.startswith("layer 0 (kind 'a'): position.partial_rotary_factor = ")
    assert f"of head_dim = {head_dim} rotates {7 if head_dim == 7 else 3} channels" in message


@pytest.mark.parametrize("kv_heads", [3, 8, 0, -1])
def test_heads_that_do_not_divide_are_refused(kv_heads: int) -> None:
    expected = f"layer 0 (kind 'a'): num_key_value_heads = {kv_heads} does not divide num_attention_heads = 4."
    assert refused(one_kind(num_key_value_heads=kv_heads)) == expected
    assert refused(one_kind(), heads=Heads(4, kv_heads, 8)) == expected


@pytest.mark.bug("B021")
@pytest.mark.parametrize("value", [0, -1, float("nan"), float("inf"), "nan", True], ids=str)
@pytest.mark.parametrize("field", ["softcap", "scale"])
def test_a_soft_cap_or_scale_that_makes_no_sense_is_refused(field: str, value: Any) -> None:
    assert refused(one_kind(**{field: value})).startswith(f"layer 0 (kind 'a'): {field}")


@pytest.mark.parametrize("field", ["position", "qk_norm", "temperature"])
@pytest.mark.parametrize("value", [5, True, ["rope"]], ids=str)
def test_a_scheme_that_is_neither_a_name_nor_a_mapping_is_refused(field: str, value: Any) -> None:
    message = refused(one_kind(**{field: value}))
    assert message.startswith(f"model.layers.kinds.a.{field}: expected a name or a mapping with '")
    assert message.endswith(f"got {value!r}.")


def test_a_scheme_without_a_name_is_refused_where_there_is_none_to_refine() -> None:
    message = refused(one_kind(temperature={"scale": 1}))
    assert message == "layer 0 (kind 'a'): temperature = {'scale': 1}: names no scheme; add 'type', as in {type: ...}."
    assert "qk_norm.type: missing" in refused(one_kind(qk_norm={"over": "full"}))


def test_a_position_of_null_is_refused_because_nope_says_it() -> None:
    assert (
        refused(one_kind(position=None)) == "layer 0 (kind 'a'): position is null; for no position at all say 'nope'."
    )


def test_a_scheme_of_the_embeddings_is_refused_in_a_layer_and_the_other_way_round() -> None:
    assert "'learned' does not belong here; it goes in model.embedding.position" in refused(
        one_kind(position="learned")
    )
    with pytest.raises(ConfigError, match=r"^model\.embedding\.position: scheme 'rope' does not belong here"):
        embedding_scheme("rope", 16)
    with pytest.raises(ConfigError, match=r"unknown position scheme 'lerned'\. Did you mean 'learned'\?"):
        embedding_scheme("lerned", 16)


def test_a_scheme_of_the_embeddings_is_a_name_or_a_mapping_that_fits_the_width() -> None:
    assert embedding_scheme(None, 16) is None
    assert embedding_scheme("learned", 15) == Learned()
    assert embedding_scheme({"scheme": "sinusoidal", "scale": 0.5}, 16) == Sinusoidal(0.5)
    for value, message in {
        "sinusoidal": "hidden_size = 15: sinusoidal positions need an even one",
        "scale": "expected a name or a mapping",
    }.items():
        with pytest.raises(ConfigError, match=rf"^model\.embedding\.position: {message}"):
            embedding_scheme(value if value != "scale" else 3, 15)
    with pytest.raises(ConfigError, match=r"^model\.embedding\.position\.size = 4: 'learned' has no such field"):
        embedding_scheme({"scheme": "learned", "size": 4}, 16)
    with pytest.raises(ConfigError, match=r"^model\.embedding\.position = {'size': 4}: names no scheme; add 'scheme'"):
        embedding_scheme({"size": 4}, 16)


@pytest.mark.bug("B010")
def test_a_pattern_that_names_no_kind_is_refused() -> None:
    message = refused({**TWO, "pattern": ["local", "globl"]})
    assert message == "model.layers.pattern[1]: 'globl' is not a kind. Did you mean 'global'? Kinds: local, global."


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        pytest.param(
            {"pattern": []}, "model.layers.pattern: expected a list of kind names, got [].", id="empty pattern"
        ),
        pytest.param(
            {"pattern": "local"},
            "model.layers.pattern: expected a list of kind names, got 'local'.",
            id="a name for a list",
        ),
        pytest.param(
            {"pattern": None}, "model.layers.pattern: expected a list of kind names, got None.", id="no pattern"
        ),
        pytest.param(
            {"patern": ["local"]},
            "model.layers.patern = ['local']: unknown key. Did you mean 'pattern'? "
            "Allowed here: kinds, pattern, overrides, no_rope_layer_interval.",
            id="a misspelt key",
        ),
        pytest.param(
            {"kinds": None},
            "model.layers.kinds: expected a mapping of kind names to layer fields, got None.",
            id="no kinds",
        ),
        pytest.param(
            {"kinds": ["a"]},
            "model.layers.kinds: expected a mapping of kind names to layer fields, got ['a'].",
            id="kinds in a list",
        ),
        pytest.param(
            {"kinds": {"local": 4}},
            "model.layers.kinds.local: expected a mapping of layer fields, got 4.",
            id="a kind that is a number",
        ),
        pytest.param(
            {"no_rope_layer_interval": -2},
            "model.layers.no_rope_layer_interval = -2: must be 1 or more, or null (or 0) for none.",
            id="a negative interval",
        ),
        pytest.param(
            {"no_rope_layer_interval": 1.5},
            "model.layers.no_rope_layer_interval: expected a whole number, got 1.5.",
            id="half an interval",
        ),
    ],
)
def test_a_plan_of_the_wrong_form_is_refused(change: Any, expected: str) -> None:
    assert refused({**TWO, **change}) == expected


@pytest.mark.bug("B078")
@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(
            {5: {"window": 3}}, ".5: there is no such layer; layers count from 0 to 3.", id="beyond the depth"
        ),
        pytest.param({-1: {"window": 3}}, ".-1: there is no such layer; layers count from 0 to 3.", id="negative"),
        pytest.param({"a": {"window": 3}}, ": 'a' is not a layer number; layers count from 0 to 3.", id="a word"),
        pytest.param(
            {"²": {"window": 3}}, ": '²' is not a layer number; layers count from 0 to 3.", id="a raised digit"
        ),
        pytest.param({True: {"window": 3}}, ": True is not a layer number; layers count from 0 to 3.", id="a bool"),
        pytest.param({1: {}, "1": {}}, ".1: layer 1 is given twice.", id="twice"),
        pytest.param({1: 3}, ".1: expected a mapping of layer fields, got 3.", id="a number for fields"),
        pytest.param(
            {1: "locl"}, ".1.kind: 'locl' is not a kind. Did you mean 'local'? Kinds: local, global.", id="kind"
        ),
        pytest.param(
            {1: {"kind": "locl"}}, ".1.kind: 'locl' is not a kind. Did you mean 'local'?", id="kind as a field"
        ),
        pytest.param(
            {1: {"windw": 3}},
            ".1.windw = 3: unknown layer field. Did you mean 'window'? Allowed: position,",
            id="a misspelt field",
        ),
        pytest.param(
            [{"window": 3}], ": expected a mapping of layer numbers to fields, got [{'window': 3}].", id="a list"
        ),
    ],
)
def test_an_override_that_fits_no_layer_is_refused(overrides: Any, expected: str) -> None:
    assert refused({**TWO, "overrides": overrides}).startswith(f"model.layers.overrides{expected}")


def test_kept_first_tokens_need_a_window() -> None:
    assert refused(one_kind(sink_tokens=4)) == (
        "layer 0 (kind 'a'): sink_tokens = 4 has no effect without a window: give one, or set sink_tokens to null."
    )
    assert "sink_tokens = 0: must be 1 or more, or null for none." in refused(one_kind(window=3, sink_tokens=0))


@pytest.mark.parametrize("field", ["sink_token", "windw", "theta"])
def test_a_layer_field_that_does_not_exist_is_refused_everywhere(field: str) -> None:
    hint = {"windw": " Did you mean 'window'?", "sink_token": " Did you mean 'sink_tokens'?"}.get(field, "")
    tail = f"{field} = 4: unknown layer field.{hint} Allowed: position, window, chunk, sink_tokens, sink_logits, "
    assert refused(one_kind(**{field: 4})).startswith(f"model.layers.kinds.a.{tail}")
    assert refused(one_kind(), {field: 4}).startswith(f"model.attention.{tail}")
