"""This project's own Hugging Face form: any plan goes out and in, and transformers runs it as we do."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from torch import Tensor

import minillm
from minillm.config.expand import Heads
from minillm.config.parse import model_config
from minillm.config.paths import conf_dir
from minillm.config.schema import ModelConfig, SizeConfig
from minillm.data.tokenizer import Tokenizer
from minillm.errors import ConfigError, MinillmError
from minillm.hub.__main__ import main
from minillm.hub.api import read_plan
from minillm.hub.family import family
from minillm.model.decoder import Decoder
from tests.model.small import LENGTH, block, config, ids, large

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

ROPE = {"position": {"theta": 500.0}}
LOCAL = {**ROPE, "window": 5}
TURNED = {"position": {"theta": 500.0, "layout": "interleaved"}, "window": 4, "sink_tokens": 2}
YARN = {"position": {"scaling": {"type": "yarn", "factor": 2.0, "original_max_position_embeddings": 40}}}
SHARED = {"position": {"scheme": "t5", "shared": True}}
PLANS: dict[str, list[dict[str, Any]]] = {
    "windows, ALiBi, both layouts": [LOCAL, {"position": "alibi"}, TURNED, {**ROPE, "num_key_value_heads": 1}],
    "chunks, a temperature, a gate": [
        {**ROPE, "chunk": 6}, {"position": "nope", "temperature": "per_head", "gate": True}, {**YARN, "softcap": 9.0},
    ],
    "shared buckets, sinks, content terms": [
        SHARED, {"position": "shaw"}, SHARED,
        {**LOCAL, "sink_logits": True, "qk_norm": {"type": "rms", "over": "full"}},
    ],
}  # fmt: skip


def model_of(name: str, **more: Any) -> Decoder:
    return large(config(*PLANS[name], heads=Heads(4, 2, 10), **more))


@pytest.fixture(scope="module")
def ours() -> Decoder:
    return model_of("windows, ALiBi, both layouts")


@pytest.fixture(scope="module")
def theirs(ours: Decoder) -> Any:
    return minillm.hub.to_transformers(ours, family="minillm")


def same_bits(a: Any, b: Any) -> bool:
    one, other = a.state_dict(), b.state_dict()
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


# ---- any plan --------------------------------------------------------------------------------------------------------


def arm(file: Path) -> ModelConfig:
    """An arm of conf/model at a small size."""
    text = file.read_text(encoding="utf-8").replace('"${size.window}"', "5").replace('"${size.seq_len}"', "48")
    plan = yaml.safe_load(text.replace("${size.seq_len}", "48"))
    size = SizeConfig(60, 40, 7, 6, 2, 12, seq_len=48, window=5)
    return model_config(plan, size, block("standard"), 48, vocab_size=37)[0]


@pytest.mark.parametrize("file", sorted((conf_dir() / "model").glob("*.yaml")), ids=lambda file: file.stem)
def test_every_arm_is_said_exactly_and_read_back_through_the_same_door(file: Path) -> None:
    own, asked = family("minillm"), arm(file)
    assert own.cannot(asked) == []
    got, _ = own.read(json.loads(json.dumps(own.write(asked))))
    named = [dataclasses.replace(mine, kind=other.kind) for mine, other in zip(got.layers, asked.layers, strict=True)]
    assert dataclasses.replace(got, layers=tuple(named)) == asked


@pytest.mark.parametrize("name", PLANS)
@torch.no_grad()
def test_a_model_of_any_plan_goes_to_transformers_and_back(name: str, tmp_path: Path) -> None:
    model = model_of(name, embedding="sinusoidal", tie_word_embeddings=name.startswith("windows"))
    made = minillm.hub.to_transformers(model, family="minillm")
    assert made.config.model_type == "minillm"
    tokens = ids(2, 5 * LENGTH)
    assert torch.equal(made(tokens, use_cache=False).logits, model(tokens))
    back = minillm.hub.from_transformers(made)
    assert back.config == model.config
    assert same_bits(back, model)
    made.save_pretrained(tmp_path / "theirs")
    minillm.hub.save(model, tmp_path / "ours", family="minillm")
    for folder in (tmp_path / "theirs", tmp_path / "ours"):
        assert same_bits(minillm.hub.from_transformers(folder), model)
        assert same_bits(transformers.AutoModelForCausalLM.from_pretrained(folder), made)


def test_kinds_keep_their_names_and_overridden_layers_are_numbered() -> None:
    plan = minillm.compose(["model=rnope_swa", "model.layers.overrides={1:{window:3}}"], warn=False).model
    got, _ = family("minillm").read(family("minillm").write(plan))
    assert [spec.kind for spec in got.layers][:4] == ["local", "local2", "local", "global"]


# ---- generate --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("use_cache", [True, False])
def test_greedy_generation_is_ours_with_and_without_a_cache(use_cache: bool, ours: Decoder, theirs: Any) -> None:
    prompt = ids(2, 9)
    run = theirs.generate(prompt, max_new_tokens=64, do_sample=False, use_cache=use_cache)
    expected = minillm.generate(ours, prompt.tolist(), max_new_tokens=64, temperature=0)
    assert run[:, 9:].tolist() == expected


@torch.no_grad()
def test_the_cache_gives_the_logits_of_the_whole_text(ours: Decoder, theirs: Any) -> None:
    from minillm.hub.own_model import CACHE

    tokens = ids(2, 40)
    first = theirs(tokens[:, :17], use_cache=True)
    second = theirs(tokens[:, 17:18], **{CACHE: first[CACHE]})
    third = theirs(tokens[:, 18:], **{CACHE: second[CACHE]})
    cache = third[CACHE]
    assert cache.get_seq_length() == 40
    got = torch.cat([first.logits, second.logits, third.logits], dim=1)
    assert (got - ours(tokens)).abs().max() < 1e-4
    held = ours.new_cache(2)
    ours(tokens, cache=held)
    assert cache.kv.nbytes() <= 1.5 * held.nbytes(), "windowed layers keep their windows alone"


@torch.no_grad()
def test_positions_that_are_given_are_taken(ours: Decoder, theirs: Any) -> None:
    tokens, positions = ids(1, 9), torch.arange(9)[None] * 3
    assert torch.equal(theirs(tokens, position_ids=positions).logits, ours(tokens, positions=positions))


@torch.no_grad()
def test_a_left_padded_batch_is_as_each_text_alone(ours: Decoder, theirs: Any) -> None:
    long, short = ids(1, 12), ids(1, 7, seed=4)
    tokens = torch.cat([long, torch.cat([torch.zeros(1, 5, dtype=torch.int64), short], dim=1)])
    mask = torch.ones_like(tokens)
    mask[1, :5] = 0
    logits = theirs(tokens, attention_mask=mask).logits
    assert (logits[1, 5:] - ours(short)[0]).abs().max() < 1e-4
    for use_cache in (True, False):
        run = theirs.generate(
            tokens, attention_mask=mask, max_new_tokens=16, do_sample=False, use_cache=use_cache, pad_token_id=0
        )
        for row, text in zip(run, (long, short), strict=True):
            assert row[12:].tolist() == minillm.generate(ours, text.tolist(), max_new_tokens=16)[0]


def test_beam_search_works_without_a_cache_and_is_refused_by_name_with_one(theirs: Any) -> None:
    prompt = ids(1, 5)
    beams = theirs.generate(prompt, max_new_tokens=8, num_beams=3, do_sample=False, use_cache=False)
    assert beams.shape == (1, 13)
    with pytest.raises(MinillmError, match=r"beam search needs. Pass use_cache=False"):
        theirs.generate(prompt, max_new_tokens=8, num_beams=3, do_sample=False)


def test_sampling_draws_several_continuations(theirs: Any) -> None:
    run = theirs.generate(ids(1, 5), max_new_tokens=8, do_sample=True, num_return_sequences=3)
    assert run.shape == (3, 13)
    assert len({tuple(row) for row in run.tolist()}) > 1


ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "a mask of four dimensions": ({"attention_mask": torch.ones(1, 1, 4, 4)}, "attention_mask: shape"),
    "a mask of another length": ({"attention_mask": torch.ones(1, 3)}, "attention_mask: shape"),
    "another cache": ({"past_key_values": transformers.DynamicCache()}, "a DynamicCache, where only a cache that this"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 4, 24)}, "inputs_embeds"),
    "hidden states": ({"output_hidden_states": True}, "output_hidden_states"),
}


@pytest.mark.parametrize("what", ARGUMENTS)
def test_arguments_that_would_be_lost_are_refused(what: str, theirs: Any) -> None:
    given, words = ARGUMENTS[what]
    with pytest.raises(MinillmError, match=words):
        theirs(ids(1, 4), **given)


@torch.no_grad()
def test_the_last_logits_alone_and_a_tuple_are_had_on_request(theirs: Any) -> None:
    tokens = ids(2, 9)
    whole = theirs(tokens).logits
    assert torch.equal(theirs(tokens, logits_to_keep=2).logits, whole[:, -2:])
    assert torch.equal(theirs(tokens, return_dict=False, use_cache=False)[0], whole)


# ---- training --------------------------------------------------------------------------------------------------------


def test_labels_are_shifted_once_and_the_loss_is_ours(ours: Decoder, theirs: Any) -> None:
    tokens = ids(2, 30)
    labels = tokens.clone()
    labels[0, :8] = -100
    targets = torch.cat([labels[:, 1:], torch.full((2, 1), -100)], dim=1)
    assert (theirs(tokens, labels=labels).loss - ours.loss(tokens, targets)).abs() < 1e-5
    counted = int((targets != -100).sum())
    doubled = theirs(tokens, labels=labels, num_items_in_batch=2 * counted).loss
    assert (2 * doubled - ours.loss(tokens, targets)).abs() < 1e-5


def test_gradients_are_ours(ours: Decoder) -> None:
    mine = minillm.hub.from_transformers(minillm.hub.to_transformers(ours, family="minillm"))
    made = minillm.hub.to_transformers(ours, family="minillm").train()
    tokens = ids(2, 30)
    made(tokens, labels=tokens).loss.backward()
    mine.loss(tokens[:, :-1], tokens[:, 1:]).backward()
    grads = {name: p.grad for name, p in mine.named_parameters()}
    for name, parameter in made.model.named_parameters():
        assert torch.allclose(parameter.grad, grads[name], atol=1e-5), name  # type: ignore[arg-type]


def test_a_model_from_a_configuration_alone_starts_as_ours(ours: Decoder, theirs: Any) -> None:
    fresh = transformers.AutoModelForCausalLM.from_config(theirs.config)
    assert same_bits(fresh.model, minillm.build_model(ours.config, seed=0))


# ---- folders ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def written(ours: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "written"
    minillm.hub.save(ours, folder, family="minillm")
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(written, tmp_path / "model"))


State = dict[str, Tensor]
SPOILT: dict[str, tuple[Callable[[State], State], str]] = {
    "a tensor too few": (lambda s: {k: v for k, v in s.items() if "layers.1.mlp.up" not in k}, "missing"),
    "a tensor too many": (lambda s: {**s, "model.extra": torch.zeros(2)}, "model.extra"),
}


@pytest.mark.bug("B123")
@pytest.mark.parametrize("what", SPOILT)
def test_a_damaged_folder_is_refused_and_never_filled_at_random(what: str, folder: Path) -> None:
    edit, words = SPOILT[what]
    file = folder / "model.safetensors"
    safetensors.save_file(edit(safetensors.load_file(file)), file, metadata={"format": "pt"})
    with pytest.raises(MinillmError, match=words):
        transformers.AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(MinillmError, match="does not hold the weights"):
        minillm.hub.from_transformers(folder)


@pytest.mark.bug("B123")
def test_an_untied_head_that_is_missing_is_an_error(tmp_path: Path) -> None:
    model = large(config(ROPE, tie_word_embeddings=False))
    minillm.hub.save(model, tmp_path, family="minillm")
    file = tmp_path / "model.safetensors"
    state = safetensors.load_file(file)
    del state["model.lm_head.weight"]
    safetensors.save_file(state, file, metadata={"format": "pt"})
    for load in (transformers.AutoModelForCausalLM.from_pretrained, minillm.hub.from_transformers):
        with pytest.raises(MinillmError, match=r"model\.lm_head\.weight"):
            load(tmp_path)


def test_pickled_weights_are_not_read(folder: Path, ours: Decoder) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({f"model.{name}": t for name, t in ours.state_dict().items()}, folder / "pytorch_model.bin")
    with pytest.raises(OSError, match="safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)
    with pytest.raises(MinillmError, match="use_safetensors"):
        transformers.AutoModelForCausalLM.from_pretrained(folder, use_safetensors=False)


def test_bfloat16_is_kept_and_can_be_asked_for(folder: Path, ours: Decoder, tmp_path: Path) -> None:
    narrow = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert {p.dtype for p in narrow.parameters()} == {torch.bfloat16}
    assert all(torch.equal(p, ours.state_dict()[n].to(torch.bfloat16)) for n, p in narrow.model.named_parameters())
    assert narrow(ids(1, 20)).logits.dtype == torch.float32
    narrow.save_pretrained(tmp_path / "narrow")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "narrow")
    assert same_bits(again, narrow)
    assert same_bits(minillm.hub.from_transformers(tmp_path / "narrow"), narrow.model)


CHANGES: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "another format": (lambda c: c.update(minillm_format=2), "minillm_format = 2"),
    "an unknown key": (lambda c: c.update(sliding_window=8), "sliding_window = 8"),
    "a layer's unknown field": (lambda c: c["layers"][1].update(windw=3), "Did you mean 'window'"),
    "an unknown scheme": (lambda c: c["layers"][1]["position"].update(scheme="alibbi"), "Did you mean 'alibi'"),
    "a scheme's unknown field": (lambda c: c["layers"][1]["position"].update(theta=3.0), "'alibi' has no such field"),
    "a layer too few": (lambda c: c["layers"].pop(), "`layers` has 3 entries"),
    "a layer out of order": (lambda c: c["layers"].reverse(), "entry 0 has index 3"),
    "two head widths": (lambda c: c["layers"][2].update(head_dim=8), "entry 2 has head_dim 8"),
    "two words about the head": (lambda c: c.update(tie_word_embeddings=False), "tie_word_embeddings = False"),
    "a block's unknown key": (lambda c: c["block"].update(norms=1), "Did you mean 'norm'"),
    "no layers": (lambda c: c.pop("layers"), "layers = None: missing"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_config_that_cannot_be_honoured_is_refused_by_name(what: str, folder: Path) -> None:
    change, words = CHANGES[what]
    values = json.loads((folder / "config.json").read_text())
    change(values)
    (folder / "config.json").write_text(json.dumps(values))
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        read_plan(folder)
    with pytest.raises(ConfigError):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_show_prints_the_plan(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(written)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[2] for line in lines if line and line[0] in "0123"] == ["rope", "alibi", "rope", "rope"]


def test_export_writes_it_where_no_family_says_the_plan_and_tells_why(
    ours: Decoder, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = Tokenizer.train([TEXT * 4], vocab_size=280)
    monkeypatch.setattr("minillm.checkpoint.load", lambda path: (ours, tokenizer))
    assert main(["export", "outputs/run", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "MinillmForCausalLM (minillm)" in told
    assert "layer 1: position is alibi, llama would have rope" in told
    assert same_bits(minillm.hub.from_transformers(tmp_path / "out"), ours)
    with pytest.raises(MinillmError, match="family='minillm'"):
        minillm.hub.save(ours, tmp_path / "none")


# ---- a fresh process, with the tokenizer -----------------------------------------------------------------------------

PROGRAM = """
import json, sys
import minillm.hub
assert "transformers" not in sys.modules, "import minillm.hub must stay light"
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
for folder in sys.argv[2:]:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    inputs = tokenizer([sys.argv[1]], return_tensors="pt")
    with torch.no_grad():
        logits = model(**inputs).logits
    new = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    print(json.dumps({
        "type": AutoConfig.from_pretrained(folder).model_type, "class": type(model).__name__,
        "tied": model.config.tie_word_embeddings, "head": model.get_output_embeddings() is None,
        "problems": [name for name, found in report.items() if found],
        "ids": inputs["input_ids"].tolist(), "logits": logits.tolist(), "new": new.tolist(),
        "eos": model.generation_config.eos_token_id,
    }))
