"""What can be said on the command line, by the same rules for `compose` and the programs."""

from __future__ import annotations

import json
import pickle
import warnings
from pathlib import Path
from typing import Any

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from omegaconf import DictConfig, ListConfig

import minillm
from minillm.config.compose import compose, compose_plain
from minillm.config.layers import QKNorm
from minillm.config.paths import conf_dir
from minillm.config.schema import Config
from minillm.errors import ConfigError, ConfigWarning
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.temperature import LogN


def quiet(*overrides: str) -> Config:
    return compose(overrides, warn=False)


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        quiet(*overrides)
    message = str(error.value)
    assert "\n" not in message, "one paragraph"
    return message


# ---- forms that work --------------------------------------------------------------------------------------------


def test_the_default_is_three_windows_of_rope_and_one_full_layer_without_position() -> None:
    layers = minillm.compose([]).model.layers
    assert [spec.kind for spec in layers] == ["local", "local", "local", "global"] * 3
    assert (layers[0].position, layers[0].window) == (RoPE(), 32)
    assert (layers[3].position, layers[3].window) == (NoPE(), None)


@pytest.mark.parametrize(
    ("override", "layer", "field", "expected"),
    [
        ("model.layers.kinds.local.window=64", 0, "window", 64),
        ("model.layers.kinds.local.position=nope", 0, "position", NoPE()),
        ("model.layers.kinds.global.position={scheme:rope,theta:5e6}", 3, "position", RoPE(theta=5e6)),
        ("model.layers.kinds.local.position.theta=5e5", 0, "position", RoPE(theta=5e5)),
        ("model.layers.kinds.local.position={theta:5e5}", 0, "position", RoPE(theta=5e5)),
        ("model.layers.overrides={5:{window:128}}", 5, "window", 128),
        ("model.layers.overrides={5:global}", 5, "window", None),
        ("++model.layers.overrides.5.window=128", 5, "window", 128),
        ("++model.layers.kinds.local.qk_norm=rms", 0, "qk_norm", QKNorm("rms")),
        ("++model.layers.kinds.local.qk_norm={type:rms,over:full}", 0, "qk_norm", QKNorm("rms", "full")),
        ("model.layers.kinds.local.window=null", 0, "window", None),
        ("size.window=16", 0, "window", 16),
        ("model.attention.qk_norm=l2", 3, "qk_norm", QKNorm("l2")),
        ("model.attention.softcap=30", 3, "softcap", 30.0),
        ("model.layers.no_rope_layer_interval=2", 1, "position", NoPE()),
    ],
)
def test_a_layers_field_is_set_on_the_command_line(override: str, layer: int, field: str, expected: Any) -> None:
    assert getattr(quiet("model=rnope_swa", override).model.layers[layer], field) == expected


def test_a_kind_is_added_and_used_on_the_command_line() -> None:
    layers = quiet("+model.layers.kinds.w={window:4}", "model.layers.pattern=[w,global]").model.layers
    assert [(spec.kind, spec.window) for spec in layers[:3]] == [("w", 4), ("global", None), ("w", 4)]


def test_a_window_for_every_layer_is_set_where_no_kind_speaks() -> None:
    layers = quiet("+model.layers.kinds.w={}", "model.layers.pattern=[w]", "model.attention.window=8").model.layers
    assert {spec.window for spec in layers} == {8}


