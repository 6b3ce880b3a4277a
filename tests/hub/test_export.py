"""Which family says a plan, and why others do not; tied and untied heads in a fresh process; tokenizers."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

import minillm
from minillm.config.expand import Heads
from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError, MinillmError
from minillm.hub.choose import NoFamily, choose
from minillm.model.decoder import Decoder
from tests.model.small import LENGTH, config, ids, large

transformers = pytest.importorskip("transformers")

ROPE = {"position": {"theta": 500.0}}
LOCAL = {**ROPE, "window": 5}
NOPE = {"position": "nope"}
NORMED = {"qk_norm": "rms"}
OVER_ALL = {"qk_norm": {"type": "rms", "over": "full"}}
ALIBI = {"position": "alibi"}
LONGROPE = {
    "type": "longrope", "factor": 4.0, "original_max_position_embeddings": LENGTH, "short_factor": 1.0,
    "long_factor": 4.0,
}  # fmt: skip


def made(*layers: dict[str, Any], name: str = "standard", **more: Any) -> ModelConfig:
    return config(*layers, name=name, hidden_size=24, heads=Heads(4, 2, 8), **more)


# ---- which family ----------------------------------------------------------------------------------------------------

CHOICES: dict[str, tuple[ModelConfig, str]] = {
    "one RoPE": (made(ROPE, ROPE, ROPE), "llama"),
    "RoPE with biases of q, k, v": (made(*[{**ROPE, "qkv_bias": True}] * 3), "qwen2"),
    "LongRoPE with one number for all pairs": (
        made(*[{"position": {"theta": 500.0, "scaling": LONGROPE}}] * 2),
        "llama",
    ),
    "windows on some layers": (made(LOCAL, ROPE, LOCAL), "smollm3"),
    "RNoPE-SWA": (made(LOCAL, LOCAL, LOCAL, NOPE, LOCAL), "smollm3"),
    "NoPE, and a window on a NoPE layer": (made(ROPE, {**NOPE, "window": 5}, NOPE), "smollm3"),
    "NoPE alone": (made(NOPE, NOPE), "smollm3"),
    "QK-norm": (made(*[{**ROPE, **NORMED}] * 2, {**LOCAL, **NORMED}), "qwen3"),
    "norms after the branches": (made(*[{**ROPE, **OVER_ALL}] * 3, name="olmo2"), "olmo2"),
    "the same with windows": (made({**LOCAL, **OVER_ALL}, {**ROPE, **OVER_ALL}, name="olmo2"), "olmo3"),
    "the same with QK-norm per head": (
        made({**LOCAL, **NORMED}, {**NOPE, **NORMED}, name="olmo2"),
        "exaone4",
    ),
    "two bases in Gemma's block": (
        made({**LOCAL, **NORMED}, {"position": {"theta": 1e4}, **NORMED}, name="gemma3"),
        "gemma3_text",
    ),
    "soft-caps in Gemma's block": (
        made(*[{**ROPE, "softcap": 50.0}] * 2, name="gemma3", final_logit_softcapping=30.0),
        "gemma2",
    ),
    "RNoPE-SWA in Cohere's block": (made(LOCAL, LOCAL, NOPE, name="cohere2"), "cohere2"),
    "sinks and two bases": (
        made(*[{**one, "sink_logits": True} for one in (LOCAL, {"position": {"theta": 9.0}}, NOPE)]),
        "granite_swa",
    ),
}


@pytest.mark.parametrize("what", CHOICES)
@torch.no_grad()
def test_the_plainest_family_that_says_the_plan_is_taken_and_computes_the_same(what: str) -> None:
    asked, family = CHOICES[what]
    model = large(asked)
    theirs = minillm.hub.to_transformers(model)
    assert theirs.config.model_type == family
    tokens = ids(2, 4 * LENGTH)
    assert (theirs(tokens).logits - model(tokens)).abs().max() < 1e-4


@pytest.mark.bug("B042")
@pytest.mark.parametrize(("name", "family"), [("cohere2", "cohere2"), ("standard", "llama")])
@torch.no_grad()
def test_weights_follow_when_the_family_pairs_other_channels(name: str, family: str) -> None:
    layout = "half" if family == "cohere2" else "interleaved"
    turned = [{"position": {"theta": 500.0, "layout": layout}, "window": 5 if family == "cohere2" else None}] * 3
    model = large(made(*turned, name=name))
    theirs = minillm.hub.to_transformers(model)
    assert theirs.config.model_type == family
    tokens = ids(1, 301)
    difference = (theirs(tokens).logits - model(tokens)).abs()
    for position in (0, 1, 50, 300):
        assert difference[:, position].max() < 1e-4, f"at position {position}"
    again = minillm.hub.from_transformers(theirs)
    assert (again(tokens) - model(tokens)).abs().max() < 1e-4


@torch.no_grad()
def test_norms_of_queries_and_keys_follow_too() -> None:
    layer = {"position": {"theta": 500.0, "layout": "interleaved"}, "qkv_bias": True, **NORMED}
    model = large(made(layer, layer, attention_bias=True))
    theirs = minillm.hub.to_transformers(model, family="qwen3")
    tokens = ids(1, 60)
    assert (theirs(tokens).logits - model(tokens)).abs().max() < 1e-4


def test_no_family_says_alibi_and_each_is_told_why_layer_by_layer() -> None:
    with pytest.raises(MinillmError) as error:
        choose(made(ROPE, ALIBI, ROPE, ALIBI, ALIBI))
    lines = str(error.value).splitlines()
    assert "No Hugging Face family expresses this model exactly" in lines[0]
    llama = next(line for line in lines if line.strip().startswith("llama:"))
    assert llama.endswith("llama: layers 1, 3-4: position is alibi, llama would have rope (theta 500)")
    counts = [line.count(";") for line in lines[1:4]]
    assert counts == sorted(counts), "nearest first"
    assert {line.split(":")[0].strip() for line in lines[1:]} >= {"llama", "gemma3_text", "cohere2", "granite_swa"}


def test_gemma_3_is_not_claimed_to_cap_scores() -> None:
    capped = made(*[{**ROPE, **NORMED, "softcap": 3.0}] * 2, name="gemma3")
    with pytest.raises(NoFamily, match="gemma3_text: layers 0-1: softcap is 3, gemma3_text would have null"):
        choose(capped)


@torch.no_grad()
def test_gemma_3_caps_logits() -> None:
    model = large(made(*[{**ROPE, **NORMED}] * 2, name="gemma3", final_logit_softcapping=2.0))
    theirs = minillm.hub.to_transformers(model)
    assert theirs.config.model_type == "gemma3_text"
    tokens = ids(1, 60)
    assert (theirs(tokens).logits - model(tokens)).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("family", "block", "layer"),
    [
        ("qwen3", "standard", {**ROPE, **NORMED}),
        ("olmo3", "olmo2", {**ROPE, **OVER_ALL}),
        ("smollm3", "standard", ROPE),
        ("exaone4", "olmo2", {**ROPE, **NORMED}),
        ("exaone4", "olmo2", {**NOPE, **NORMED}),
        ("gemma2", "gemma3", ROPE),
        ("gemma3_text", "gemma3", {**ROPE, **NORMED}),
        ("cohere2", "cohere2", NOPE),
        ("granite_swa", "standard", {**ROPE, "sink_logits": True}),
    ],
)
@torch.no_grad()
def test_a_family_with_windows_runs_without_any(family: str, block: str, layer: dict[str, Any]) -> None:
    model = large(made(layer, layer, name=block))
    tokens = ids(1, 60)
    theirs = minillm.hub.to_transformers(model, family)
    assert theirs.config.model_type == family
    assert (theirs(tokens).logits - model(tokens)).abs().max() < 1e-4


def test_a_family_that_cannot_write_a_plan_at_all_comes_last_and_cites_no_numbers_of_its_attempt() -> None:
    asked = dataclasses.replace(made(ROPE, {**ROPE, "softcap": 3.0}), hidden_size=26)
    with pytest.raises(NoFamily) as error:
        choose(asked)
    lines = [line.strip() for line in str(error.value).splitlines()[1:-1]]
    last = [line.split(":")[0] for line in lines if "has no form for a model like this one" in line]
    assert last == [line.split(":")[0] for line in lines[-len(last) :]] == ["gpt2", "gpt_neox", "bloom", "mpt"]
    with pytest.raises(MinillmError, match=r"hidden_size is 26, gpt2 asks for a multiple of the 4 heads\.$"):
        choose(asked, "gpt2")


def test_a_scale_near_nothing_is_a_reason_and_no_accident() -> None:
    with pytest.raises(NoFamily, match="scale is 1e-200"):
        choose(made({**ROPE, "scale": 1e-200}))


FORCED: dict[str, tuple[ModelConfig, str, str]] = {
    "rotation on a full layer": (
        made(LOCAL, {**ROPE, "position": {"theta": 500.0}}, name="cohere2"),
        "cohere2",
        "layer 1: position is rope (theta 500), cohere2 would have nope",
    ),
    "a window on a NoPE layer": (
        made(LOCAL, {**NOPE, "window": 5}, name="cohere2"),
        "cohere2",
        "layer 1: position is nope, cohere2 would have rope (theta 500)",
    ),
    "two windows": (made(LOCAL, LOCAL, {**ROPE, "window": 4}), "smollm3", "layer 2: window is 4, smollm3 would have 5"),
    "two bases": (made(ROPE, {"position": {"theta": 1e4}}), "smollm3", "layer 1: position is rope (theta 10000)"),
    "scaling on some layers": (
        made(ROPE, {"position": {"theta": 500.0, "scaling": {"type": "linear", "factor": 2.0}}}),
        "llama",
        "layer 1: position is rope (theta 500, scaling {factor: 2, type: linear}), llama would have rope (theta 500)",
    ),
    "a chunk": (made(ROPE, {**ROPE, "chunk": 4}), "llama", "layer 1: chunk is 4, llama would have null"),
    "a temperature": (
        made({**ROPE, "temperature": {"type": "log_n", "base": 9.0}}),
        "llama",
        "layer 0: temperature is",
    ),
    "a score scale": (made({**ROPE, "scale": 0.5}), "llama", "layer 0: scale is 0.5, llama would have 0.353553"),
    "key-value heads per layer": (
        made(ROPE, {**ROPE, "num_key_value_heads": 1}),
        "llama",
        "layer 1: num_key_value_heads is 1, llama would have 2",
    ),
    "another block": (made(ROPE, name="olmo2"), "llama", "block.norm_placement is branch_post, llama has pre"),
    "an embedding scheme": (
        made(NOPE, embedding="sinusoidal"),
        "smollm3",
        "embedding.position is sinusoidal, smollm3 has null",
    ),
    "a width that the heads do not divide": (
        dataclasses.replace(made(ROPE), hidden_size=26),
        "llama",
        "hidden_size is 26, llama in transformers asks for a multiple of the 4 heads",
    ),
    "a scale that is no inverse root of a number": (
        made({**ROPE, **NORMED, "scale": 0.3}, name="gemma3"),
        "gemma3_text",
        "layer 0: scale is 0.3, gemma3_text would have 0.301511",
    ),
}


@pytest.mark.parametrize("what", FORCED)
def test_a_family_by_name_says_what_it_does_not_express(what: str) -> None:
    asked, family, words = FORCED[what]
    with pytest.raises(MinillmError) as error:
        choose(asked, family)
    assert words in str(error.value)
    assert str(error.value).startswith(f"{family} does not express this model: ")


def test_a_family_that_does_not_exist_is_an_error_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="Did you mean 'cohere2'"):
        choose(made(ROPE), "cohere")


# ---- folders ---------------------------------------------------------------------------------------------------------

LOADER = """
import json, sys
import torch, transformers
transformers.logging.set_verbosity_error()
tokens = torch.tensor(json.loads(sys.argv[1]))
for folder in sys.argv[2:]:
    model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    with torch.no_grad():
        logits = model(tokens).logits
    print(json.dumps({
        "type": model.config.model_type,
        "tied": model.config.tie_word_embeddings,
        "one": model.lm_head.weight.data_ptr() == model.model.embed_tokens.weight.data_ptr(),
        "problems": {name: sorted(map(str, found)) for name, found in report.items() if found},
        "logits": logits.tolist(),
    }))
