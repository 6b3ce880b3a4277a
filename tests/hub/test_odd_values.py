"""Values that no model has in a config.json, from zero layers to lists for words: errors of ours that name the key."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from minillm.errors import ConfigError
from minillm.hub.api import read_plan
from minillm.hub.family import families, family
from tests.hub.test_reading import FULL, LOCAL, SMALL, YARN, plan

SIZES: dict[str, tuple[str, ...]] = {
    "llama": (
        "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "vocab_size",
        "intermediate_size", "max_position_embeddings",
    ),
    "gemma3_text": ("head_dim",),
    "gpt2": ("n_layer", "n_head", "n_inner", "n_embd", "n_positions", "vocab_size"),
    "mpt": ("n_layers", "n_heads", "d_model", "max_seq_len"),
    "minillm": ("num_hidden_layers", "num_attention_heads", "max_position_embeddings"),
}  # fmt: skip


def own() -> dict[str, Any]:
    return family("minillm").write(plan("llama"))


@pytest.mark.parametrize(("model_type", "name"), [(one, name) for one, names in SIZES.items() for name in names])
def test_sizes_that_no_model_has_are_refused_by_name(model_type: str, name: str) -> None:
    small = {} if model_type in ("gpt2", "mpt") else SMALL
    good = own() if model_type == "minillm" else {**small, "model_type": model_type}
    assert read_plan(good)
    for value in (0, -1, 2**40, 10**400):
        with pytest.raises(ConfigError, match=rf"^config.json: {name}(:| = )"):
            read_plan({**good, name: value})


@pytest.mark.parametrize("model_type", ["llama", "cohere2", "granite_swa"])
def test_heads_without_any_width_are_refused(model_type: str) -> None:
    size = {**SMALL, "hidden_size": 4}
    del size["head_dim"]
    with pytest.raises(ConfigError, match=r"^config.json: hidden_size = 4: narrower than the 6 heads"):
        plan(model_type, size=size)


def test_ten_thousand_layers_are_the_most() -> None:
    with pytest.raises(ConfigError, match="num_hidden_layers = 10001: allowed: whole numbers from 1 to 10000"):
        plan("llama", num_hidden_layers=10_001)


ODD: dict[str, tuple[str, dict[str, Any], str]] = {
    "a scaling whose type is a list": ("llama", {"rope_scaling": {"type": ["linear"]}}, "type = ['linear']"),
    "a base of 400 digits": ("llama", {"rope_theta": 10**400}, "rope_theta: expected a number"),
    "a window of 400 digits": ("olmo3", {"sliding_window": 10**400}, "sliding_window: expected a whole number"),
    "a layer type's rotation that is a list": (
        "gemma3_text",
        {"rope_parameters": {LOCAL: [1], FULL: {"rope_type": "default"}}},
        "rope_parameters.sliding_attention = [1]: expected a mapping",
    ),
    "a scaling from no length": (
        "llama",
        {"rope_scaling": {"rope_type": "yarn", "original_max_position_embeddings": 0}},
        "original_max_position_embeddings = 0: allowed",
    ),
}


@pytest.mark.parametrize("what", ODD)
def test_values_of_a_kind_that_nothing_writes_are_refused_by_name(what: str) -> None:
    model_type, values, words = ODD[what]
    with pytest.raises(ConfigError) as error:
        plan(model_type, **values)
    assert words in str(error.value)


LAYERS_OF_MANY_KINDS: list[Any] = [
    "nope", {"scheme": "alibi", "learned": True}, {"scheme": "t5", "num_buckets": 8, "max_distance": 20},
    {"scheme": "shaw", "max_distance": 4},
    {"scheme": "rope", "theta": 77.0, "scaling": {"type": "linear", "factor": 4.0}},
]  # fmt: skip
JUNK: list[Any] = [
    None, 0, -1, 3, 10**400, float("nan"), 1e300, "x", "9" * 5000, [], [[]], [1], {}, {"a": 1}, True, False, [None],
    {"type": ["a"]}, [10**400],
]  # fmt: skip


def whole(model_type: str) -> dict[str, Any]:
    """A config.json with all that is written, and nested settings."""
    if model_type == "minillm":
        layers = zip(own()["layers"], LAYERS_OF_MANY_KINDS, strict=True)
        return {**own(), "layers": [{**layer, "position": position} for layer, position in layers]}
    base = {} if model_type in ("gpt2", "gpt_neox", "bloom", "mpt") else SMALL
    scaled = {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", **YARN}} if model_type == "llama" else {}
    return {**family(model_type).write(plan(model_type, size=base)), **base, **scaled}


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values inside, short lists entry by entry."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:5]) if isinstance(value, list) else ()
    out = []
    for key, entry in inside:
        out += [(*path, key), *places(entry, (*path, key))]
    return out


@pytest.mark.parametrize("model_type", [one.name for one in families() if one.exports])
def test_whatever_stands_in_a_file_the_error_is_one_of_ours(model_type: str) -> None:
    good = whole(model_type)
    read_plan(good)
    for path in places(good):
        for value in JUNK:
            values = copy.deepcopy(good)
            inner: Any = values
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
            try:
                read_plan(values)
            except ConfigError:
                continue
            except Exception as error:
                pytest.fail(f"{path} = {str(value)[:40]}: {type(error).__name__}: {error}")


def test_a_text_config_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(ConfigError, match="text_config: expected"):
        read_plan({"model_type": "gemma3", "text_config": [1]}, text_only=True)
