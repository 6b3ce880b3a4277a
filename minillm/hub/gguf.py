"""GGUF in: a Llama-type model with its tokenizer as a Hugging Face folder (`python -m minillm.hub convert-gguf`).

The weights are the dequantised ones, in float32: what llama.cpp computes with, not what was trained. Needs the package
`gguf`, which reads the container and knows the quantised formats. Two traps: rows of q and k are stored in the order
of interleaved rotary pairs, and the tokenizer's way of splitting text is not in the file but behind a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from minillm.errors import MinillmError
from minillm.hub.family import family
from minillm.hub.reader import Reader
from minillm.hub.runs import claim, vacant, write_json, write_model, writing
from minillm.model.decoder import build_model

INSIDE = {
    "attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj",
}  # fmt: skip
OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
CONTROL, USER_DEFINED = 3, 4
"""`tokenizer.ggml.token_type`s (llama.cpp, llama_token_type)."""


def convert(file: str | Path, out: str | Path, tokenizer: bool = True) -> None:
    """Write the GGUF `file` as a Hugging Face folder of the family llama, tokenizer.json included.

    Raises:
        MinillmError: it is no such file or a damaged one, it describes what Llama's class does not compute, or its
            tokenizer is not a byte-level BPE whose split is known here (`tokenizer=False` leaves that out). Nothing
            is written then.
    """
    where, out = str(file), Path(out)
    fields, tensors = _read(Path(file).expanduser())
    config = _config(fields, {tensor.name for tensor in tensors}, where)
    _check_tensors(config, tensors, where)
    text = _tokenizer(fields, config["max_position_embeddings"], where) if tokenizer else None
    vacant(out)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    state = {}
    for tensor in tensors:
        name, part = _name(tensor.name, where)
        values = _dequantised(tensor, where)
        state[name] = torch.from_numpy(half_split(values, heads[part]) if part in heads else values)
    claim(out)
    if text is not None:
        made, settings = text
        with writing(out):
            made.save(str(out / "tokenizer.json"))
            write_json(out / "tokenizer_config.json", settings)
    ids = {f"{name}_token_id": fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos")}
    write_model(out, {**config, **ids}, ids, state)


def half_split(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k, (heads * K, ...), from pairs (2i, 2i + 1) to the pairs (i, i + K/2) of Llama's class."""
    pairs = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2).reshape(rows.shape))


def _read(file: Path) -> tuple[dict[str, Any], list[Any]]:
    """Metadata by key, and tensors."""
    try:
        from gguf import GGUFReader
    except ImportError:
        raise MinillmError("Reading GGUF needs the package gguf: pip install 'minillm[gguf]'.") from None
    if not file.is_file():
        raise MinillmError(f"There is no file {file}.")
    try:
        reader = GGUFReader(str(file))
        return {name: field.contents() for name, field in reader.fields.items()}, list(reader.tensors)
    except Exception as error:  # the package raises whatever it stumbles over
        raise MinillmError(f"{file} is not a whole GGUF file: {error}.") from None


