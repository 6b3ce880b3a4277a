"""GPT-2, GPT-NeoX, BLOOM and MPT against transformers' own models: logits, cached decoding, and back bit for bit.

Six heads, no power of two; five layers; weights that matter. Texts go past the trained length but for GPT-2, whose
table ends there, and for MPT, whose class refuses: ours goes on.
"""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import minillm
from minillm.config.expand import Heads
from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError, MinillmError, PositionUndefined
from minillm.hub.api import read_plan
from minillm.hub.choose import choose
from minillm.hub.convert import build
from minillm.model.decoder import Decoder
from tests.hub.models import cached_difference, difference, enlarge, ids
from tests.model.small import config, large
from tests.model.small import ids as small_ids

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

VOCAB, WIDTH, HEADS, DEPTH, TRAINED = 41, 36, 6, 5, 96
NEW = 64
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GPT2 = {"vocab_size": VOCAB, "n_embd": WIDTH, "n_head": HEADS, "n_layer": DEPTH, "n_positions": TRAINED}
NEOX = {
    "vocab_size": VOCAB, "hidden_size": 60, "num_attention_heads": HEADS, "num_hidden_layers": DEPTH,
    "intermediate_size": 44, "max_position_embeddings": TRAINED,
}  # fmt: skip
BLOOM = {"vocab_size": VOCAB, "hidden_size": WIDTH, "n_head": HEADS, "n_layer": DEPTH, "seq_length": TRAINED}
MPT = {"vocab_size": VOCAB, "d_model": WIDTH, "n_heads": HEADS, "n_layers": DEPTH, "max_seq_len": TRAINED}
YARN = {"rope_type": "yarn", "rope_theta": 500.0, "factor": 4.0, "original_max_position_embeddings": 48}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", GPT2),
    "gpt2 with all its scales": (
        "gpt2",
        {
            **GPT2, "n_inner": 44, "activation_function": "gelu", "scale_attn_by_inverse_layer_idx": True,
            "scale_attn_weights": False, "tie_word_embeddings": False,
        },
    ),
    "gpt_neox": ("gpt_neox", {**NEOX, "rope_parameters": {"rope_type": "default", "rope_theta": 500.0,
                                                          "partial_rotary_factor": 0.4}}),
    "gpt_neox in sequence, all rotated": (
        "gpt_neox",
        {**NEOX, "use_parallel_residual": False, "attention_bias": False, "hidden_act": "gelu_new",
         "tie_word_embeddings": True, "rope_parameters": {**YARN, "partial_rotary_factor": 1.0}},
    ),
    "bloom": ("bloom", BLOOM),
    "bloom untied, 4 heads": ("bloom", {**BLOOM, "n_head": 4, "tie_word_embeddings": False}),
    "mpt": ("mpt", MPT),
    "mpt with a scale": ("mpt", {**MPT, "attn_config": {"softmax_scale": 0.3}, "tie_word_embeddings": False}),
}  # fmt: skip
LENGTHS = {"gpt2": TRAINED, "mpt": TRAINED}


class Pair(NamedTuple):
    """Their model, ours of its weights, and theirs again of ours."""

    family: str
    theirs: Any
    ours: Decoder
    back: Any


