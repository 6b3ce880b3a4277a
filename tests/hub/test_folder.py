"""Folders as they are found: shards, missing and surplus tensors, missing prefixes, pickles, paths that lead out."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import minillm
from minillm.errors import MinillmError
from minillm.hub.folder import INDEX, WEIGHTS
from minillm.model.decoder import Decoder
from tests.model.small import config, large

safetensors = pytest.importorskip("safetensors.torch")

ROPE = {"position": {"theta": 500.0}}
State = dict[str, Tensor]


@pytest.fixture(scope="module")
def model() -> Decoder:
    return large(config(ROPE, {**ROPE, "window": 5}, {"position": "nope"}))


@pytest.fixture(scope="module")
def written(model: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub") / "written"
    minillm.hub.save(model, folder)
    return folder


@pytest.fixture
def folder(written: Path, tmp_path: Path) -> Path:
    """A fresh copy that a test may spoil."""
    return Path(shutil.copytree(written, tmp_path / "model"))


def change(folder: Path, edit: Callable[[State], State | None]) -> None:
    """Write the folder's tensors anew after `edit`."""
    state = safetensors.load_file(folder / WEIGHTS)
    safetensors.save_file(edit(state) or state, folder / WEIGHTS)


def configure(folder: Path, **values: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def shard(folder: Path) -> dict[str, str]:
    """Two files and an index, as large models have them; returns the map."""
    state = safetensors.load_file(folder / WEIGHTS)
    homes = {name: f"model-0000{1 + i % 2}-of-00002.safetensors" for i, name in enumerate(sorted(state))}
    for file in set(homes.values()):
        safetensors.save_file({n: t for n, t in state.items() if homes[n] == file}, folder / file)
    (folder / WEIGHTS).unlink()
    (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return homes


def same(a: Decoder, b: Decoder) -> bool:
    mine, other = a.state_dict(), b.state_dict()
    return mine.keys() == other.keys() and all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_folder_is_read_and_its_files_may_then_go(model: Decoder, folder: Path) -> None:
    back = minillm.hub.from_transformers(folder)
    shutil.rmtree(folder)
    assert same(back, model)
    assert not back.training
    assert all(p.requires_grad for p in back.parameters())


def test_several_shards_are_one_model(model: Decoder, folder: Path) -> None:
    shard(folder)
    assert same(minillm.hub.from_transformers(folder), model)


def test_names_without_the_prefix_of_the_whole_model_are_read(model: Decoder, folder: Path) -> None:
    change(folder, lambda state: {name.removeprefix("model."): tensor for name, tensor in state.items()})
    assert same(minillm.hub.from_transformers(folder), model)


def test_stored_rotary_frequencies_are_no_weights(model: Decoder, folder: Path) -> None:
    extra = {"model.rotary_emb.inv_freq": torch.ones(4), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}
    change(folder, lambda state: {**state, **extra})
    assert same(minillm.hub.from_transformers(folder), model)


@pytest.mark.bug("B123")
@pytest.mark.parametrize("under", ["its own name alone", "both names"])
def test_a_tied_head_is_found_wherever_it_is_stored(model: Decoder, folder: Path, under: str) -> None:
    def edit(state: State) -> None:
        state["lm_head.weight"] = state["model.embed_tokens.weight"].clone()
        if under == "its own name alone":
            del state["model.embed_tokens.weight"]

    change(folder, edit)
    assert same(minillm.hub.from_transformers(folder), model)


@pytest.mark.bug("B123")
def test_a_head_that_is_said_to_be_tied_and_differs_is_refused(folder: Path) -> None:
    change(folder, lambda state: {**state, "lm_head.weight": state["model.embed_tokens.weight"] + 1})
    with pytest.raises(MinillmError, match=r"ties the head to the embeddings, but lm_head.weight and .* differ"):
        minillm.hub.from_transformers(folder)


def spoil_missing(folder: Path) -> None:
    def edit(state: State) -> None:
        del state["model.layers.1.mlp.down_proj.weight"]

    change(folder, edit)


def spoil_surplus(folder: Path) -> None:
    change(folder, lambda state: {**state, "model.layers.0.self_attn.q_norm.weight": torch.ones(8)})


def spoil_shape(folder: Path) -> None:
    change(folder, lambda state: {**state, "model.norm.weight": torch.ones(7)})


def spoil_rows(folder: Path) -> None:
    change(folder, lambda state: {**state, "model.layers.2.self_attn.k_proj.weight": torch.ones(8, 24)})


def spoil_dtype(folder: Path) -> None:
    change(folder, lambda state: {**state, "model.norm.weight": torch.ones(24, dtype=torch.int8)})


def spoil_cut(folder: Path) -> None:
    file = folder / WEIGHTS
    file.write_bytes(file.read_bytes()[:-100])


def spoil_pickle(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "pytorch_model.bin")


def spoil_gguf(folder: Path) -> None:
    (folder / WEIGHTS).rename(folder / "model-q8.gguf")


def spoil_nothing(folder: Path) -> None:
    (folder / WEIGHTS).unlink()


def spoil_shard(folder: Path) -> None:
    (folder / sorted(set(shard(folder).values()))[1]).unlink()


def spoil_columns(folder: Path) -> None:
    change(folder, lambda state: {**state, "model.layers.2.self_attn.q_proj.weight": torch.ones(32, 25)})


def spoil_lacking(folder: Path) -> None:
    file = folder / shard(folder)["model.norm.weight"]
    state = safetensors.load_file(file)
    del state["model.norm.weight"]
    safetensors.save_file(state, file)


def spoil_two_names(folder: Path) -> None:
    change(folder, lambda state: {**state, "norm.weight": state["model.norm.weight"] + 1})


def spoil_deep(folder: Path) -> None:
    (folder / "config.json").write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")


def lead_out(target: str) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        homes = shard(folder)
        homes["model.norm.weight"] = target
        (folder / INDEX).write_text(json.dumps({"weight_map": homes}))

    return spoil


def spoil_index(folder: Path) -> None:
    shard(folder)
    (folder / INDEX).write_text("[]")


def spoil_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def spoil_no_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def spoil_adapter(folder: Path) -> None:
    (folder / "config.json").rename(folder / "adapter_config.json")


def spoil_type(folder: Path) -> None:
    configure(folder, model_type=None)


SPOILED: dict[str, tuple[Callable[[Path], None], str]] = {
    "a tensor is missing": (spoil_missing, "missing: model.layers.1.mlp.down_proj.weight"),
    "a tensor too many": (spoil_surplus, "not known: model.layers.0.self_attn.q_norm.weight"),
    "another shape": (spoil_shape, "model.norm.weight has the shape (7,), config.json says (24,)"),
    "other rows": (spoil_rows, "2.self_attn.k_proj.weight has the shape (8, 24), config.json says (16, 24)"),
    "other columns": (spoil_columns, "model.layers.2.self_attn.q_proj.weight has the shape (32, 25)"),
    "a shard without a tensor of it": (spoil_lacking, "safetensors: model.norm.weight cannot be read from it"),
    "two values of one tensor": (spoil_two_names, "are names of one tensor, and differ"),
    "a name too long": (lead_out("m" * 300 + ".safetensors"), "is missing"),
    "a name that is none": (lead_out("m\0.safetensors"), "is missing"),
    "JSON too deep": (spoil_deep, "config.json cannot be read: maximum recursion depth"),
    "whole numbers": (spoil_dtype, "quantised"),
    "a file cut short": (spoil_cut, "is not a whole safetensors file"),
    "a pickle": (spoil_pickle, "only pytorch_model.bin. Such files are pickles"),
    "GGUF": (spoil_gguf, "convert-gguf FILE OUT"),
    "no weights": (spoil_nothing, "holds no weights"),
    "a shard is missing": (spoil_shard, "model-00002-of-00002.safetensors is missing"),
    "a path upwards": (lead_out("../other.safetensors"), "is said to lie in '../other.safetensors'"),
    "an absolute path": (lead_out("/tmp/other.safetensors"), "is said to lie in '/tmp/other.safetensors'"),
    "a pickled shard": (lead_out("other.bin"), "a .safetensors file of the folder itself"),
    "an index of another form": (spoil_index, "expected `weight_map`"),
    "broken JSON": (spoil_config, "config.json cannot be read"),
    "no config.json": (spoil_no_config, "it holds no config.json"),
    "an adapter": (spoil_adapter, "holds an adapter"),
    "no model_type": (spoil_type, "expected a mapping with `model_type`"),
}


@pytest.mark.parametrize("what", SPOILED)
def test_a_damaged_folder_is_refused_by_name(what: str, folder: Path) -> None:
    spoil, words = SPOILED[what]
    spoil(folder)
    with pytest.raises(MinillmError) as error:
        minillm.hub.from_transformers(folder)
    assert words in str(error.value)
    assert str(folder) in str(error.value)


def test_a_name_on_the_hub_is_not_looked_up() -> None:
    with pytest.raises(MinillmError, match=r"There is no folder some/model.*download it"):
        minillm.hub.from_transformers("some/model")


def test_code_in_a_folder_is_not_run(model: Decoder, folder: Path) -> None:
    configure(folder, auto_map={"AutoModelForCausalLM": "code.Model", "AutoConfig": "code.Config"})
    (folder / "code.py").write_text(f"open({str(folder / 'ran')!r}, 'w')\n")
    assert same(minillm.hub.from_transformers(folder), model)
    configure(folder, model_type="something_new")
    with pytest.raises(MinillmError, match=r"config.json: model_type = 'something_new'"):
        minillm.hub.from_transformers(folder)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("path", ["m" * 300, "m\0", "~nobody-of-this-name/m"])
def test_a_path_that_cannot_be_is_refused(path: str) -> None:
    with pytest.raises(MinillmError):
        minillm.hub.from_transformers(path)


def test_two_names_for_the_same_bits_are_one_tensor(model: Decoder, folder: Path) -> None:
    change(folder, lambda state: {**state, "norm.weight": state["model.norm.weight"].clone()})
    assert same(minillm.hub.from_transformers(folder), model)
    change(folder, lambda state: {**state, "norm.weight": state["model.norm.weight"].double()})
    with pytest.raises(MinillmError, match="names of one tensor, and differ"):
        minillm.hub.from_transformers(folder)


@pytest.mark.parametrize("dtypes", [("bfloat16", "float16"), ("float64", "float16"), ("float8_e4m3fn", "float32")])
def test_parts_of_one_matrix_in_two_types_become_float32(dtypes: tuple[str, str], folder: Path) -> None:
    def edit(state: State) -> State:
        for part, dtype in zip("qk", dtypes, strict=True):
            name = f"model.layers.0.self_attn.{part}_proj.weight"
            state[name] = state[name].to(getattr(torch, dtype))
        return state

    change(folder, edit)
    parts = safetensors.load_file(folder / WEIGHTS)
    joined = [parts[f"model.layers.0.self_attn.{part}_proj.weight"].float() for part in "qkv"]
    ours = minillm.hub.from_transformers(folder).state_dict()["layers.0.attention.qkv_proj.weight"]
    assert torch.equal(ours, torch.cat(joined))


def test_weights_of_two_kinds_become_float32(folder: Path) -> None:
    change(folder, lambda state: {n: t.bfloat16() if "proj" in n else t for n, t in state.items()})
    assert {p.dtype for p in minillm.hub.from_transformers(folder).parameters()} == {torch.float32}
