"""Plans read from config.json alone: both spellings, class defaults, released models, and what is refused by name."""

from __future__ import annotations

from typing import Any

import pytest

import minillm
from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError
from minillm.hub.api import read_plan
from minillm.hub.family import families

SMALL = {
    "vocab_size": 41, "hidden_size": 36, "intermediate_size": 44, "num_hidden_layers": 5, "num_attention_heads": 6,
    "num_key_value_heads": 2, "head_dim": 10, "max_position_embeddings": 64,
}  # fmt: skip
LOCAL, FULL = "sliding_attention", "full_attention"


def plan(model_type: str, *, size: Any = SMALL, **values: Any) -> ModelConfig:
    return read_plan({"model_type": model_type, **size, **values})[1]


def windows(model: ModelConfig) -> list[int | None]:
    return [spec.window for spec in model.layers]


def thetas(model: ModelConfig) -> list[float | None]:
    return [getattr(spec.position, "theta", None) for spec in model.layers]


def rotates(model: ModelConfig) -> list[int]:
    return [int(spec.position.scheme == "rope") for spec in model.layers]


# ---- both spellings -----------------------------------------------------------------------------------------------

YARN = {"factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 24.0}
SPELLINGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "llama": ({"rope_theta": 5e5}, {"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}}),
    "llama with type": (
        {"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5e5}},
    ),
    "qwen3 with yarn": (
        {"rope_theta": 5e5, "rope_scaling": {"rope_type": "yarn", **YARN}},
        {"rope_parameters": {"rope_type": "yarn", "rope_theta": 5e5, **YARN}},
    ),
    "gemma3_text": (
        {
            "rope_theta": 2e6, "rope_local_base_freq": 3e4, "sliding_window_pattern": 3, "sliding_window": 7,
            "rope_scaling": {"rope_type": "linear", "factor": 8.0},
        },
        {
            "layer_types": [LOCAL, LOCAL, FULL, LOCAL, LOCAL], "sliding_window": 7,
            "rope_parameters": {
                LOCAL: {"rope_type": "default", "rope_theta": 3e4},
                FULL: {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            },
        },
    ),
    "olmo3": (
        {"rope_theta": 5e4, "sliding_window": 7, "rope_scaling": {"rope_type": "yarn", **YARN}},
        {
            "layer_types": [LOCAL, LOCAL, LOCAL, FULL, LOCAL], "sliding_window": 7,
            "rope_parameters": {
                LOCAL: {"rope_type": "default", "rope_theta": 5e4},
                FULL: {"rope_type": "yarn", "rope_theta": 5e4, **YARN},
            },
        },
    ),
    "qwen2": (
        {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 3},
        {"layer_types": [FULL] * 3 + [LOCAL] * 2, "use_sliding_window": True, "sliding_window": 7},
    ),
    "cohere2": (
        {"sliding_window": 7, "sliding_window_pattern": 4, "rope_theta": 5e4, "rope_scaling": None},
        {
            "sliding_window": 7, "layer_types": [LOCAL, LOCAL, LOCAL, FULL, LOCAL],
            "rope_parameters": {"rope_type": "default", "rope_theta": 5e4},
        },
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SPELLINGS)
def test_the_spellings_of_transformers_4_and_5_give_the_same_plan(name: str) -> None:
    old, new = SPELLINGS[name]
    model_type = name.split()[0]
    assert plan(model_type, **old) == plan(model_type, **new)


@pytest.mark.parametrize("name", SPELLINGS)
def test_transformers_reads_the_older_spelling_as_we_do(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    model_type, old = name.split()[0], dict(SPELLINGS[name][0])
    if model_type == "olmo3":
        old["rope_theta"] = 5e5  # 5.24 gives any other base to the full layers alone, and 500000 to the windowed ones
    theirs = transformers.AutoConfig.for_model(model_type, **SMALL, **old).to_dict()
    assert read_plan(theirs)[1] == plan(model_type, **old)


@pytest.mark.parametrize("model_type", [one.name for one in families() if one.exports and one.name != "minillm"])
def test_a_file_that_leaves_all_out_means_the_class_s_defaults(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoConfig.for_model(model_type).to_dict()
    assert read_plan({"model_type": model_type})[1] == read_plan(theirs)[1]


# ---- which layers -------------------------------------------------------------------------------------------------


@pytest.mark.bug("B026")
@pytest.mark.parametrize(("depth", "without"), [(12, [3, 7, 11]), (13, [3, 7, 11]), (36, list(range(3, 36, 4)))])
def test_an_interval_of_four_leaves_every_fourth_layer_without_rope(depth: int, without: list[int]) -> None:
    model = plan("smollm3", num_hidden_layers=depth)
    assert [spec.index for spec in model.layers if spec.position.scheme == "nope"] == without
    assert sum(rotates(model)) == depth - len(without)


@pytest.mark.bug("B026")
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"no_rope_layers": [1, 0, 0, 1, 1]}, [1, 0, 0, 1, 1]),
        ({"no_rope_layers": [1, 0, 0, 1, 1, 0, 0]}, [1, 0, 0, 1, 1]),
        ({"no_rope_layers": []}, [1, 1, 1, 0, 1]),
        ({"no_rope_layer_interval": 1}, [0, 0, 0, 0, 0]),
        ({"no_rope_layer_interval": 2}, [1, 0, 1, 0, 1]),
        ({"no_rope_layer_interval": 0}, [1, 1, 1, 1, 1]),
        ({"no_rope_layer_interval": 9}, [1, 1, 1, 1, 1]),
    ],
)
def test_no_rope_layers_lists_the_layers_that_do_rotate(values: dict[str, Any], expected: list[int]) -> None:
    assert rotates(plan("smollm3", **values)) == expected


def test_smollm3_windows_its_nope_layers_unless_layer_types_says_otherwise() -> None:
    values = {"use_sliding_window": True, "sliding_window": 7}
    assert windows(plan("smollm3", **values)) == [None, None, None, 7, None]
    values["layer_types"] = [LOCAL, FULL, LOCAL, FULL, LOCAL]
    model = plan("smollm3", **values)
    assert windows(model) == [7, None, 7, None, 7]
    assert rotates(model) == [1, 1, 1, 0, 1]


@pytest.mark.bug("B009")
@pytest.mark.parametrize(
    ("model_type", "values", "full"),
    [
        ("gemma3_text", {}, [5, 11]),
        ("gemma3_text", {"sliding_window_pattern": 4}, [3, 7, 11]),
        ("gemma2", {}, [1, 3, 5, 7, 9, 11]),
        ("olmo3", {}, [3, 7, 11]),
        ("cohere2", {}, [3, 7, 11]),
        ("exaone4", {}, [3, 7, 11]),
        ("exaone4", {"sliding_window_pattern": "LLG"}, [2, 5, 8, 11]),
        ("granite_swa", {}, [0, 4, 8]),
        ("qwen3", {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 4}, [0, 1, 2, 3]),
        ("qwen3", {"use_sliding_window": False, "sliding_window": 7, "max_window_layers": 4}, list(range(12))),
    ],
)
def test_each_family_s_own_rule_says_which_layers_are_full(
    model_type: str, values: dict[str, Any], full: list[int]
) -> None:
    model = plan(model_type, num_hidden_layers=12, **values)
    assert [i for i, window in enumerate(windows(model)) if window is None] == full


@pytest.mark.parametrize("model_type", ["cohere2", "gemma3_text"])
def test_the_private_name_of_the_interval_counts_for_nothing_beside_layer_types(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    values = {"layer_types": [LOCAL, FULL, LOCAL, FULL, LOCAL], "_sliding_window_pattern": 3, "sliding_window": 7}
    assert windows(plan(model_type, **values)) == [7, None, 7, None, 7]
    del values["layer_types"]
    theirs = transformers.AutoConfig.for_model(model_type, **SMALL, **values)
    assert theirs.layer_types != [LOCAL, LOCAL, FULL, LOCAL, LOCAL]
    with pytest.raises(ConfigError, match=r"_sliding_window_pattern = 3: transformers does not read this name"):
        plan(model_type, **values)


def test_cohere2_and_exaone4_rotate_where_they_window() -> None:
    for model_type in ("cohere2", "exaone4"):
        assert rotates(plan(model_type)) == [1, 1, 1, 0, 1]
    assert rotates(plan("exaone4", sliding_window=None)) == [1, 1, 1, 1, 1]
    assert rotates(plan("exaone4", layer_types=[FULL] * 5)) == [0, 0, 0, 0, 0]


@pytest.mark.bug("B032")
def test_a_base_of_its_own_reaches_each_layer() -> None:
    model = plan("granite_swa", layer_rope_theta=[0, 12345.0, 1e4, 1e6, 0.0], sliding_window=7)
    assert thetas(model) == [None, 12345.0, 1e4, 1e6, None]
    assert rotates(model) == [0, 1, 1, 1, 0]
    frequencies, _ = minillm.position.rope_frequencies(model.layers[1].position, 64, 64)
    assert frequencies[1].item() == pytest.approx(12345 ** (-1 / 32))


def test_kinds_are_named_as_a_person_would() -> None:
    assert [s.kind for s in plan("gemma3_text", sliding_window_pattern=3).layers] == [
        "local", "local", "global", "local", "local",
    ]  # fmt: skip
    assert {s.kind for s in plan("llama").layers} == {"full"}
    assert [s.kind for s in plan("smollm3").layers] == ["rope", "rope", "rope", "nope", "rope"]


@pytest.mark.parametrize("arm", ["rnope_swa", "gemma3", "olmo3"])
def test_an_imported_plan_equals_the_shipped_arm(arm: str) -> None:
    cfg = minillm.compose([f"model={arm}", "size=micro"])
    model, size = cfg.model, cfg.size
    sizes = {name: getattr(size, name) for name in SMALL if hasattr(size, name)}
    sizes |= {"vocab_size": model.vocab_size, "max_position_embeddings": size.seq_len}
    model_type = {"rnope_swa": "smollm3", "gemma3": "gemma3_text"}.get(arm, arm)
    values: dict[str, Any] = {"sliding_window": size.window}
    if arm == "rnope_swa":
        kinds = [LOCAL if spec.window else FULL for spec in model.layers]
        values |= {"use_sliding_window": True, "layer_types": kinds, "rope_theta": 10000.0}
    if arm == "gemma3":
        values["query_pre_attn_scalar"] = size.head_dim
    assert plan(model_type, size=sizes, **values).layers == model.layers


# ---- released models ----------------------------------------------------------------------------------------------


def test_command_r7b_as_released() -> None:
    model = plan(
        "cohere2", size={}, architectures=["Cohere2ForCausalLM"], attention_bias=False, attention_dropout=0.0,
        bos_token_id=5, cache_implementation="hybrid", eos_token_id=255001, head_dim=128, hidden_act="silu",
        hidden_size=4096, initializer_range=0.02, intermediate_size=14336, layer_norm_eps=1e-5, layer_switch=4,
        logit_scale=0.25, max_position_embeddings=8192, num_attention_heads=32, num_hidden_layers=32,
        num_key_value_heads=8, order_of_interleaved_layers="local_attn_first", pad_token_id=0,
        position_embedding_type="rope_gptj", rope_scaling=None, rope_theta=50000, rotary_pct=1.0, sliding_window=4096,
        sliding_window_pattern=4, torch_dtype="bfloat16", use_cache=True, use_embedding_sharing=True,
        use_gated_activation=True, use_parallel_block=True, use_parallel_embedding=True, vocab_size=256000,
    )  # fmt: skip
    assert windows(model) == [4096, 4096, 4096, None] * 8
    assert thetas(model) == [50000.0, 50000.0, 50000.0, None] * 8
    assert model.layers[0].position.layout == "interleaved"  # type: ignore[attr-defined]
    assert model.block.logit_scale == 0.25


def test_gemma_3_27b_leans_on_class_defaults() -> None:
    # Its text_config, which leaves out all that equals the class's defaults of its time.
    text = {
        "hidden_size": 5376, "intermediate_size": 21504, "num_attention_heads": 32, "num_hidden_layers": 62,
        "num_key_value_heads": 16, "head_dim": 128, "query_pre_attn_scalar": 168, "sliding_window": 1024,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "model_type": "gemma3_text",
    }  # fmt: skip
    values = {"model_type": "gemma3", "text_config": text, "vision_config": {"hidden_size": 1152}}
    _, model, _ = read_plan(values, text_only=True)
    assert [i for i, window in enumerate(windows(model)) if window is None] == list(range(5, 62, 6))
    assert thetas(model)[:6] == [1e4] * 5 + [1e6]
    assert [spec.position.scaling is None for spec in model.layers[:6]] == [True] * 5 + [False]  # type: ignore[attr-defined]
    assert model.layers[0].scale == 168**-0.5
    assert model.block.tie_word_embeddings
    assert model.vocab_size == 262208
    assert minillm.cost(model, 1024).parameters == pytest.approx(27.0e9, rel=0.01)


def test_smollm2_135m_as_released() -> None:
    model = plan(
        "llama", size={}, architectures=["LlamaForCausalLM"], attention_bias=False, attention_dropout=0.0,
        bos_token_id=0, eos_token_id=0, hidden_act="silu", hidden_size=576, initializer_range=0.041666666666666664,
        intermediate_size=1536, is_llama_config=True, max_position_embeddings=8192, num_attention_heads=9,
        num_hidden_layers=30, num_key_value_heads=3, pretraining_tp=1, rms_norm_eps=1e-5, rope_interleaved=False,
        rope_scaling=None, rope_theta=100000, tie_word_embeddings=True, torch_dtype="bfloat16",
        transformers_version="4.40.1", use_cache=True, vocab_size=49152,
    )  # fmt: skip
    assert minillm.cost(model, 1024).parameters == 134_515_008
    assert thetas(model) == [1e5] * 30
    assert model.layers[0].head_dim == 64


def test_smollm3_3b_as_released() -> None:
    model = plan(
        "smollm3", size={}, attention_bias=False, attention_dropout=0.0, hidden_act="silu", hidden_size=2048,
        initializer_range=0.02, intermediate_size=11008, layer_types=[FULL] * 36, max_position_embeddings=65536,
        max_window_layers=28, mlp_bias=False, no_rope_layer_interval=4, no_rope_layers=[1, 1, 1, 0] * 9,
        num_attention_heads=16, num_hidden_layers=36, num_key_value_heads=4, pretraining_tp=2, rms_norm_eps=1e-6,
        rope_scaling=None, rope_theta=5000000.0, sliding_window=None, use_sliding_window=False, vocab_size=128256,
    )  # fmt: skip
    assert thetas(model) == [5e6, 5e6, 5e6, None] * 9
    assert windows(model) == [None] * 36
    assert minillm.cost(model, 1024).parameters == pytest.approx(3.08e9, rel=0.01)


@pytest.mark.parametrize("model_type", ["llama", "qwen2", "smollm3", "granite_swa"])
def test_key_value_heads_that_are_null_are_as_many_as_the_heads(model_type: str) -> None:
    transformers = pytest.importorskip("transformers")
    values = {**SMALL, "num_key_value_heads": None}
    theirs = transformers.AutoConfig.for_model(model_type, **values)
    assert plan(model_type, size=values).layers[0].num_key_value_heads == theirs.num_key_value_heads == 6


def test_olmo_3_scales_its_full_layers_alone() -> None:
    yarn = {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192, "beta_fast": 32, "beta_slow": 1,
        "attention_factor": 1.2079441541679836,
    }  # fmt: skip
    model = plan(
        "olmo3", num_hidden_layers=8, max_position_embeddings=65536, rope_scaling=yarn, rope_theta=500000,
        sliding_window=4096,
    )  # fmt: skip
    scaled = [spec.position.scaling is not None for spec in model.layers]  # type: ignore[attr-defined]
    assert scaled == [False, False, False, True] * 2
    assert model.layers[3].position.attention_factor == pytest.approx(1.2079441)  # type: ignore[attr-defined]


# ---- refused by name ----------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "an unknown key": ("llama", {"attention_window_size": 512}, "attention_window_size = 512"),
    "a window that the class lacks": ("llama", {"sliding_window": 7}, "sliding_window = 7"),
    "experts": ("qwen3", {"num_experts": 8}, "num_experts = 8: this is a mixture of experts"),
    "quantised weights": ("llama", {"quantization_config": {"bits": 4}}, "quantised weights"),
    "an activation": ("llama", {"hidden_act": "relu"}, "hidden_act = 'relu': allowed: 'silu'"),
    "no rotation": ("llama", {"use_rope": False}, "use_rope = False: this key is not known here"),
    "scores that are not scaled": ("llama", {"scale_attn_weights": False}, "scale_attn_weights = False"),
    "norms elsewhere": ("llama", {"do_layer_norm_before": False}, "do_layer_norm_before = False"),
    "another block": ("cohere2", {"use_parallel_block": False}, "use_parallel_block = False"),
    "QK-norm in Cohere": ("cohere2", {"use_qk_norm": True}, "use_qk_norm = True: allowed: False"),
    "a cap on scores that the class does not apply": (
        "gemma3_text",
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping = 50.0: transformers' class for Gemma 3 keeps this number and caps no scores",
    ),
    "attention to both sides": ("gemma3_text", {"use_bidirectional_attention": True}, "attention to later tokens"),
    "linear attention": ("qwen3", {"layer_types": ["linear_attention"] + [FULL] * 4}, "layer 0 is 'linear_attention'"),
    "too few layer types": ("qwen3", {"layer_types": [FULL] * 4}, "4 entries, num_hidden_layers = 5"),
    "too few rope layers": ("smollm3", {"no_rope_layers": [1, 1]}, "2 entries"),
    "a flag that is no flag": ("smollm3", {"no_rope_layers": [1, 2, 1, 1, 1]}, "allowed entries: 1"),
    "a sliding layer without window": ("cohere2", {"sliding_window": None}, "layer 0 is sliding_attention"),
    "a window that is switched off": (
        "qwen3",
        {"layer_types": [LOCAL] * 5, "sliding_window": 7, "use_sliding_window": False},
        "must be a window in effect",
    ),
    "an unclear last layer": ("exaone4", {"sliding_window_pattern": "LLLG"}, "last layer"),
    "a scaling type": ("llama", {"rope_scaling": {"rope_type": "mrope"}}, "rope_type = 'mrope': not known"),
    "a scaling key": (
        "llama",
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0, "mrope_section": [1, 2]}},
        "rope_scaling: mrope_section",
    ),
    "a scaling without factor": ("llama", {"rope_scaling": {"rope_type": "linear"}}, "factor = None: missing"),
    "partial rotation": ("llama", {"partial_rotary_factor": 0.5}, "whole heads"),
    "a truncation that is not read": (
        "olmo3",
        {"rope_parameters": {FULL: {"rope_type": "yarn", **YARN, "truncate": False}}},
        "truncate = False",
    ),
    "text for a number": ("llama", {"hidden_size": "wide"}, "hidden_size: expected a whole number, got 'wide'"),
    "heads that do not divide": ("llama", {"num_key_value_heads": 4}, "num_key_value_heads = 4"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_would_change_the_function_is_refused_by_name(what: str) -> None:
    model_type, values, words = REFUSED[what]
    with pytest.raises(ConfigError) as error:
        plan(model_type, **values)
    assert words in str(error.value)
    assert str(error.value).startswith("config.json: ")


def test_an_olmo_3_read_otherwise_than_transformers_5_reads_it_warns() -> None:
    transformers = pytest.importorskip("transformers")
    values = {**SMALL, "rope_theta": 5e4}
    theirs = transformers.AutoConfig.for_model("olmo3", **values).rope_parameters
    assert theirs[LOCAL]["rope_theta"] == 5e5
    assert theirs[FULL]["rope_theta"] == 5e4
    (warning,) = [w for w in read_plan({"model_type": "olmo3", **values})[2] if "rope_theta" in w]
    assert "rope_theta = 50000 is taken for all layers" in warning
    for same in ({"rope_theta": 5e5}, {"rope_parameters": theirs}):
        assert not [w for w in read_plan({"model_type": "olmo3", **SMALL, **same})[2] if "rope_theta" in w]


@pytest.mark.parametrize(
    ("model_type", "words"),
    [
        ("mixtral", "a mixture of experts"),
        ("qwen3_moe", "a mixture of experts"),
        ("qwen2_vl", "multimodal"),
        ("mamba2", "linear attention"),
        ("bert", "not a decoder-only model"),
        ("lama", "Did you mean 'llama'?"),
    ],
)
def test_another_model_type_is_refused_with_what_it_is(model_type: str, words: str) -> None:
    with pytest.raises(ConfigError, match="not a family that this project reads") as error:
        plan(model_type)
    assert words in str(error.value)


@pytest.mark.parametrize("model_type", [one.name for one in families() if one.exports and one.name != "minillm"])
@pytest.mark.parametrize("value", [False, None, 0])
def test_every_family_refuses_attention_to_later_tokens(model_type: str, value: Any) -> None:
    assert read_plan({"model_type": model_type, "is_causal": True})
    with pytest.raises(ConfigError, match=rf"^config.json: is_causal = {value}: attention to later tokens"):
        read_plan({"model_type": model_type, "is_causal": value})


def test_vision_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"vision_config.*text_only=True"):
        read_plan({"model_type": "gemma3", "text_config": {}, "vision_config": {}})


def test_keys_that_change_nothing_are_let_through() -> None:
    bookkeeping = {
        "torch_dtype": "bfloat16", "use_cache": False, "attention_dropout": 0.1, "initializer_range": 0.5,
        "transformers_version": "4.40.0", "bos_token_id": 1, "pretraining_tp": 2, "some_new_switch": False,
        "auto_map": {"AutoConfig": "code.py--Config"}, "quantization_config": None,
    }  # fmt: skip
    assert plan("llama", **bookkeeping).layers == plan("llama").layers