"""
TEXT = "The union of states shall meet in council."


@pytest.mark.bug("B123")
@torch.no_grad()
def test_a_fresh_process_loads_generates_and_tokenizes(tmp_path: Path) -> None:
    tokenizer = Tokenizer.train([TEXT * 4], vocab_size=280)
    models = {}
    for tied in (True, False):
        plan = config(*PLANS["windows, ALiBi, both layouts"], tie_word_embeddings=tied)
        model = models[tmp_path / str(tied)] = large(dataclasses.replace(plan, vocab_size=tokenizer.vocab_size))
        minillm.hub.save(model, tmp_path / str(tied), tokenizer, family="minillm")
    run = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, TEXT, *map(str, models)], capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    found = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    for (folder, model), got in zip(models.items(), found, strict=True):
        tied = folder.name == "True"
        assert (got["type"], got["class"], got["problems"]) == ("minillm", "MinillmForCausalLM", [])
        assert got["tied"] is tied
        assert got["head"] is tied
        prompt = tokenizer.encode(TEXT, bos=True)
        assert got["ids"] == [prompt]
        assert (torch.tensor(got["logits"]) - model(torch.tensor([prompt]))).abs().max() < 1e-5
        new = minillm.generate(model, [prompt], max_new_tokens=20, temperature=0, stop_ids=[tokenizer.bos_id])[0]
        assert got["new"][0][len(prompt) :][: len(new)] == new
        assert got["eos"] == tokenizer.bos_id
        same, same_tokenizer = minillm.load(folder)
        assert same_bits(same, model)
        assert same_tokenizer.encode(TEXT) == tokenizer.encode(TEXT)