@cache
def theirs(name: str) -> Any:
    model_type, values = MODELS[name]
    made = transformers.AutoConfig.for_model(model_type, **values, **NO_IDS)
    return enlarge(transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager"))


@pytest.fixture(scope="module", params=MODELS)
def pair(request: pytest.FixtureRequest) -> Pair:
    model = theirs(request.param)
    ours = minillm.hub.from_transformers(model)
    family = MODELS[request.param][0]
    return Pair(family, model, ours, minillm.hub.to_transformers(ours, family))


@torch.no_grad()
def test_logits_are_theirs_as_far_as_their_class_goes(pair: Pair) -> None:
    tokens = ids(2, LENGTHS.get(pair.family, 301))
    expected = pair.theirs(tokens).logits
    assert expected.std() > 0.2, "these weights are too small to test anything"
    assert difference(pair.ours(tokens), expected) < 1e-4


def test_cached_greedy_decoding_gives_their_cached_logits(pair: Pair) -> None:
    assert cached_difference(pair.theirs, pair.ours, NEW) < 1e-4


def test_out_again_gives_identical_bits_and_the_same_configuration(pair: Pair) -> None:
    assert type(pair.back) is type(pair.theirs)
    before, after = pair.theirs.state_dict(), pair.back.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert said(pair.back.config.to_dict()) == said(pair.theirs.config.to_dict())


def said(values: dict[str, Any]) -> dict[str, Any]:
    """A configuration without the dtype of its model, and without a width that is written out or left to the class."""
    kept = {k: v for k, v in values.items() if k not in ("architectures", "dtype", "n_inner")}
    return {k: said(v) if isinstance(v, dict) else v for k, v in kept.items()}


def test_in_again_gives_identical_bits_and_the_same_plan(pair: Pair) -> None:
    again = minillm.hub.from_transformers(pair.back)
    assert again.config == pair.ours.config
    mine, other = pair.ours.state_dict(), again.state_dict()
    assert all(torch.equal(mine[name], other[name]) for name in mine)


@torch.no_grad()
def test_a_left_padded_batch_of_bloom_is_as_each_text_alone() -> None:
    model = theirs("bloom")
    ours = minillm.hub.from_transformers(model)
    tokens, mask = ids(2, 20), torch.ones(2, 20, dtype=torch.int64)
    mask[1, :7] = 0
    expected = model(tokens, attention_mask=mask).logits
    logits = ours(tokens, document_ids=mask - 1)
    assert difference(logits[mask == 1], expected[mask == 1]) < 1e-4
    assert difference(logits[1:, 7:], ours(tokens[1:, 7:])) < 1e-4


@torch.no_grad()
def test_past_the_trained_length_mpt_goes_on_and_gpt2_is_not_defined() -> None:
    longer = ids(1, TRAINED + 40)
    mpt = minillm.hub.from_transformers(theirs("mpt"))
    with pytest.raises(RuntimeError):
        theirs("mpt")(longer)
    wider = theirs("mpt").__class__(transformers.MptConfig(**{**MPT, "max_seq_len": 200}, **NO_IDS))
    wider.load_state_dict(theirs("mpt").state_dict())
    assert difference(mpt(longer), wider.eval()(longer).logits) < 1e-4
    with pytest.raises(PositionUndefined):
        minillm.hub.from_transformers(theirs("gpt2"))(longer)


# ---- folders ---------------------------------------------------------------------------------------------------------


def folder(path: Path, name: str, **more: Tensor) -> Path:
    """As the library writes it, with more tensors in the file."""
    theirs(name).save_pretrained(path)
    file = path / "model.safetensors"
    safetensors.save_file({**safetensors.load_file(file), **more}, file, metadata={"format": "pt"})
    return path


@torch.no_grad()
def test_old_gpt2_files_hold_masks_and_lack_the_prefix(tmp_path: Path) -> None:
    masks = {f"transformer.h.{i}.attn.bias": torch.ones(1, 1, 96, 96).tril() for i in range(DEPTH)}
    masks |= {f"transformer.h.{i}.attn.masked_bias": torch.tensor(-1e4) for i in range(DEPTH)}
    folder(tmp_path, "gpt2", **masks)
    file = tmp_path / "model.safetensors"
    old = {name.removeprefix("transformer."): tensor for name, tensor in safetensors.load_file(file).items()}
    assert "h.0.attn.bias" in old
    assert "h.0.attn.c_attn.bias" in old
    safetensors.save_file(old, file, metadata={"format": "pt"})
    got = minillm.hub.from_transformers(tmp_path)
    tokens = ids(2, 50)
    assert difference(got(tokens), theirs("gpt2")(tokens).logits) < 1e-4


@torch.no_grad()
def test_gpt_neox_files_call_the_head_embed_out(tmp_path: Path) -> None:
    model = minillm.hub.from_transformers(theirs("gpt_neox"))
    minillm.hub.save(model, tmp_path / "ours", family="gpt_neox")
    folder(tmp_path / "theirs", "gpt_neox", **{"gpt_neox.layers.0.attention.masked_bias": torch.tensor(-1e4)})
    names = [set(safetensors.load_file(tmp_path / which / "model.safetensors")) for which in ("ours", "theirs")]
    assert names[0] == names[1] - {"gpt_neox.layers.0.attention.masked_bias"}
    assert "embed_out.weight" in names[0]
    tokens = ids(1, 120)
    for which in ("ours", "theirs"):
        loaded, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / which, output_loading_info=True)
        assert not report["missing_keys"]
        assert difference(loaded(tokens).logits, model(tokens)) < 1e-4
        assert difference(minillm.hub.from_transformers(tmp_path / which)(tokens), model(tokens)) == 0


