"""from_transformers, to_transformers and load: models and tokenizers in and out of this process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError, MinillmError
from minillm.hub.choose import choose
from minillm.hub.convert import build, tensors_of
from minillm.hub.family import Family
from minillm.hub.family import family as family_of
from minillm.hub.folder import Tensors, read_config
from minillm.hub.plan import Plan
from minillm.hub.reader import Reader
from minillm.model.decoder import Decoder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from minillm.data.tokenizer import Tokenizer


def read_plan(
    source: str | Path | Mapping[str, Any], text_only: bool = False
) -> tuple[Family, ModelConfig, tuple[str, ...]]:
    """Family, configuration and warnings of a folder or a config.json, or of its content; weights are not looked at.

    `text_only` takes the text part of a multimodal model, which is refused otherwise.
    """
    found, values, where = _family_of(source, text_only)
    return found, *found.read(values, where)


def plan_of(source: str | Path | Mapping[str, Any], text_only: bool = False) -> Plan:
    """The same as the plain values that a person would write in YAML."""
    found, values, where = _family_of(source, text_only)
    return found.plan(Reader(values, where))


def _family_of(source: str | Path | Mapping[str, Any], text_only: bool) -> tuple[Family, Mapping[str, Any], str]:
    """The family, the keys of its language model, and how messages call their source."""
    if isinstance(source, Mapping):
        values, where = source, "config.json"
    else:
        values = read_config(source)
        where = str(Path(source) / "config.json" if Path(source).is_dir() else source)
    found = family_of(values.get("model_type", ""), f"{where}: model_type")
    return found, found.text_part(values, where, text_only), where


def from_transformers(
    source: str | Path | PreTrainedModel, *, dtype: torch.dtype | None = None, text_only: bool = False
) -> Decoder:
    """A Decoder with the weights of a Hugging Face folder or of a model of transformers; eval mode, on the CPU.

    Args:
        source: a folder with config.json and safetensors, or a loaded model. Of a folder, no code is run.
        dtype: of the weights. None keeps the stored one: a bfloat16 folder gives a bfloat16 model, and goes out again
            with identical bits. For logits as exact as may be, or to train, ask for torch.float32.
        text_only: take the text part of a multimodal model, which is refused otherwise.

    Raises:
        MinillmError: the model is beyond this project, or the folder is damaged; the message names key or tensor.
    """
    if isinstance(source, (str, Path)):
        found, model, _ = read_plan(source, text_only)
        return build(found, model, Tensors(source), str(source), dtype)
    values, where = source.config.to_dict(), f"this {type(source).__name__}"
    found, model, _ = read_plan(values, text_only)
    state = {name: tensor.detach().cpu() for name, tensor in source.state_dict().items()}
    return build(found, model, state, where, dtype)


def to_transformers(model: Decoder, family: str | None = None) -> PreTrainedModel:
    """A model of transformers that computes the same; eval mode, its own copy of the weights.

    Args:
        family: force one (`python -m minillm.hub families`); None takes the plainest that says the plan exactly.

    Raises:
        MinillmError: none does; the message says for each, layer by layer, why.
    """
    transformers = need_transformers()
    from transformers.initialization import no_init_weights

    found = choose(model.config, family)
    values = found.write(model.config)
    weights = tensors_of(found, model)
    config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
    # Whatever it would draw is overwritten: time, and the caller's generator, are spared.
    with torch.random.fork_rng(devices=[]), no_init_weights():
        made = transformers.AutoModelForCausalLM.from_config(config, dtype=model.embed_tokens.weight.dtype)
    known = made.state_dict().keys()
    # A release may know a tensor by its older name, that of files.
    names = {name: name if name in known else found.file_name(name) for name in (*weights, found.head)}
    state = {names[name]: tensor.cpu() for name, tensor in weights.items()}
    if model.config.block.tie_word_embeddings and names[found.head] in known:
        state[names[found.head]] = state[found.embedding]
    made.load_state_dict(state, strict=True)
    made.tie_weights()
    return made.eval()


def need_transformers() -> Any:
    """The transformers package, or an error that says how to have it."""
    try:
        import transformers
    except ImportError:
        raise MinillmError(
            "This needs transformers, which is not installed: pip install 'minillm[hf]'. Folders are read and written "
            "without it: minillm.hub.from_transformers(FOLDER), python -m minillm.hub export RUN OUT."
        ) from None
    return transformers


def load(folder: str | Path, *, dtype: torch.dtype | None = None, text_only: bool = False) -> tuple[Decoder, Tokenizer]:
    """Model and tokenizer of a Hugging Face folder, as `minillm.load` gives them for a run."""
    return from_transformers(folder, dtype=dtype, text_only=text_only), load_tokenizer(folder)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer.json of a folder. What begins a document is its `bos_token`, else its `eos_token`."""
    from minillm.data.tokenizer import Tokenizer

    folder = Path(folder)
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise MinillmError(
            f"{folder} holds no tokenizer.json. transformers writes one: "
            f"AutoTokenizer.from_pretrained({str(folder)!r}).save_pretrained(OUT)."
        )
    try:
        return Tokenizer.load(file)
    except ConfigError:
        raise
    except MinillmError:
        marker = _marker(folder)
        if marker is None:
            raise
        return Tokenizer.load(file, marker)


def _marker(folder: Path) -> str | None:
    try:
        values = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    if not isinstance(values, dict):
        return None
    for key in ("bos_token", "eos_token"):
        token = values.get(key)
        token = token.get("content") if isinstance(token, dict) else token
        if isinstance(token, str):
            return token
    return None
