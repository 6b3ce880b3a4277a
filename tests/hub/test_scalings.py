"""Every RoPE scaling that a config.json can say, against transformers' own model, below and past the trained length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import minillm
from tests.hub.models import COMMON, TRAINED, enlarge, ids, rope

transformers = pytest.importorskip("transformers")

PAIRS = COMMON["head_dim"] // 2
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}
SCALINGS: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": YARN,
    "yarn without truncation": {**YARN, "truncate": False, "beta_fast": 8.0, "beta_slow": 0.5},
    "yarn with its factor given": {**YARN, "attention_factor": 1.3},
    "yarn with both mscales": {**YARN, "mscale": 0.7, "mscale_all_dim": 0.4},
    "yarn with one mscale, which does nothing": {**YARN, "mscale": 0.7},
    "yarn with betas of zero, which mean the default": {**YARN, "beta_fast": 0, "beta_slow": 0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 28,
    },
    "longrope": {
        "rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 16,
        "short_factor": [1.0 + 0.1 * i for i in range(PAIRS)], "long_factor": [2.0 + i for i in range(PAIRS)],
    },
    "proportional": {"rope_type": "proportional", "partial_rotary_factor": 0.5},
    "proportional and interpolated": {"rope_type": "proportional", "partial_rotary_factor": 0.5, "factor": 2.0},
}  # fmt: skip


@pytest.mark.bug("B037")
@pytest.mark.bug("B038")
@pytest.mark.parametrize("name", SCALINGS)
@torch.no_grad()
def test_a_scaling_gives_the_logits_of_transformers_and_goes_out_again(name: str) -> None:
    values = {**COMMON, "rope_parameters": rope(500.0, **SCALINGS[name])}
    model = enlarge(transformers.LlamaForCausalLM(transformers.LlamaConfig(**values)))
    ours = minillm.hub.from_transformers(model)
    back = minillm.hub.to_transformers(ours)
    unscaled = transformers.LlamaConfig(**{**COMMON, "rope_parameters": rope(500.0)})
    plain = enlarge(transformers.LlamaForCausalLM(unscaled))
    for length in (TRAINED // 4, 3 * TRAINED):
        tokens = ids(2, length)
        expected = model(tokens).logits
        assert (ours(tokens) - expected).abs().max() < 1e-4
        assert (back(tokens).logits - expected).abs().max() < 1e-4
    assert (plain(tokens).logits - expected).abs().max() > 0.1, "this scaling is too weak to test anything"
    assert minillm.hub.from_transformers(back).config == ours.config
