"""Folders and runs: a model written as a Hugging Face folder, a run as one, and a folder as a run."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minillm.errors import MinillmError
from minillm.hub.choose import NoFamily, choose
from minillm.hub.convert import tensors_of
from minillm.hub.family import Family
from minillm.hub.folder import INDEX, WEIGHTS
from minillm.model.decoder import Decoder

if TYPE_CHECKING:
    from minillm.config.schema import Config
    from minillm.data.tokenizer import Tokenizer


def save(model: Decoder, out: str | Path, tokenizer: Tokenizer | None = None, family: str | None = None) -> Family:
    """Write `model` as a Hugging Face folder that transformers loads, and return the family chosen.

    Needs safetensors alone. The marker of `tokenizer`, which begins each document and so ends the one before, becomes
    bos and eos.
    """
    found = choose(model.config, family)
    values = found.write(model.config)
    weights = {found.file_name(name): part.cpu().contiguous() for name, part in tensors_of(found, model).items()}
    values["dtype"] = str(model.embed_tokens.weight.dtype).removeprefix("torch.")
    ids = {} if tokenizer is None else {"bos_token_id": tokenizer.bos_id, "eos_token_id": tokenizer.bos_id}
    out = Path(out)
    claim(out)
    if tokenizer is not None:
        write_tokenizer(tokenizer, out, model.config.max_position_embeddings)
    write_model(out, {**values, **ids}, ids, weights)
    return found


def claim(out: Path) -> None:
    """Make the folder `out`, in which there must be no model so far."""
    vacant(out)
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)


def vacant(out: Path) -> None:
    """An error where the folder `out` holds a model."""
    with writing(out):
        taken = (out / INDEX).exists() or any(out.glob("*.safetensors"))
    if taken:
        raise MinillmError(f"{out} holds a model already. Give another folder, or remove it first.")


@contextlib.contextmanager
def writing(out: Path) -> Iterator[None]:
    """What stops the writing of a folder is told as an error of the user's: no such place, no right to it, no room."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise MinillmError(f"{out} cannot be written: {error}.") from None


def write_model(out: Path, config: Mapping[str, Any], ids: Mapping[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """config.json, generation_config.json with the `ids` of markers, and last the weights: with them it is whole."""
    from safetensors.torch import save_file

    temporary = out / f".{WEIGHTS}.{os.getpid()}.tmp"
    with writing(out):
        save_file({name: _own(tensor) for name, tensor in weights.items()}, temporary, metadata={"format": "pt"})
        write_json(out / "config.json", config)
        write_json(out / "generation_config.json", {"_from_model_config": True, **ids})
        temporary.chmod((out / "config.json").stat().st_mode)  # the library lets nobody else read it
        temporary.replace(out / WEIGHTS)


def _own(tensor: torch.Tensor) -> torch.Tensor:
    """Tensors that are views of one another are written apart."""
    whole = tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    return tensor if whole else tensor.clone()


def write_tokenizer(tokenizer: Tokenizer, out: Path, length: int) -> None:
    """tokenizer.json and tokenizer_config.json, so that AutoTokenizer encodes as ours does with its marker first."""
    with writing(out):
        tokenizer.save(out / "tokenizer.json")
    marker = tokenizer.bos_token
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": marker,
        "eos_token": marker,
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # a marker spelt out in a text is text
    }
    with writing(out):
        write_json(out / "tokenizer_config.json", settings)


def write_json(file: Path, values: Mapping[str, Any]) -> None:
    file.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")


def export(run: str | Path, out: str | Path, family: str | None = None) -> Family:
    """A run folder or checkpoint as a Hugging Face folder, tokenizer included; returns the family that was written.

    Without `family` that is the plainest that says the plan exactly, and where none does this project's own form.
    """
    from minillm.checkpoint import load as load_run

    model, tokenizer = load_run(run)
    try:
        return save(model, out, tokenizer, family)
    except NoFamily:
        return save(model, out, tokenizer, "minillm")


def import_run(folder: str | Path, out: str | Path, text_only: bool = False) -> Decoder:
    """A Hugging Face folder as a run folder at step 0, which minillm.load and eval.py take like any other.

    What is no part of the model (data, optimiser, ...) has the values of a new run. To train from the weights, begin
    a run with `init_from=FOLDER` instead.
    """
    from minillm.hub.api import load
    from minillm.training.checkpoint_io import write_checkpoint
    from minillm.training.run_folder import RunFolder
    from minillm.training.state import beginning

    run = RunFolder(out)
    if run.holds_a_run():
        raise MinillmError(f"{out} holds a run already. Give another folder.")
    model, tokenizer = load(folder, text_only=text_only)
    cfg = run_config(folder, run.tokenizer, tokenizer.bos_token, str(Path(out)), text_only)
    with writing(run.path):
        run.path.mkdir(parents=True, exist_ok=True)
        run.write(cfg, tokenizer)
    write_checkpoint(run.checkpoints, beginning(cfg, model.state_dict(), tokenizer.to_json()), keep=None)
    return model


def run_config(
    folder: str | Path, tokenizer: Path, bos_token: str, run_dir: str | None = None, text_only: bool = False
) -> Config:
    """The configuration of a run that has the folder's model; what is no part of the model is as in a new run.

    `tokenizer` is the tokenizer.json that such a run has.
    """
    from minillm.config.compose import compose
    from minillm.config.parse import parse_config
    from minillm.hub.api import plan_of

    plan = plan_of(folder, text_only).plain()
    length = plan["max_position_embeddings"]
    plain = copy.deepcopy(compose([], warn=False).plain)
    plain["run_dir"] = run_dir
    plain["model"] |= {
        "vocab_size": plan["vocab_size"], "embedding": plan["embedding"], "layers": plan["layers"], "attention": {},
    }  # fmt: skip
    plain["size"] = {**plan["size"], "seq_len": length, "window": length}
    plain["block"] = plan["block"]
    plain["data"]["seq_len"] = length
    plain["tokenizer"] = {"source": "file", "path": str(tokenizer), "bos_token": bos_token}
    plain["choices"] = {"model": Path(folder).name}
    cfg = parse_config(plain)
    windows = {spec.window for spec in cfg.model.layers if spec.window is not None}
    plain["size"]["window"] = min(windows, default=length)
    plain["block"] = dataclasses.asdict(cfg.model.block)
    return parse_config(plain)