@pytest.mark.bug("B010")
def test_a_window_that_no_layer_takes_is_a_warning() -> None:
    with pytest.warns(ConfigWarning, match=r"^model\.attention\.window = 8 has no effect: every layer sets"):
        compose(["model.attention.window=8"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert quiet("model.attention.window=8").warnings


@pytest.mark.bug("B085")
def test_an_experiment_wins_over_the_groups_and_the_command_line_over_it(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "mine.yaml").write_text(
        "# @package _global_\ndefaults: [{override /model: gemma3}]\noptim: {lr: 0.5}\n"
        "model: {layers: {overrides: {3: {window: 7}}}}\n",
        encoding="utf-8",
    )
    overlay = (f"hydra.searchpath=[file://{tmp_path}]", "experiment=mine")
    config = quiet(*overlay)
    assert (config.optim.lr, config.choices["model"], config.model.layers[3].window) == (0.5, "gemma3", 7)
    config = quiet(*overlay, "optim.lr=0.25", "model.layers.overrides={3:{window:9}}")
    assert (config.optim.lr, config.choices["model"], config.model.layers[3].window) == (0.25, "gemma3", 9)


@pytest.mark.bug("B085")
def test_a_group_wins_over_the_root_and_the_command_line_over_both() -> None:
    assert quiet("model=smollm3").plain["model"]["layers"]["no_rope_layer_interval"] == 4
    assert quiet("model.layers.no_rope_layer_interval=3", "model=smollm3").model.layers[2].position == NoPE()
    assert quiet("size.seq_len=64", "size=mini").data.seq_len == 64


@pytest.mark.parametrize(
    ("overrides", "layer", "field", "expected"),
    [
        pytest.param(
            ["model=gemma3", "++model.layers.kinds.local.qk_norm.over=full"],
            0,
            "qk_norm",
            QKNorm("rms", "full"),
            id="qk_norm: rms",
        ),
        pytest.param(
            ["model=alibi", "model.layers.kinds.full.position=rope", "++model.layers.kinds.full.position.theta=3e4"],
            0,
            "position",
            RoPE(theta=3e4),
            id="named before",
        ),
        pytest.param(
            ["model=rope", "+model.attention.position.layout=interleaved"],
            0,
            "position",
            RoPE(layout="interleaved"),
            id="model.attention.position: rope",
        ),
        pytest.param(
            [
                "model=swan",
                "model.layers.kinds.global.temperature=log_n",
                "++model.layers.kinds.global.temperature.base=20",
            ],
            0,
            "temperature",
            LogN(20.0),
            id="log_n",
        ),
    ],
)
def test_a_field_refines_the_bare_name_that_stands_there(
    overrides: list[str], layer: int, field: str, expected: Any
) -> None:
    assert getattr(quiet(*overrides).model.layers[layer], field) == expected


@pytest.mark.parametrize(
    "override",
    [
        "++model.layers.kinds.global.position.theta=5e5",
        "model.layers.kinds.global.position={theta:5e5}",
        "model.layers.kinds.global={position:{theta:5e5}}",
        "model.layers.overrides={3:{position:{theta:5e5}}}",
    ],
)
def test_theta_on_a_layer_of_nope_is_refused_and_makes_no_rope_of_it(override: str) -> None:
    message = refused("model=rnope_swa", override)
    assert message == "layer 3 (kind 'global'): position.theta = 500000.0: 'nope' has no such field. It has no fields."


# ---- forms that do not ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        pytest.param(["model=rop"], "model=rop: no such option. Did you mean 'rope'? Available: alibi, ", id="arm"),
        pytest.param(["size=micr"], "size=micr: no such option. Did you mean 'micro'?", id="size"),
        pytest.param(["mode=rope"], "mode: unknown key. Did you mean 'model'? Keys: block, ", id="group"),
        pytest.param(
            ["optim.lrr=1"], "optim.lrr: unknown key. Did you mean 'optim.lr'? Keys of optim: beta1,", id="key"
        ),
        pytest.param(["optin.lr=1"], "optin.lr: unknown key. Did you mean 'optim.lr'?", id="first part of a key"),
        pytest.param(["+optim.lrr=1"], "optim.lrr = 1: unknown key. Did you mean 'lr'?", id="an added key"),
        pytest.param(["+foo=1"], "foo = 1: unknown key. Allowed here: model, block,", id="an added root key"),
        pytest.param(["~optim.lrr"], "optim.lrr: unknown key. Did you mean 'optim.lr'?", id="a removed key"),
        pytest.param(["~run_dir"], "~run_dir: Hydra cannot remove a key that is null;", id="removing what is null"),
        pytest.param(["~optim.lr"], "optim.lr: missing, and it has no default.", id="removing what is needed"),
        pytest.param(
            ["+optim.lr=1"], "optim.lr: exists already; change it by optim.lr=..., without the +.", id="a plus"
        ),
        pytest.param(
            ["model.embedding={positon:learned}"],
            "model.embedding.positon: unknown key. Did you mean 'model.embedding.position'?",
            id="in a mapping",
        ),
        pytest.param(
            ["model.layers.kinds.local.windw=64"],
            "model.layers.kinds.local.windw: unknown key. Did you mean 'model.layers.kinds.local.window'?",
            id="a layer field",
        ),
        pytest.param(
            ["++model.layers.kinds.local.windw=64"],
            "model.layers.kinds.local.windw = 64: unknown layer field. Did you mean 'window'?",
            id="an added layer field",
        ),
        pytest.param(
            ["model.layers.kinds.local.qk_norm=rms"],
            "model.layers.kinds.local.qk_norm: unknown key. Keys of model.layers.kinds.local: position, window. "
            "It can be added: ++model.layers.kinds.local.qk_norm=...",
            id="a layer field without ++",
        ),
        pytest.param(
            ["model.layers.kinds.w={window:4}"],
            "model.layers.kinds.w: unknown key. Keys of model.layers.kinds: global, local. "
            "A kind is added by +model.layers.kinds.w={...}.",
            id="a kind without +",
        ),
        pytest.param(
            ["model.layers.kinds={w:{window:4}}"], "model.layers.kinds.w: unknown key.", id="kinds as a whole"
        ),
        pytest.param(
            ["model.layers.kinds.locl.window=4"],
            "model.layers.kinds.locl.window: unknown key. Did you mean 'model.layers.kinds.local.window'?",
            id="a misspelt kind",
        ),
        pytest.param(
            ["model.layers.pattern=[local,globl]"],
            "model.layers.pattern[1]: 'globl' is not a kind. Did you mean 'global'?",
            id="a kind in the pattern",
        ),
        pytest.param(
            ["model.layers.pattern=[local"],
            "model.layers.pattern=[local: cannot be read as KEY=VALUE (",
            id="half a list",
        ),
        pytest.param(
            ["model.layers.kinds.local.window=64,32"],
            "model.layers.kinds.local.window=64,32: is it a list, a text or a sweep? Write "
            "model.layers.kinds.local.window=[64,32] for a list,",
            id="a sweep without -m",
        ),
        pytest.param(
            ["model.layers.kinds.local.window=0"],
            "layer 0 (kind 'local'): window = 0: must be 1 or more,",
            id="a window of zero",
        ),
        pytest.param(["model.backend=sdp"], "model.backend: 'sdp' is not allowed. Did you mean 'sdpa'?", id="backend"),
        pytest.param(
            ["model.backend=banded"],
            "backend 'banded' cannot compute layer 3 (kind 'global'): it has neither "
            "a window nor a chunk; 'sdpa' and 'reference' can.",
            id="a backend that cannot",
        ),
        pytest.param(
            ["model.backend=sdpa", "model.attention.softcap=30"],
            "backend 'sdpa' cannot compute layer 0",
            id="a backend that knows no soft-cap",
        ),
        pytest.param(
            ["model=sinusoidal", "size.hidden_size=127"],
            "model.embedding.position: hidden_size = 127: sinusoidal positions need an even one",
            id="odd width",
        ),
        pytest.param(["optim.lr=fast"], "optim.lr: expected a number, got 'fast'.", id="a word for a number"),
        pytest.param(
            ["size.head_dim=7"],
            "layer 0 (kind 'local'): position.partial_rotary_factor = 1.0 of head_dim = 7",
            id="an odd head",
        ),
        pytest.param(
            ["size.num_attention_heads=3"],
            "layer 0 (kind 'local'): num_key_value_heads = 2 does not divide",
            id="heads",
        ),
        pytest.param(["size.seq_len=${oops}"], "size.seq_len: Interpolation key 'oops' not found.", id="interpolation"),
    ],
)
def test_a_mistake_is_one_paragraph_with_what_is_allowed(overrides: list[str], expected: str) -> None:
    assert refused(*overrides).startswith(expected)