# ---- plans read and written ------------------------------------------------------------------------------------------


def test_gpt_neox_is_read_in_its_older_spelling() -> None:
    old = {"rotary_emb_base": 500, "rotary_pct": 0.4, "partial_rotary_factor": 0.4, "rope_theta": 500.0}
    new = {"rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.4}}
    plans = [read_plan({"model_type": "gpt_neox", **NEOX, **spelling})[1] for spelling in (old, new)]
    assert plans[0] == plans[1]
    default = read_plan({"model_type": "gpt_neox", **{**NEOX, "hidden_size": 96}})[1]
    assert default.layers[0].position.partial_rotary_factor == 0.25  # type: ignore[attr-defined]


def test_names_that_the_library_takes_as_well_are_read() -> None:
    files = {
        "gpt2": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": 20},
        "bloom": {"n_embed": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "seq_length": 20},
        "mpt": {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "max_seq_len": 20},
    }
    for name, values in files.items():
        model = read_plan({"model_type": name, "vocab_size": 9, **values})[1]
        assert (model.hidden_size, model.num_hidden_layers, model.max_position_embeddings) == (48, 3, 20), name
        assert model.intermediate_size == 192


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "BLOOM's other residual": (
        {"model_type": "bloom", **BLOOM, "apply_residual_connection_post_layernorm": True},
        "apply_residual_connection_post_layernorm = True",
    ),
    "an encoder beside GPT-2": ({"model_type": "gpt2", **GPT2, "add_cross_attention": True}, "add_cross_attention"),
    "an activation": ({"model_type": "gpt2", **GPT2, "activation_function": "relu"}, "activation_function = 'relu'"),
    "heads that do not divide": ({"model_type": "gpt2", **GPT2, "n_head": 5}, "n_embd = 36: gpt2 asks for a multiple"),
    "two widths": ({"model_type": "bloom", **BLOOM, "n_embed": 48}, "hidden_size and n_embed are one setting"),
    "two bases": (
        {"model_type": "gpt_neox", **NEOX, "rope_theta": 7.0, "rotary_emb_base": 5.0},
        "rope_theta = 7.0: gpt_neox reads rotary_emb_base",
    ),
    "BLOOM's sums without their biases": (
        {"model_type": "bloom", **BLOOM, "slow_but_exact": True, "pretraining_tp": 2},
        "slow_but_exact = True: with pretraining_tp above 1 the class then leaves out the biases",
    ),
    "another key": ({"model_type": "bloom", **BLOOM, "sliding_window": 4}, "sliding_window = 4"),
    **{
        f"MPT's {key}": ({"model_type": "mpt", **MPT, key: value}, f"{key} = {value!r}")
        for key, value in {
            "no_bias": False, "expansion_ratio": 2, "norm_type": "rmsnorm", "logit_scale": "inv_sqrt_d_model",
        }.items()
    },
    **{
        f"MPT's attn_config.{key}": (
            {"model_type": "mpt", **MPT, "attn_config": {key: value}},
            f"attn_config: {key} = {value!r}",
        )
        for key, value in {
            "attn_type": "multiquery_attention", "alibi": False, "alibi_bias_max": 16, "clip_qkv": 6.0,
            "qk_ln": True, "prefix_lm": True, "attn_uses_sequence_id": True, "rope": True, "kv_n_heads": 2,
        }.items()
    },
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_name(what: str) -> None:
    values, words = REFUSED[what]
    with pytest.raises(ConfigError) as error:
        read_plan(values)
    assert words in str(error.value)


MPT_7B = {
    "architectures": ["MPTForCausalLM"], "model_type": "mpt", "d_model": 4096, "emb_pdrop": 0,
    "attn_config": {
        "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
        "attn_type": "multihead_attention",
        "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False, "qk_ln": False, "softmax_scale": None,
    },
    "embedding_fraction": 1.0, "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "expansion_ratio": 4,
    "init_device": "cpu",
    "init_config": {"name": "kaiming_normal_", "verbose": 0}, "learned_pos_emb": True, "logit_scale": None,
    "max_seq_len": 2048, "n_heads": 32, "n_layers": 32, "no_bias": True, "norm_type": "low_precision_layernorm",
    "resid_pdrop": 0, "tokenizer_name": "EleutherAI/gpt-neox-20b", "torch_dtype": "bfloat16",
    "use_cache": False, "verbose": 0, "vocab_size": 50432,
}  # fmt: skip


@pytest.mark.parametrize("values", [{"slow_but_exact": True}, {"slow_but_exact": False, "pretraining_tp": 4}])
def test_bloom_s_other_settings_of_exactness_change_nothing(values: dict[str, Any]) -> None:
    assert read_plan({"model_type": "bloom", **BLOOM, **values})[1] == read_plan({"model_type": "bloom", **BLOOM})[1]


def test_a_head_under_both_its_names_is_read_only_where_they_agree() -> None:
    model = theirs("gpt_neox")
    state = {name: tensor.detach() for name, tensor in model.state_dict().items()}
    found, plan, _ = read_plan(model.config.to_dict())
    head = "lm_head.weight" if "lm_head.weight" in state else "embed_out.weight"
    both = {**state, "lm_head.weight": state[head], "embed_out.weight": state[head].clone()}
    assert torch.equal(build(found, plan, both, "here").lm_head.weight, state[head])
    both["embed_out.weight"] += 1
    with pytest.raises(MinillmError, match=r"here: lm_head.weight and embed_out.weight are names of one tensor"):
        build(found, plan, both, "here")


def test_a_released_mpt_is_read() -> None:
    model = read_plan(MPT_7B)[1]
    assert (model.hidden_size, model.intermediate_size, model.layers[0].head_dim) == (4096, 16384, 128)
    assert {spec.position.scheme for spec in model.layers} == {"alibi"}


def plan_of(*layers: dict[str, Any], name: str, kv_heads: int = 4, embedding: Any = None) -> ModelConfig:
    made = config(*layers, name=name, hidden_size=32, heads=Heads(4, kv_heads, 8), embedding=embedding)
    return dataclasses.replace(made, intermediate_size=128)


@pytest.mark.parametrize("family", ["gpt2", "gpt_neox", "bloom"])
@torch.no_grad()
def test_the_blocks_of_this_project_go_out_as_their_families(family: str) -> None:
    layer: dict[str, Any] = {
        "gpt2": {"position": "nope"},
        "gpt_neox": {"position": {"scheme": "rope", "theta": 500.0, "partial_rotary_factor": 0.5}},
        "bloom": {"position": "alibi"},
    }[family]
    embedding = "learned" if family == "gpt2" else None
    plan = plan_of(layer, layer, name=family, embedding=embedding)
    model = large(plan)
    made = minillm.hub.to_transformers(model)
    assert made.config.model_type == family
    tokens = small_ids(2, plan.max_position_embeddings)
    assert difference(made(tokens).logits, model(tokens)) < 1e-4


def test_groups_of_heads_are_what_these_families_lack() -> None:
    layer = {"position": "alibi"}
    plan = plan_of(layer, layer, name="bloom", kv_heads=2)
    with pytest.raises(MinillmError, match="layers 0-1: num_key_value_heads is 2, bloom would have 4"):
        choose(plan, "bloom")


def test_a_scale_that_falls_from_layer_to_layer_is_gpt2s_own(tmp_path: Path) -> None:
    scales = [{"position": "nope", "scale": 8**-0.5 / (i + 1)} for i in range(3)]
    plan = plan_of(*scales, name="gpt2", embedding="learned")
    minillm.hub.save(large(plan), tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "gpt2"
    assert written["scale_attn_by_inverse_layer_idx"] is True
    assert written["scale_attn_weights"] is True
