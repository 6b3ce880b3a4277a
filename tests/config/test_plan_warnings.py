"""A setting that takes no effect is said, with its layers, field and value; one that does is not."""

from __future__ import annotations

from typing import Any

import pytest

from minillm.config.plan_warnings import ranges
from tests.config.plans import one_kind, warned

TWO: dict[str, Any] = {
    "kinds": {
        "local": {"position": {"scheme": "rope", "theta": 1e4}, "window": 8},
        "global": {"position": "nope", "window": None},
    },
    "pattern": ["local", "global"],
}


def test_a_plan_in_which_all_takes_effect_is_silent() -> None:
    assert warned(TWO) == ()
    assert warned({**TWO, "no_rope_layer_interval": 2, "overrides": {0: {"window": 4}}}, {"qk_norm": "rms"}) == ()


@pytest.mark.bug("B010")
def test_a_kind_that_no_layer_uses_is_said_with_its_settings() -> None:
    plan = {**TWO, "pattern": ["global"]}
    assert warned(plan) == (
        "model.layers.kinds.local = {'position': {'scheme': 'rope', 'theta': 10000.0}, 'window': 8} has no effect: "
        "it is used by no layer.",
    )


def test_a_kind_used_by_an_override_alone_is_used() -> None:
    assert warned({**TWO, "pattern": ["global"], "overrides": {2: "local"}}) == ()


@pytest.mark.bug("B010")
@pytest.mark.parametrize("field", ["window", "chunk"])
@pytest.mark.parametrize(("value", "wide"), [(63, False), (64, True), (65, True)])
def test_a_window_that_is_not_below_the_training_length_is_said(field: str, value: int, wide: bool) -> None:
    plan = {"kinds": {"a": {field: 4}, "b": {field: value}}, "pattern": ["a", "b", "b"]}
    message = f"layers 1-2, 4-5: {field} = {value} is not smaller than the training length 64, so it hides nothing."
    assert warned(plan, depth=6) == ((message,) if wide else ())


def test_kept_tokens_and_a_window_that_hide_nothing_are_said() -> None:
    plan = {
        "kinds": {"a": {"window": 4, "sink_tokens": 59}, "b": {"window": 4, "sink_tokens": 60}},
        "pattern": ["a", "b"],
    }
    message = "layers 1, 3: window + sink_tokens = 64 is not smaller than the training length 64, so it hides nothing."
    assert warned(plan, depth=4) == (message,)


def test_an_interval_above_the_depth_is_said() -> None:
    message = "model.layers.no_rope_layer_interval = 5 is above num_hidden_layers = 4: no layer drops its position."
    assert warned({**one_kind(), "no_rope_layer_interval": 5}) == (message,)
    assert warned({**one_kind(), "no_rope_layer_interval": 4}) == ()


@pytest.mark.parametrize(
    ("fields", "dead"),
    [
        pytest.param({"position": "nope"}, True, id="nope"),
        pytest.param({"position": "alibi"}, True, id="alibi"),
        pytest.param({"position": "rope"}, False, id="rope"),
        pytest.param({"position": "nope", "qk_norm": "rms"}, False, id="nope with QK-norm"),
        pytest.param({"position": "nope", "softcap": 30}, False, id="nope with a soft-cap"),
        pytest.param({"position": "nope", "sink_logits": True}, False, id="nope with sinks"),
        pytest.param({"position": {"scheme": "rope", "partial_rotary_factor": 0}}, True, id="rope that turns nothing"),
        pytest.param({"position": "shaw"}, True, id="shaw"),
        pytest.param({"position": "deberta"}, False, id="deberta"),
        pytest.param({"position": {"scheme": "deberta", "terms": ["c2p"]}}, True, id="deberta without p2c"),
        pytest.param({"position": "t5", "shared_qk": True, "qkv_bias": False}, True, id="offsets of shared_qk"),
    ],
)
def test_a_key_bias_that_cancels_in_the_softmax_is_said(fields: dict[str, Any], dead: bool) -> None:
    message = (
        "layer 1: the key bias (of qkv_bias or shared_qk) cancels in the softmax and never learns: it takes a "
        "rotation, QK-norm, a soft-cap or sink logits to make it count."
    )
    plan = {"kinds": {"a": {}, "b": {"qkv_bias": True, **fields}}, "pattern": ["a", "b"]}
    assert warned(plan, depth=2) == ((message,) if dead else ())


