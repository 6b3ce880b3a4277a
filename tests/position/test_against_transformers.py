"""The same numbers as Hugging Face `transformers`, for whoever loads or exports weights.

Its frequencies are computed in float32 and ours in float64, so they may differ in the last bit; the rotation itself,
given the same cosines and sines, is bit for bit the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import minillm
from minillm.attention.tokens import StepContext, Tokens
from minillm.position import LayerShape, alibi_slopes, rope_frequencies
from minillm.position.rope import RoPE
from minillm.position.scaling import Linear, Llama3, Scaling, YaRN
from minillm.position.scaling_by_length import DynamicNTK, LongRoPE
from minillm.position.temperature import Llama4, Ministral

transformers = pytest.importorskip("transformers")

from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS  # noqa: E402
from transformers.models.bloom.modeling_bloom import build_alibi_tensor  # noqa: E402
from transformers.models.cohere2 import modeling_cohere2  # noqa: E402
from transformers.models.gptj import modeling_gptj  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402
from transformers.models.llama4 import modeling_llama4  # noqa: E402
from transformers.models.ministral3 import modeling_ministral3  # noqa: E402

import minillm.hub  # noqa: E402

At = Callable[..., Tokens]
POSITIONS = [0, 1, 2, 50, 300, 4000]


def llama_config(head_dim: int, theta: float, **scaling: Any) -> Any:
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it warns of factors unlike max_position_embeddings
    return transformers.LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=1024,
        rope_parameters={"rope_theta": theta, "rope_type": "default", **scaling},
    )


@pytest.mark.parametrize(
    ("scheme", "theirs"),
    [
        pytest.param(RoPE(scaling=Linear(4.0)), {"rope_type": "linear", "factor": 4.0}, id="linear"),
        pytest.param(
            RoPE(scaling=YaRN(4.0, 256)),
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
            id="yarn",
        ),
        pytest.param(
            RoPE(theta=150000.0, scaling=YaRN(32.0, 4096, truncate=False)),
            {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
            id="yarn as gpt-oss",
        ),
        pytest.param(
            RoPE(scaling=YaRN(40.0, 4096, beta_fast=16.0, beta_slow=2.0, mscale=0.707, mscale_all_dim=0.5)),
            {
                "rope_type": "yarn",
                "factor": 40.0,
                "original_max_position_embeddings": 4096,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "mscale": 0.707,
                "mscale_all_dim": 0.5,
            },
            id="yarn as deepseek",
        ),
        pytest.param(
            RoPE(partial_rotary_factor=0.5, scaling=YaRN(4.0, 256, attention_factor=1.5)),
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 256,
                "attention_factor": 1.5,
                "partial_rotary_factor": 0.5,
            },
            id="partial yarn",
        ),
        pytest.param(
            RoPE(theta=5e5, scaling=Llama3(32.0, 8192, 1.0, 4.0)),
            {
                "rope_type": "llama3",
                "factor": 32.0,
                "original_max_position_embeddings": 8192,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            id="llama3",
        ),
        pytest.param(
            RoPE(theta=1e6, partial_rotary_factor=0.25, rule="proportional"),
            {"rope_type": "proportional", "partial_rotary_factor": 0.25},
            id="proportional as gemma 4",
        ),
    ],
)
@pytest.mark.parametrize("head_dim", [16, 64, 128])
def test_frequencies_and_attention_factor_agree(scheme: RoPE, theirs: dict[str, Any], head_dim: int) -> None:
    config = llama_config(head_dim, scheme.theta, **theirs)
    expected, expected_factor = ROPE_INIT_FUNCTIONS[theirs["rope_type"]](config, "cpu")
    frequencies, factor = rope_frequencies(scheme, head_dim, 1024)
    torch.testing.assert_close(frequencies, expected, rtol=2e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-6)


@pytest.mark.parametrize("length", [1, 1023, 1024, 1025, 4096, 30_000])
@pytest.mark.parametrize("share", [1.0, 0.5])
@pytest.mark.parametrize("head_dim", [16, 64])
def test_dynamic_ntk_frequencies_agree_at_every_length(head_dim: int, share: float, length: int) -> None:
    scheme = RoPE(theta=5e4, scaling=DynamicNTK(2.0, 1024), partial_rotary_factor=share)
    config = llama_config(head_dim, 5e4, rope_type="dynamic", factor=2.0, partial_rotary_factor=share)
    expected, expected_factor = ROPE_INIT_FUNCTIONS["dynamic"](config, "cpu", seq_len=length)
    frequencies, factor = rope_frequencies(scheme, head_dim, length)
    torch.testing.assert_close(frequencies, expected, rtol=2e-6, atol=0)
    assert factor == expected_factor


@pytest.mark.parametrize("length", [1, 256, 257, 4096])
@pytest.mark.parametrize("given", [None, 1.25])
def test_longrope_frequencies_agree_at_every_length(given: float | None, length: int) -> None:
    short, long = tuple(1 + 0.02 * i for i in range(16)), tuple(1 + 0.4 * i for i in range(16))
    config = llama_config(
        32, 1e4, rope_type="longrope", factor=4.0, original_max_position_embeddings=256,
        short_factor=list(short), long_factor=list(long), attention_factor=given,
    )  # fmt: skip
    expected, expected_factor = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=length)
    scheme = RoPE(scaling=LongRoPE(4.0, 256, short, long, given))
    frequencies, factor = rope_frequencies(scheme, 32, length)
    torch.testing.assert_close(frequencies, expected, rtol=2e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-6)


@pytest.mark.parametrize("length", [200, 1024, 1500])
@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_whole_rotation_agrees_at_the_length_of_the_text(kind: str, length: int, at: At) -> None:
    if kind == "dynamic":
        scaling: Scaling = DynamicNTK(4.0, 1024)
        block = {"rope_type": kind, "factor": 4.0}
    else:
        scaling = LongRoPE(4.0, 1024, 1.0, 3.0)
        block = {
            "rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 1024,
            "short_factor": [1.0] * 16, "long_factor": [3.0] * 16,
        }  # fmt: skip
    tokens, q = at(length), torch.randn(1, 2, length, 32)
    rotary = modeling_llama.LlamaRotaryEmbedding(llama_config(32, 1e4, **block))
    expected, _ = modeling_llama.apply_rotary_pos_emb(q, q, *rotary(q, tokens.position))
    torch.testing.assert_close(rotated(RoPE(scaling=scaling), q, tokens), expected, atol=2e-3, rtol=0)


@pytest.mark.parametrize(
    "block",
    [
        {"rope_type": "dynamic", "factor": 2.0},
        {
            "rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 64,
            "short_factor": [1 + 0.1 * i for i in range(6)], "long_factor": [1.0 + i for i in range(6)],
        },
    ],
    ids=lambda block: block["rope_type"],
)  # fmt: skip
@torch.no_grad()
def test_a_whole_model_scaled_by_length_gives_their_logits_at_every_length(block: dict[str, Any]) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = transformers.LlamaConfig(
        vocab_size=50, hidden_size=30, intermediate_size=32, num_hidden_layers=3, num_attention_heads=6,
        num_key_value_heads=2, head_dim=12, max_position_embeddings=64, rope_parameters={"rope_theta": 1e4, **block},
        initializer_range=0.3,
    )  # fmt: skip
    theirs = transformers.LlamaForCausalLM(config).eval()
    ours = minillm.hub.from_transformers(theirs).eval()
    for length in (30, 64, 65, 200, 40):
        ids = torch.randint(50, (2, length))
        # A new one for each length: after 200 tokens theirs would give 65 tokens the frequencies of 200.
        fresh = transformers.LlamaForCausalLM(config).eval()
        fresh.load_state_dict(theirs.state_dict())
        torch.testing.assert_close(ours(ids), fresh(ids).logits, atol=1e-4, rtol=0)


@pytest.mark.parametrize("scaling", [None, YaRN(4.0, 256)], ids=["plain", "yarn"])
def test_a_whole_llama_rotation_agrees(scaling: Scaling | None, at: At) -> None:
    block = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256} if scaling else {}
    tokens, q = at(POSITIONS), torch.randn(2, 4, len(POSITIONS), 64)
    rotary = modeling_llama.LlamaRotaryEmbedding(llama_config(64, 1e4, **block))
    expected, _ = modeling_llama.apply_rotary_pos_emb(q, q, *rotary(q, tokens.position))
    out = rotated(RoPE(scaling=scaling), q, tokens)
    torch.testing.assert_close(out[:, :, :4], expected[:, :, :4], atol=2e-5, rtol=0)
    torch.testing.assert_close(out, expected, atol=2e-3, rtol=0)  # a last bit of frequency, 4000 times


def rotated(scheme: RoPE, x: Tensor, tokens: Tokens) -> Tensor:
    module = scheme.make(LayerShape(0, 2, 2, x.shape[-1]))
    assert module is not None
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    return module.rotate(x, tables)


@pytest.mark.bug("B042")
@pytest.mark.parametrize("model", ["llama", "cohere2", "gptj"])
def test_given_the_same_tables_the_rotation_is_theirs_bit_for_bit(model: str, at: At) -> None:
    tokens, x = at(POSITIONS), torch.randn(2, 3, len(POSITIONS), 16)
    scheme = RoPE(layout="half" if model == "llama" else "interleaved")
    module = scheme.make(LayerShape(0, 2, 2, 16))
    assert module is not None
    tables = module.rotary(StepContext(tokens, True), tokens)
    assert tables is not None
    cos, sin = tables
    if model == "llama":
        cos, sin = torch.cat((cos, cos), -1), torch.cat((sin, sin), -1)
        expected, _ = modeling_llama.apply_rotary_pos_emb(x, x, cos, sin)
    elif model == "cohere2":
        cos, sin = cos.repeat_interleave(2, -1), sin.repeat_interleave(2, -1)
        expected, _ = modeling_cohere2.apply_rotary_pos_emb(x, x, cos, sin)
    else:
        expected = modeling_gptj.apply_rotary_pos_emb(x.transpose(1, 2), sin, cos).transpose(1, 2)
    assert torch.equal(module.rotate(x, tables), expected)


@pytest.mark.parametrize("heads", range(1, 41))
def test_slopes_are_blooms(heads: int) -> None:
    bloom = build_alibi_tensor(torch.ones(1, 2), heads, torch.float32)
    torch.testing.assert_close(alibi_slopes(heads), bloom[:, 0, 1], rtol=1e-6, atol=0)


def test_the_ministral_temperature_is_theirs() -> None:
    positions = torch.tensor([[*range(70), 4000, 100_000], [*range(5, 77)]])
    ours = Ministral(scale=0.3, floor=8.0).make(LayerShape(0, 2, 2, 8))(positions)
    theirs = modeling_ministral3.get_llama_4_attn_scale(positions, beta=0.3, max_position_embeddings=8)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)


def test_the_llama4_temperature_is_what_their_layer_does_to_its_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []

    def attention(
        module: object, q: Tensor, k: Tensor, v: Tensor, *rest: object, **more: object
    ) -> tuple[Tensor, None]:
        seen.append(q)
        return q.transpose(1, 2), None

    monkeypatch.setattr(modeling_llama4, "eager_attention_forward", attention)
    config = transformers.Llama4TextConfig(
        hidden_size=16, num_attention_heads=2, num_key_value_heads=1, head_dim=8, num_hidden_layers=1,
        no_rope_layers=[0], floor_scale=8, attn_scale=0.3, attn_temperature_tuning=True, use_qk_norm=False,
        attn_implementation="eager",
    )  # fmt: skip
    layer = modeling_llama4.Llama4TextAttention(config, 0).eval()
    torch.nn.init.constant_(layer.q_proj.weight, 1 / 16)
    layer(torch.ones(1, 70, 16), None, None)
    ours = Llama4(scale=0.3, floor=8.0).make(LayerShape(0, 2, 1, 8))(torch.arange(70)[None])
    torch.testing.assert_close(seen[0], ours.expand(1, 2, 70, 8), atol=1e-6, rtol=0)
