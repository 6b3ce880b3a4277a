"""GGUF files of tiny Llama-type models become folders that compute what the model did, with its tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import minillm
from minillm.data.tokenizer import Tokenizer
from minillm.errors import MinillmError
from minillm.hub.__main__ import main
from minillm.hub.gguf import INSIDE, OUTSIDE, convert, half_split
from tests.hub.models import enlarge, ids

gguf = pytest.importorskip("gguf")
transformers = pytest.importorskip("transformers")

HEADS, GROUPS, WIDTH, HIDDEN, DEPTH, VOCAB = 6, 2, 32, 96, 3, 41
TEXT = "In 1789 and 1801, 12 states & more: été"
TOKENS = ["<|endoftext|>", "<|im_start|>", *(chr(c) for c in range(33, 127)), "Ġ", "1", "17", "178", "th"]


def llama(**more: Any) -> Any:
    """Random weights; a head is WIDTH wide, which is not HIDDEN / HEADS."""
    config = transformers.LlamaConfig(
        vocab_size=VOCAB, hidden_size=HIDDEN, intermediate_size=64, num_hidden_layers=DEPTH, num_attention_heads=HEADS,
        num_key_value_heads=GROUPS, head_dim=WIDTH, max_position_embeddings=64, rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0}, bos_token_id=0, eos_token_id=0, **more,
    )  # fmt: skip
    return enlarge(transformers.LlamaForCausalLM(config))


def interleaved(rows: np.ndarray, heads: int) -> np.ndarray:
    """Row by row, by the definition: of a head's K rows, row 2i is row i of the other order and 2i + 1 is i + K/2."""
    out, width = np.empty_like(rows), len(rows) // heads
    for head in range(heads):
        for i in range(width // 2):
            out[head * width + 2 * i] = rows[head * width + i]
            out[head * width + 2 * i + 1] = rows[head * width + width // 2 + i]
    return out


def metadata() -> dict[str, Any]:
    return {
        "block_count": DEPTH, "context_length": 64, "embedding_length": HIDDEN, "feed_forward_length": 64,
        "attention.head_count": HEADS, "attention.head_count_kv": GROUPS, "attention.key_length": WIDTH,
        "attention.value_length": WIDTH, "rope.dimension_count": WIDTH, "rope.freq_base": 500.0,
        "attention.layer_norm_rms_epsilon": 1e-5, "vocab_size": VOCAB,
    }  # fmt: skip


def write(
    file: Path,
    model: Any,
    architecture: str = "llama",
    extra: tuple[str, ...] = (),
    quantised: Any = None,
    shapes: dict[str, tuple[int, ...] | None] | None = None,
    **more: Any,
) -> Path:
    """`model` as llama.cpp's converter stores it; `more` are metadata, and `shapes` tensors of their own: None is none.

    Metadata of None are left out.
    """
    writer = gguf.GGUFWriter(str(file), architecture)
    values = {f"{architecture}.{k}": v for k, v in metadata().items()}
    values |= {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm", "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [3, 3] + [1] * (len(TOKENS) - 2), "tokenizer.ggml.merges": ["1 7", "17 8", "t h"],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 1, "tokenizer.chat_template": "{{ x }}",
    }  # fmt: skip
    for key, value in {**values, **more}.items():
        if value is None:
            continue
        add: Callable[[str, Any], None] = {
            bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32, str: writer.add_string,
            list: writer.add_array,
        }[type(value)]  # fmt: skip
        add(key, value)
    names = {f"{theirs}.": f"{name}." for name, theirs in OUTSIDE.items()}
    inside = {f".{theirs}.": f".{name}." for name, theirs in INSIDE.items()}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        array = tensor.numpy()
        for part, heads in (("q_proj", HEADS), ("k_proj", GROUPS)):
            array = interleaved(array, heads) if part in name else array
        for theirs, stored in {**names, **inside}.items():
            name = name.replace(theirs, stored)
        name = name.replace("model.layers.", "blk.")
        if name in (shapes or {}):
            continue
        if quantised is not None and array.ndim == 2:
            writer.add_tensor(name, gguf.quants.quantize(array, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(name, array)
    for name, shape in (shapes or {}).items():
        if shape is not None:
            writer.add_tensor(name, np.ones(shape, dtype=np.float32))
    for name in extra:
        writer.add_tensor(name, np.ones(4, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file


@pytest.mark.parametrize("tied", [True, False])
@torch.no_grad()
def test_the_folder_computes_what_the_model_did(tied: bool, tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=tied)
    convert(write(tmp_path / "m.gguf", model), tmp_path / "out")
    ours = minillm.hub.from_transformers(tmp_path / "out")
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not any(report.values())
    assert theirs.config.tie_word_embeddings is tied
    before, after = model.state_dict(), theirs.state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)
    tokens = ids(2, 150)
    assert (ours(tokens) - model(tokens).logits).abs().max() < 1e-4


@torch.no_grad()
def test_quantised_weights_are_what_the_format_says(tmp_path: Path) -> None:
    model = llama()
    kind = gguf.GGMLQuantizationType.Q8_0
    convert(write(tmp_path / "m.gguf", model, quantised=kind), tmp_path / "out")
    got = minillm.hub.from_transformers(tmp_path / "out").state_dict()
    # Q8_0: blocks of 32, each a scale in half precision (largest / 127) and whole numbers.
    blocks = model.state_dict()["model.embed_tokens.weight"].reshape(-1, 32)
    scale = blocks.abs().amax(dim=1, keepdim=True) / 127
    expected = ((blocks / scale).round() * scale.half().float()).reshape(VOCAB, HIDDEN)
    assert (got["embed_tokens.weight"] - expected).abs().max() < 1e-6
    assert torch.equal(got["norm.weight"], model.state_dict()["model.norm.weight"])


def test_rows_come_back_from_the_interleaved_order_of_each_head() -> None:
    rows = np.arange(24 * 3, dtype=np.float32).reshape(24, 3)
    assert np.array_equal(half_split(interleaved(rows, 3), 3), rows)
    assert np.array_equal(half_split(interleaved(rows[:, 0], 3), 3), rows[:, 0])
    assert half_split(np.arange(6), 1).tolist() == [0, 2, 4, 1, 3, 5]


# ---- tokenizers ------------------------------------------------------------------------------------------------------


def pieces(folder: Path, text: str) -> list[str]:
    made = transformers.AutoTokenizer.from_pretrained(folder)
    return list(made.convert_ids_to_tokens(made(text, add_special_tokens=False)["input_ids"]))


def test_the_split_is_the_one_that_the_file_names(tmp_path: Path) -> None:
    model = llama()
    for split, expected in {"smollm": ["1", "7", "8"], "gpt-2": ["178"]}.items():
        convert(write(tmp_path / f"{split}.gguf", model, **{"tokenizer.ggml.pre": split}), tmp_path / split)
        assert pieces(tmp_path / split, "178") == expected


def test_special_tokens_markers_and_chat_template_are_kept(tmp_path: Path) -> None:
    convert(write(tmp_path / "m.gguf", llama(), **{"tokenizer.ggml.add_bos_token": True}), tmp_path / "out")
    made = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (made.bos_token, made.eos_token, made.chat_template) == ("<|endoftext|>", "<|im_start|>", "{{ x }}")
    assert made("th<|im_start|>th")["input_ids"] == [0, TOKENS.index("th"), 1, TOKENS.index("th")]
    assert made.decode(made("Th at!", add_special_tokens=False)["input_ids"]) == "Th at!"
    ours = minillm.hub.load_tokenizer(tmp_path / "out")
    assert isinstance(ours, Tokenizer)
    assert ours.bos_token == "<|endoftext|>"
    assert ours.encode("th") == [TOKENS.index("th")]
    written = json.loads((tmp_path / "out" / "config.json").read_text())
    assert (written["bos_token_id"], written["eos_token_id"]) == (0, 1)
    assert written["rms_norm_eps"] == 1e-5, "not the float32 nearest to it, written out"


# ---- refusals --------------------------------------------------------------------------------------------------------

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another architecture": ({"architecture": "gemma3"}, "general.architecture is 'gemma3'"),
    "experts": ({"llama.expert_count": 8}, "llama: expert_count = 8: this is a mixture of experts"),
    "a scaled rotation": ({"llama.rope.scaling.type": "yarn"}, "rope.scaling.type = 'yarn'"),
    "factors of the rotation": ({"extra": ("rope_freqs.weight",)}, "rope_freqs.weight, which scales the rotation"),
    "part of a head rotated": ({"llama.rope.dimension_count": 16}, "rope.dimension_count = 16: allowed: 32"),
    "values of another width": ({"llama.attention.value_length": 16}, "attention.value_length = 16"),
    "another tensor": ({"extra": ("blk.0.attn_q_norm.weight",)}, "tensor blk.0.attn_q_norm.weight is not known"),
    "a tensor that is missing": (
        {"shapes": {"output_norm.weight": None}},
        "what becomes model.norm.weight is missing",
    ),
    "a tensor of another shape": (
        {"shapes": {"blk.1.attn_q.weight": (96, 96)}},
        "tensor blk.1.attn_q.weight has the shape (96, 96), its metadata say (192, 96)",
    ),
    "queries of an odd number of rows": ({"shapes": {"blk.1.attn_q.weight": (193, 96)}}, "has the shape (193, 96)"),
    "a norm of another width": ({"shapes": {"blk.0.attn_norm.weight": (95,)}}, "has the shape (95,)"),
    "a layer too many": ({"shapes": {"blk.7.attn_q.weight": (192, 96)}}, "tensor blk.7.attn_q.weight is not one of"),
    "a layer that is no number": ({"shapes": {"blk.x.attn_q.weight": (192, 96)}}, "blk.x.attn_q.weight is not one of"),
    "biases of q, k and v alone": (
        {
            "shapes": {
                f"blk.{i}.attn_{part}.bias": (heads * WIDTH,)
                for i in range(DEPTH)
                for part, heads in (("q", HEADS), ("k", GROUPS), ("v", GROUPS))
            }
        },
        "biases of attn_q, attn_k and attn_v without one of attn_output",
    ),
    "a bias of one layer": ({"shapes": {"blk.1.attn_q.bias": (192,)}}, "model.layers.0.self_attn.q_proj.bias"),
    "no heads": ({"llama.attention.head_count": 0}, "attention.head_count = 0: allowed"),
    "no layers": ({"llama.block_count": 0}, "block_count = 0: allowed"),
    "heads that are no multiple": ({"llama.attention.head_count_kv": 4}, "num_key_value_heads = 4"),
    "attention to later tokens": ({"llama.attention.causal": False}, "attention.causal = False"),
    "no merges": ({"tokenizer.ggml.merges": None}, "tokenizer.ggml.merges, a list, is missing"),
    "no tokens": ({"tokenizer.ggml.tokens": None}, "tokenizer.ggml.tokens, a list, is missing"),
    "merges of other tokens": ({"tokenizer.ggml.merges": ["zz zz"]}, "its tokenizer is damaged"),
    "merges that are no pairs": ({"tokenizer.ggml.merges": ["t"]}, "its tokenizer is damaged"),
    "a marker beyond the tokens": ({"tokenizer.ggml.eos_token_id": 999}, "eos_token_id = 999, and there are"),
    "too few token types": ({"tokenizer.ggml.token_type": [1, 1]}, "its tokenizer is damaged"),
    "SentencePiece": ({"tokenizer.ggml.model": "llama"}, "its tokenizer ('llama'"),
    "an unknown split": ({"tokenizer.ggml.pre": "tekken"}, "split 'tekken') is not converted here"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_llama_does_not_compute_is_refused_by_name(
    what: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change, words = REFUSED[what]
    file = write(tmp_path / "m.gguf", llama(), **change)
    assert main(["convert-gguf", str(file), str(tmp_path / "out")]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@torch.no_grad()
def test_biases_of_all_four_projections_and_of_the_mlp_are_kept(tmp_path: Path) -> None:
    model = llama(attention_bias=True, mlp_bias=True)
    convert(write(tmp_path / "m.gguf", model), tmp_path / "out")
    tokens = ids(2, 90)
    assert (minillm.hub.from_transformers(tmp_path / "out")(tokens) - model(tokens).logits).abs().max() < 1e-4


def test_weights_alone_are_converted_on_request(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", llama(), **{"tokenizer.ggml.model": "llama"})
    assert main(["convert-gguf", str(file), str(tmp_path / "out"), "--no-tokenizer"]) == 0
    assert minillm.hub.from_transformers(tmp_path / "out").config.vocab_size == VOCAB
    assert not (tmp_path / "out" / "tokenizer.json").exists()


def test_a_folder_with_a_model_and_a_file_that_is_none_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "m.gguf", llama())
    convert(file, tmp_path / "out")
    with pytest.raises(MinillmError, match="holds a model already"):
        convert(file, tmp_path / "out")
    (tmp_path / "half.gguf").write_bytes(file.read_bytes()[:1000])
    with pytest.raises(MinillmError, match="not a whole GGUF file"):
        convert(tmp_path / "half.gguf", tmp_path / "new")
    with pytest.raises(MinillmError, match="There is no file"):
        convert(tmp_path / "none.gguf", tmp_path / "new")