@pytest.mark.bug("B078")
@pytest.mark.parametrize("override", ["model.layers.1.window=4", "model.layers.overrides.1.window=4"])
def test_one_layer_by_its_number_is_refused_with_the_form_that_works(override: str) -> None:
    message = refused(override)
    assert message.endswith("One layer's fields are set by model.layers.overrides={1:{window:...}}.")
    assert quiet("model.layers.overrides={1:{window:4}}").model.layers[1].window == 4


@pytest.mark.bug("B078")
def test_a_layer_beyond_the_depth_is_refused() -> None:
    message = refused("size.num_hidden_layers=2", "model.layers.overrides={5:{window:4}}")
    assert message == "model.layers.overrides.5: there is no such layer; layers count from 0 to 1."


@pytest.mark.bug("B088")
@pytest.mark.parametrize("given", ["1e-4", '"1e-4"', "0.0001"])
def test_a_learning_rate_is_a_number_however_it_is_written(given: str) -> None:
    rate = quiet(f"optim.lr={given}").optim.lr
    assert rate == 1e-4
    assert type(rate) is float


# ---- plain types ------------------------------------------------------------------------------------------------


@pytest.mark.bug("B089")
def test_no_container_of_the_configuration_library_leaves_the_door() -> None:
    config = quiet("model.layers.overrides={5:{window:8}}", "logger.tags=[a,b]")

    def check(node: Any) -> None:
        assert not isinstance(node, (DictConfig, ListConfig))
        if isinstance(node, dict):
            for key, value in node.items():
                check(key)
                check(value)
        elif isinstance(node, (list, tuple)):
            for value in node:
                check(value)

    check(config.plain)
    check(config.logger.tags)
    assert isinstance(config.model.layers, tuple)
    assert json.loads(json.dumps(config.plain))["model"]["layers"]["pattern"] == ["local", "local", "local", "global"]
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.bug("B064")
def test_the_plain_mapping_holds_no_reference() -> None:
    config = quiet("model=rnope_swa")
    assert "${" not in json.dumps(config.plain)
    assert config.plain["model"]["layers"]["kinds"]["local"]["window"] == 32
    assert config.plain["choices"]["model"] == "rnope_swa"
    assert "hydra" not in config.plain