def _config(fields: Mapping[str, Any], tensors: set[str], where: str) -> dict[str, Any]:
    """config.json. Every `llama.*` key is understood or refused by name."""
    architecture = fields.get("general.architecture")
    if architecture != "llama":
        raise MinillmError(f"{where}: general.architecture is {architecture!r}; only 'llama' is converted here.")
    prefix = "llama."
    given = Reader({k.removeprefix(prefix): v for k, v in fields.items() if k.startswith(prefix)}, f"{where}: llama")

    def number(name: str, default: int | None = None) -> int:
        value = given.size(name, default)
        if value is None:
            raise given.error(name, "missing")
        return int(value)

    width, heads = number("embedding_length"), number("attention.head_count")
    head_dim = number("attention.key_length", width // heads)
    given.only("attention.value_length", head_dim, head_dim)
    given.only("rope.dimension_count", head_dim, head_dim)
    given.only("rope.scaling.type", "none", "none")
    given.only("attention.causal", True, True)
    tokens = fields.get("tokenizer.ggml.tokens")
    vocab = number("vocab_size", len(tokens) if isinstance(tokens, list) and tokens else None)
    values = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocab,
        "hidden_size": width,
        "intermediate_size": number("feed_forward_length"),
        "num_hidden_layers": number("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": number("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": number("context_length"),
        "hidden_act": "silu",
        "rms_norm_eps": _shortest(given.take("attention.layer_norm_rms_epsilon", float, 1e-5)),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": _shortest(given.take("rope.freq_base", float, 10000.0)),
        },
        "attention_bias": _biased("attn", tensors),
        "mlp_bias": _biased("ffn", tensors),
        "tie_word_embeddings": "output.weight" not in tensors,
        "dtype": "float32",
    }
    given.finish()
    return values


def _biased(stem: str, tensors: set[str]) -> bool:
    return any(name.endswith(".bias") and f".{stem}_" in name for name in tensors)


def _check_tensors(config: Mapping[str, Any], tensors: Sequence[Any], where: str) -> None:
    """The file holds each tensor of such a model once, in its shape, and no others."""
    llama = family("llama")
    model, _ = llama.read(config, where)
    ours = build_model(model, device="meta").state_dict()
    shapes = {
        name: tuple(part.shape)
        for link in llama.links(model)
        for name, part in zip(link.theirs, link.to_theirs(ours[link.ours]), strict=True)
    }
    found: dict[str, str] = {}
    for tensor in tensors:
        name, _ = _name(tensor.name, where)
        if name not in shapes:
            raise MinillmError(f"{where}: tensor {tensor.name} is not one of the model that its metadata describe.")
        if name in found:
            raise MinillmError(f"{where}: tensor {tensor.name} is there twice.")
        found[name] = tensor.name
        shape = tuple(int(n) for n in reversed(tensor.shape))  # stored fastest first
        if shape != shapes[name]:
            raise MinillmError(f"{where}: tensor {tensor.name} has the shape {shape}, its metadata say {shapes[name]}.")
    missing = [name for name in shapes if name not in found]
    if not missing:
        return
    if all(name.endswith("o_proj.bias") for name in missing):
        raise MinillmError(
            f"{where}: biases of attn_q, attn_k and attn_v without one of attn_output: llama has all four or none."
        )
    more = f" and {len(missing) - 6} more" if len(missing) > 6 else ""
    raise MinillmError(f"{where}: what becomes {', '.join(missing[:6])}{more} is missing. Is the file complete?")


def _shortest(value: float) -> float:
    """The shortest decimal that is this float32: 1e-05 for 9.999999747378752e-06."""
    return float(str(np.float32(value)))


def _name(name: str, where: str) -> tuple[str, str]:
    """A tensor's name in Llama's files, and its name inside a layer in GGUF's."""
    stem, _, kind = name.rpartition(".")
    if stem in OUTSIDE and kind == "weight":
        return f"{OUTSIDE[stem]}.weight", stem
    parts = stem.split(".")
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in INSIDE and kind in ("weight", "bias"):
        return f"model.layers.{parts[1]}.{INSIDE[parts[2]]}.{kind}", parts[2]
    what = ", which scales the rotation (Llama 3)" if stem == "rope_freqs" else ""
    raise MinillmError(f"{where}: tensor {name}{what} is not known here; llama has nowhere to put it.")


def _dequantised(tensor: Any, where: str) -> np.ndarray:
    from gguf.quants import dequantize

    try:
        values = dequantize(tensor.data, tensor.tensor_type)
    except NotImplementedError as error:
        raise MinillmError(f"{where}: tensor {tensor.name}: {error}. Is there a newer version of gguf?") from None
    except Exception as error:  # a type that is no number, blocks that do not fill a row
        raise MinillmError(f"{where}: tensor {tensor.name} cannot be read: {error}.") from None
    return np.array(values, dtype=np.float32)


# ---- the tokenizer ---------------------------------------------------------------------------------------------------


def _byte_level() -> Any:
    from tokenizers.pre_tokenizers import ByteLevel

    return ByteLevel(add_prefix_space=False)


def _digits_apart() -> Any:
    """SmolLM's: each digit is a token, which the file does not say and transformers' own converter leaves out."""
    from tokenizers.pre_tokenizers import Digits, Sequence

    return Sequence([Digits(individual_digits=True), _byte_level()])


SPLITS: dict[str, Callable[[], Any]] = {
    "default": _byte_level, "gpt-2": _byte_level, "smollm": _digits_apart,
}  # fmt: skip
"""`tokenizer.ggml.pre`, and how it splits a text into words (llama.cpp, src/llama-vocab.cpp)."""

ALONE = "tokenizer=False (--no-tokenizer) converts the weights alone."


def _tokenizer(fields: Mapping[str, Any], length: int, where: str) -> tuple[Any, dict[str, Any]]:
    """A `tokenizers.Tokenizer`, and tokenizer_config.json."""
    kind, split = fields.get("tokenizer.ggml.model"), fields.get("tokenizer.ggml.pre", "default")
    if kind != "gpt2" or not isinstance(split, str) or split not in SPLITS:
        raise MinillmError(
            f"{where}: its tokenizer ({kind!r}, split {split!r}) is not converted here. Known: 'gpt2' with the splits "
            f"{', '.join(map(repr, SPLITS))}. {ALONE}"
        )
    for name in ("tokens", "merges"):
        if not isinstance(fields.get(f"tokenizer.ggml.{name}"), list):
            raise MinillmError(f"{where}: tokenizer.ggml.{name}, a list, is missing. {ALONE}")
    import tokenizers  # noqa: F401  # where it is missing, the file is not to blame

    try:
        return _made(fields, split), _tokenizer_config(fields, length)
    except Exception as error:  # the package raises the bare class; ids and merges may be of other tokens
        raise MinillmError(f"{where}: its tokenizer is damaged: {type(error).__name__}: {error}. {ALONE}") from None


def _made(fields: Mapping[str, Any], split: str) -> Any:
    from tokenizers import AddedToken, Tokenizer, decoders, models

    tokens = fields["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    made = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    made.pre_tokenizer = SPLITS[split]()
    made.decoder = decoders.ByteLevel()
    types = fields.get("tokenizer.ggml.token_type") or [1] * len(tokens)
    for token, sort in zip(tokens, types, strict=True):
        if sort == CONTROL:
            made.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif sort == USER_DEFINED:
            made.add_tokens([AddedToken(token, normalized=False)])
    if fields.get("tokenizer.ggml.add_bos_token"):
        from tokenizers.processors import TemplateProcessing

        first = fields["tokenizer.ggml.bos_token_id"]
        made.post_processor = TemplateProcessing(single=[tokens[first], "$A"], special_tokens=[(tokens[first], first)])
    return made


def _tokenizer_config(fields: Mapping[str, Any], length: int) -> dict[str, Any]:
    tokens = fields["tokenizer.ggml.tokens"]
    out: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": length,
        "clean_up_tokenization_spaces": False,
    }
    for ours, theirs in {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}.items():
        index = fields.get(f"tokenizer.ggml.{theirs}_token_id")
        if index is not None:
            if not 0 <= index < len(tokens):
                raise ValueError(f"tokenizer.ggml.{theirs}_token_id = {index}, and there are {len(tokens)} tokens")
            out[f"{ours}_token"] = tokens[index]
    if "tokenizer.chat_template" in fields:
        out["chat_template"] = fields["tokenizer.chat_template"]
    return out