"""
CASES = [(tied, writer) for tied in (True, False) for writer in ("ours", "theirs")]
TOKENS = ids(1, 3 * LENGTH)


class Loaded(NamedTuple):
    """A model of ours, the folder it was written to, and what a fresh process found there."""

    model: Decoder
    folder: Path
    found: dict[str, Any]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[bool, str], Loaded]:
    home = tmp_path_factory.mktemp("exported")
    models = {tied: large(made(LOCAL, NOPE, ROPE, tie_word_embeddings=tied)) for tied in (True, False)}
    folders = {case: home / f"{case[1]}-{case[0]}" for case in CASES}
    for (tied, writer), folder in folders.items():
        if writer == "ours":
            minillm.hub.save(models[tied], folder)
        else:
            minillm.hub.to_transformers(models[tied]).save_pretrained(folder)
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", LOADER, json.dumps(TOKENS.tolist()), *map(str, folders.values())],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {
        case: Loaded(models[case[0]], folder, one) for (case, folder), one in zip(folders.items(), found, strict=True)
    }


@pytest.mark.bug("B123")
@pytest.mark.parametrize("case", CASES)
@torch.no_grad()
def test_a_fresh_process_loads_all_of_a_tied_or_untied_model(
    case: tuple[bool, str], loaded: dict[tuple[bool, str], Loaded]
) -> None:
    model, _, found = loaded[case]
    assert found["type"] == "smollm3"
    assert found["problems"] == {}
    assert found["tied"] == found["one"] == case[0]
    assert (torch.tensor(found["logits"]) - model(TOKENS)).abs().max() < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_a_written_folder_comes_back_bit_for_bit(
    case: tuple[bool, str], loaded: dict[tuple[bool, str], Loaded]
) -> None:
    model, folder, _ = loaded[case]
    back = minillm.hub.from_transformers(folder)
    assert back.state_dict().keys() == model.state_dict().keys()
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    for mine, other in zip(model.layer_specs, back.layer_specs, strict=True):
        assert dataclasses.replace(mine, kind=other.kind) == other


def test_bfloat16_goes_out_and_comes_in_as_it_is(tmp_path: Path) -> None:
    model = large(made(ROPE, ROPE)).to(torch.bfloat16)
    minillm.hub.save(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == "bfloat16"
    back = minillm.hub.from_transformers(tmp_path)
    assert back.embed_tokens.weight.dtype == torch.bfloat16
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    wide = minillm.hub.from_transformers(tmp_path, dtype=torch.float32)
    assert all(torch.equal(wide.state_dict()[name], t.float()) for name, t in model.state_dict().items())
    assert minillm.hub.to_transformers(model).dtype == torch.bfloat16


def test_a_folder_with_a_model_is_not_overwritten(tmp_path: Path) -> None:
    model: Decoder = large(made(ROPE))
    minillm.hub.save(model, tmp_path)
    with pytest.raises(MinillmError, match="holds a model already"):
        minillm.hub.save(model, tmp_path)
