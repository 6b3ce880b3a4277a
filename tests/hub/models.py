"""A small random model of each family, as transformers builds it: odd sizes, weights that matter, unequal layers.

Heads are grouped by three, a head is not hidden_size / heads wide, and five layers are no multiple of any pattern.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

VOCAB = 41
TRAINED = 32
WINDOW = 7
DEPTH = 5
COMMON: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 36,
    "intermediate_size": 44,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": TRAINED,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


def rope(theta: float, **more: Any) -> dict[str, Any]:
    return {"rope_type": "default", "rope_theta": theta, **more}


def types(letters: str) -> list[str]:
    return [{"L": "sliding_attention", "G": "full_attention"}[letter] for letter in letters]


LOCAL = {"sliding_window": WINDOW}
YARN = rope(12345.0, rope_type="yarn", factor=4.0, original_max_position_embeddings=TRAINED)
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": rope(12345.0), "attention_bias": True, "mlp_bias": True}),
    "llama tied, llama3 scaling": (
        "llama",
        {
            "tie_word_embeddings": True,
            "rope_parameters": rope(
                500.0,
                rope_type="llama3",
                factor=8.0,
                low_freq_factor=1.0,
                high_freq_factor=4.0,
                original_max_position_embeddings=28,
            ),
        },
    ),
    "qwen2": (
        "qwen2",
        {"rope_parameters": rope(500.0), **LOCAL, "use_sliding_window": True, "max_window_layers": 2},
    ),
    "qwen3": (
        "qwen3",
        {"rope_parameters": YARN, **LOCAL, "use_sliding_window": True, "layer_types": types("LGGLG")},
    ),
    "olmo2": ("olmo2", {"rope_parameters": rope(500.0)}),
    "olmo3": (
        "olmo3",
        {**LOCAL, "rope_parameters": {"sliding_attention": rope(100.0), "full_attention": YARN}},
    ),
    "gemma2": ("gemma2", {**LOCAL, "rope_parameters": rope(500.0), "query_pre_attn_scalar": 14}),
    "gemma3": (
        "gemma3_text",
        {
            **LOCAL,
            "layer_types": types("LLGLL"),
            "query_pre_attn_scalar": 14,
            "rope_parameters": {
                "sliding_attention": rope(100.0),
                "full_attention": rope(10000.0, rope_type="linear", factor=8.0),
            },
        },
    ),
    "cohere2": ("cohere2", {**LOCAL, "rope_parameters": rope(500.0), "logit_scale": 0.25}),
    "smollm3": (
        "smollm3",
        {
            **LOCAL,
            "rope_parameters": rope(500.0),
            "use_sliding_window": True,
            "layer_types": types("LGLLG"),
            "no_rope_layers": [1, 1, 0, 1, 0],
        },
    ),
    "exaone4": ("exaone4", {**LOCAL, "rope_parameters": rope(500.0)}),
    "exaone4 full": (
        "exaone4",
        {"sliding_window": None, "layer_types": types("GGGGG"), "rope_parameters": rope(500.0)},
    ),
    "granite_swa": (
        "granite_swa",
        {
            **LOCAL,
            "rope_parameters": rope(500.0),
            "layer_rope_theta": [0.0, 100.0, 100.0, 12345.0, 0.0],
            "embedding_multiplier": 3.0,
            "logits_scaling": 4.0,
            "residual_multiplier": 0.7,
            "attention_multiplier": 0.2,
            "attention_bias": True,
            "mlp_bias": True,
        },
    ),
}


def their_config(name: str) -> Any:
    from transformers import AutoConfig

    model_type, values = MODELS[name]
    return AutoConfig.for_model(model_type, **COMMON, **values)


@cache
def theirs(name: str) -> nn.Module:
    """The random model, eval mode, eager attention: built once."""
    from transformers import AutoModelForCausalLM

    return enlarge(AutoModelForCausalLM.from_config(their_config(name), attn_implementation="eager"))


@torch.no_grad()
def enlarge(model: Any, std: float = 0.2, seed: int = 3) -> Any:
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            parameter.normal_(0.0, std, generator=generator)
        else:
            parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.3, generator=generator))
    return model.eval()


def ids(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def difference(a: Tensor, b: Tensor) -> float:
    return (a - b).abs().max().item()


@torch.no_grad()
def cached_difference(theirs: Any, ours: nn.Module, new: int) -> float:
    """Largest difference of the logits with which both decode `new` tokens greedily from their caches; the tokens must
    be the same."""
    prompt = ids(2, 11, seed=2)
    run = theirs.generate(
        prompt, max_new_tokens=new, do_sample=False, use_cache=True, output_logits=True, return_dict_in_generate=True
    )
    tokens = run.sequences
    cache = ours.new_cache(2)
    steps = [ours(prompt, cache=cache)[:, -1]]
    steps += [ours(tokens[:, i : i + 1], cache=cache)[:, -1] for i in range(11, 11 + new - 1)]
    logits = torch.stack(steps, dim=1)
    assert torch.equal(logits.argmax(dim=-1), tokens[:, 11:])
    return difference(logits, torch.stack(run.logits, dim=1))