@pytest.mark.bug("B086")
def test_composing_inside_a_program_that_uses_hydra_itself_leaves_its_state_alone() -> None:
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        assert quiet("model=rope").choices["model"] == "rope"
        refused("optim.lrr=1")
        assert hydra_compose("train", ["seed=7"]).seed == 7


def test_the_evaluations_root_composes_by_the_same_door() -> None:
    assert compose_plain(["runs=a"], "eval")["runs"] == "a"
    with pytest.raises(ConfigError, match=r"^run: unknown key\. Did you mean 'runs'\?"):
        compose_plain(["run=a"], "eval")


@pytest.mark.parametrize("prefix", ["", "++"], ids=["plain", "forced"])
@pytest.mark.parametrize("scheme", ["alibi", "nope"])
def test_a_mapping_that_names_another_scheme_replaces_the_arms_field(prefix: str, scheme: str) -> None:
    config = compose([f"{prefix}model.layers.kinds.local.position={{scheme:{scheme}}}"])
    assert [spec.position.scheme for spec in config.model.layers[:4]] == [scheme, scheme, scheme, "nope"]


def test_a_mapping_that_names_the_same_scheme_refines_the_arms_field_and_may_add_to_it() -> None:
    given = "{scheme:rope,partial_rotary_factor:0.5,scaling:{type:linear,factor:4}}"
    position = compose([f"model.layers.kinds.local.position={given}"]).model.layers[0].position
    assert (position.theta, position.partial_rotary_factor, position.scaling.factor) == (10000.0, 0.5, 4.0)


def test_later_overrides_refine_earlier_ones() -> None:
    field = "model.layers.kinds.local.position"
    config = compose([f"{field}={{scheme:rope,theta:7}}", f"++{field}.partial_rotary_factor=0.5"])
    position = config.model.layers[0].position
    assert (position.theta, position.partial_rotary_factor) == (7.0, 0.5)


@pytest.mark.parametrize("override", ["model=3", "logger=null", "block=null", "model=[rope,nope]"])
def test_a_group_takes_one_name(override: str) -> None:
    with pytest.raises(ConfigError, match=r"group takes the name|exactly one arm"):
        compose([override])


def test_a_warm_up_or_a_stop_beyond_the_last_step_is_told() -> None:
    config = compose(["trainer.max_steps=20", "trainer.stop_at_step=30"], warn=False)
    assert [text.split(" = ")[0] for text in config.warnings] == ["schedule.warmup_steps", "trainer.stop_at_step"]