def test_a_depth_that_cuts_the_last_group_is_said_with_the_layers() -> None:
    plan = {**TWO, "pattern": ["local", "local", "local", "global"]}
    assert warned(plan, depth=8) == ()
    assert warned(plan, depth=10) == (
        "model.layers.pattern has 4 entries and num_hidden_layers = 10: the last group (layers 8-9) is cut before: "
        "local, global.",
    )
    assert warned(plan, depth=9)[0].endswith("(layer 8) is cut before: local, local, global.")


# ---- settings that a later source replaces everywhere -----------------------------------------------------------


@pytest.mark.parametrize(
    ("attention", "expected"),
    [
        pytest.param({"window": 8}, "window = 8 has no effect: every layer sets its own window.", id="a number"),
        pytest.param(
            {"position": "alibi"}, "position = 'alibi' has no effect: every layer sets its own position.", id="a name"
        ),
        pytest.param(
            {"position": "nope"},
            "position = 'nope' has no effect: every layer sets its own position.",
            id="a name that some layers have of their own",
        ),
        pytest.param(
            {"position": {"theta": 5e6}},
            "position = {'theta': 5000000.0} has no effect: every layer sets its own position.",
            id="one field",
        ),
        pytest.param(
            {"position": {"scheme": "rope", "theta": 5e6, "layout": "interleaved"}},
            "position.theta = 5000000.0 has no effect: every layer sets its own position.",
            id="one field of two",
        ),
    ],
)
def test_a_setting_for_all_layers_that_each_of_them_replaces_is_said(attention: Any, expected: str) -> None:
    assert warned(TWO, attention) == (f"model.attention.{expected}",)


def test_a_setting_for_all_layers_that_one_of_them_follows_is_silent() -> None:
    plan = {"kinds": {"a": {"window": 8}, "b": {}}, "pattern": ["a", "b"]}
    assert warned(plan, {"window": 5, "position": {"theta": 3.0}, "qk_norm": "rms"}) == ()


def test_defaults_that_nobody_set_are_silent() -> None:
    assert warned(TWO, {"position": "rope", "window": None, "qk_norm": None, "softcap": None}) == ()


def test_a_kinds_field_that_every_override_replaces_is_said() -> None:
    plan = {**TWO, "overrides": {0: {"window": 4}, 2: {"window": 5}}}
    assert warned(plan) == (
        "model.layers.kinds.local.window = 8 has no effect: a later source replaces it in layers 0, 2.",
    )
    assert warned({**TWO, "overrides": {0: {"window": 4}}}) == ()
    assert warned({**TWO, "overrides": {0: {"window": 8}, 2: {"window": 8}}}) == ()


def test_a_nested_field_that_every_override_replaces_is_said() -> None:
    plan = {**TWO, "overrides": {0: {"position": {"theta": 4.0}}, 2: {"position": {"theta": 5.0}}}}
    assert warned(plan) == (
        "model.layers.kinds.local.position.theta = 10000.0 has no effect: a later source replaces it in layers 0, 2.",
    )


def test_positions_that_the_interval_replaces_everywhere_are_said() -> None:
    assert warned({**TWO, "no_rope_layer_interval": 1}) == (
        "model.layers.kinds.local.position = {'scheme': 'rope', 'theta': 10000.0} has no effect: a later source "
        "replaces it in layers 0, 2.",
    )


def test_an_interval_that_every_override_takes_back_is_said() -> None:
    plan = {**one_kind(), "no_rope_layer_interval": 4, "overrides": {3: {"position": "alibi"}}}
    assert warned(plan) == (
        "model.layers.no_rope_layer_interval has no effect: a later source replaces it in layer 3.",
    )


@pytest.mark.parametrize(
    ("indices", "text"),
    [([3], "layer 3"), ([0, 1, 2], "layers 0-2"), ([0, 1, 2, 4], "layers 0-2, 4"), ([1, 3, 4], "layers 1, 3-4")],
)
def test_layers_are_named_by_runs(indices: list[int], text: str) -> None:
    assert ranges(indices) == text
