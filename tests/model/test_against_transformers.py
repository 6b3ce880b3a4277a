"""The five blocks against the models they are named after: random weights of `transformers`, loaded into a `Decoder`.

Windows are shorter than the text and the text is longer than the training length (but for GPT-2, whose table ends
there); norm weights are not uniform.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from minillm.config.expand import Heads
from minillm.config.schema import ModelConfig
from minillm.model.decoder import Decoder, build_model
from tests.model.small import LENGTH, VOCAB, config, enlarge, ids

transformers = pytest.importorskip("transformers")

HEADS = Heads(4, 2, 8)
WIDTH = 32
WINDOW = 5
COMMON = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
    "attn_implementation": "eager",
    "pad_token_id": None,
}
TYPES = ["sliding_attention"] * 3 + ["full_attention"]
State = dict[str, Tensor]


def rope(theta: float) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta}


def ours(*layers: dict[str, Any], name: str, **more: Any) -> ModelConfig:
    return config(*layers, name=name, heads=more.pop("heads", HEADS), hidden_size=WIDTH, **more)


# ---- pairs: their model, our plan, and where their norms stand ---------------------------------------------------

PRE = {"input_layernorm": "input_layernorm", "pre_feedforward_layernorm": "post_attention_layernorm"}
POST = {
    "post_attention_layernorm": "post_attention_layernorm",
    "post_feedforward_layernorm": "post_feedforward_layernorm",
}
SANDWICH = {"input_layernorm": "input_layernorm", "pre_feedforward_layernorm": "pre_feedforward_layernorm", **POST}


def llama() -> tuple[nn.Module, ModelConfig, dict[str, str]]:
    theirs = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**COMMON, head_dim=12, rope_parameters=rope(500.0), tie_word_embeddings=False)
    )
    plan = [{"position": {"theta": 500.0}}] * 4
    return theirs, ours(*plan, name="standard", heads=Heads(4, 2, 12), tie_word_embeddings=False), PRE


def cohere2() -> tuple[nn.Module, ModelConfig, dict[str, str]]:
    theirs = transformers.Cohere2ForCausalLM(
        transformers.Cohere2Config(
            **COMMON, rope_parameters=rope(500.0), sliding_window=WINDOW, layer_types=TYPES, logit_scale=0.25
        )
    )
    local = {"position": {"theta": 500.0, "layout": "interleaved"}, "window": WINDOW}
    return (
        theirs,
        ours(local, local, local, {"position": "nope"}, name="cohere2"),
        {"input_layernorm": "input_layernorm"},
    )


def gemma3() -> tuple[nn.Module, ModelConfig, dict[str, str]]:
    theirs = transformers.Gemma3ForCausalLM(
        transformers.Gemma3TextConfig(
            **COMMON, head_dim=8, sliding_window=WINDOW, layer_types=TYPES, query_pre_attn_scalar=8,
            rope_parameters={"sliding_attention": rope(100.0), "full_attention": rope(10000.0)},
        )
    )  # fmt: skip
    local = {"position": {"theta": 100.0}, "window": WINDOW, "qk_norm": "rms"}
    full = {"position": {"theta": 10000.0}, "qk_norm": "rms"}
    return theirs, ours(local, local, local, full, name="gemma3"), SANDWICH


def olmo2() -> tuple[nn.Module, ModelConfig, dict[str, str]]:
    theirs = transformers.Olmo2ForCausalLM(
        transformers.Olmo2Config(**COMMON, rope_parameters=rope(500.0), rms_norm_eps=1e-6)
    )
    plan = [{"position": {"theta": 500.0}, "qk_norm": {"type": "rms", "over": "full"}}] * 4
    return theirs, ours(*plan, name="olmo2"), POST


def gpt2() -> tuple[nn.Module, ModelConfig, dict[str, str]]:
    theirs = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=VOCAB, n_embd=WIDTH, n_layer=4, n_head=4, n_inner=40, n_positions=LENGTH,
            attn_implementation="eager",
        )
    )  # fmt: skip
    plan = [{"position": "nope"}] * 4
    return theirs, ours(*plan, name="gpt2", embedding="learned", heads=Heads(4, 4, 8)), {}


def from_llama_like(state: State, norms: dict[str, str], made: ModelConfig) -> State:
    out = {"embed_tokens.weight": state["model.embed_tokens.weight"], "norm.weight": state["model.norm.weight"]}
    if not made.block.tie_word_embeddings:
        out["lm_head.weight"] = state["lm_head.weight"]
    for i in range(4):
        mine, their = f"layers.{i}.", f"model.layers.{i}."
        out[f"{mine}attention.qkv_proj.weight"] = torch.cat(
            [state[f"{their}self_attn.{name}_proj.weight"] for name in "qkv"]
        )
        out[f"{mine}attention.o_proj.weight"] = state[f"{their}self_attn.o_proj.weight"]
        out[f"{mine}mlp.up_proj.weight"] = torch.cat([state[f"{their}mlp.{n}_proj.weight"] for n in ("gate", "up")])
        out[f"{mine}mlp.down_proj.weight"] = state[f"{their}mlp.down_proj.weight"]
        for own, other in norms.items():
            out[f"{mine}{own}.weight"] = state[f"{their}{other}.weight"]
        if made.layers[i].qk_norm is not None:
            for name in ("q_norm", "k_norm"):
                out[f"{mine}attention.{name}.norm.weight"] = state[f"{their}self_attn.{name}.weight"]
    return out


def from_gpt2(state: State, norms: dict[str, str], made: ModelConfig) -> State:
    out = {
        "embed_tokens.weight": state["transformer.wte.weight"],
        "embed_positions.table.weight": state["transformer.wpe.weight"],
        "norm.weight": state["transformer.ln_f.weight"],
        "norm.bias": state["transformer.ln_f.bias"],
    }
    parts = {
        "attention.qkv_proj": "attn.c_attn",
        "attention.o_proj": "attn.c_proj",
        "mlp.up_proj": "mlp.c_fc",
        "mlp.down_proj": "mlp.c_proj",
        "input_layernorm": "ln_1",
        "pre_feedforward_layernorm": "ln_2",
    }
    for i in range(4):
        for own, other in parts.items():
            weight = state[f"transformer.h.{i}.{other}.weight"]
            # GPT-2 stores its matrices input first.
            out[f"layers.{i}.{own}.weight"] = weight.T if weight.ndim == 2 else weight
            out[f"layers.{i}.{own}.bias"] = state[f"transformer.h.{i}.{other}.bias"]
    return out


Pair = tuple[nn.Module, Decoder]
PAIRS: dict[str, tuple[Callable[[], Any], Callable[..., State]]] = {
    "llama": (llama, from_llama_like),
    "cohere2": (cohere2, from_llama_like),
    "gemma3": (gemma3, from_llama_like),
    "olmo2": (olmo2, from_llama_like),
    "gpt2": (gpt2, from_gpt2),
}


@pytest.fixture(scope="module", params=PAIRS)
def pair(request: pytest.FixtureRequest) -> Pair:
    """Their model and ours, of the same weights."""
    make, convert = PAIRS[request.param]
    theirs, made, norms = make()
    theirs.eval()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in theirs.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, 0.2, generator=generator)
            else:
                parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.3, generator=generator))
    model = enlarge(build_model(made))  # nothing of it survives a strict load
    model.load_state_dict(convert(theirs.state_dict(), norms, made), strict=True)
    return theirs, model


def text(model: Decoder) -> Tensor:
    return ids(2, LENGTH if model.embed_positions is not None else 2 * LENGTH + 3)


def difference(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@pytest.mark.bug("B031")
@pytest.mark.bug("B042")
@torch.no_grad()
def test_logits_are_those_of_transformers(pair: Pair) -> None:
    theirs, model = pair
    tokens = text(model)
    expected = theirs(tokens).logits
    assert expected.std() > 0.2, "these weights are too small to test anything"
    assert difference(model(tokens), expected) < 1e-4


@pytest.mark.bug("B008")
@torch.no_grad()
def test_cached_pieces_give_the_logits_of_transformers(pair: Pair) -> None:
    theirs, model = pair
    tokens = text(model)
    cache = model.new_cache(2)
    cuts = [WINDOW + 3, 1, 1, 1, tokens.shape[1] - WINDOW - 6]
    pieces = [model(piece, cache=cache) for piece in tokens.split(cuts, dim=1)]
    assert difference(torch.cat(pieces, dim=1), theirs(tokens).logits) < 1e-4


def test_loss_and_gradient_are_those_of_transformers(pair: Pair) -> None:
    theirs, model = pair
    tokens = text(model)
    expected = theirs(tokens, labels=tokens).loss
    loss = model.loss(tokens[:, :-1], tokens[:, 1:])
    assert loss.item() == pytest.approx(expected.item(), abs=1e-5)
    expected.backward()
    loss.backward()
    theirs_embedding = theirs.get_input_embeddings().weight.grad
    assert difference(model.embed_tokens.weight.grad, theirs_embedding) < 1e-5 * theirs_embedding.abs().max().clamp(
        min=1
    )
