"""Integer embeddings: the raw position, or its share of the trained length, never of the text at hand."""

from __future__ import annotations

import pytest
import torch

from minillm import compose
from minillm.config.expand import embedding_scheme
from minillm.config.layers import LayerSpec
from minillm.config.schema import BlockConfig, ModelConfig
from minillm.errors import ConfigError
from minillm.model.decoder import Decoder, build_model
from minillm.position import EmbeddingScheme
from minillm.position.integer import Integer
from minillm.position.nope import NoPE


def test_every_channel_gets_the_position_itself() -> None:
    out = Integer().make_embedding(5, 64)(torch.tensor([[0, 1, 700], [3, 3, 2]]))
    assert out.dtype == torch.float32
    assert out.shape == (2, 3, 5)
    assert out[..., 0].tolist() == [[0, 1, 700], [3, 3, 2]]
    assert torch.equal(out, out[..., :1].expand(2, 3, 5))


def test_normalised_positions_span_the_trained_length() -> None:
    out = Integer(normalized=True).make_embedding(3, 64)(torch.tensor([[0, 16, 64, 128]]))
    assert out[0, :, 0].tolist() == [0, 0.25, 1, 2]


@pytest.mark.parametrize("normalized", [False, True])
def test_a_token_is_the_same_whatever_comes_after_it(normalized: bool) -> None:
    module = Integer(scale=0.3, normalized=normalized).make_embedding(4, 64)
    long = module(torch.arange(300)[None])
    for length in (1, 10, 64, 65):
        assert torch.equal(module(torch.arange(length)[None]), long[:, :length])
    assert Integer(normalized=normalized).max_positions(64) is None


def test_scale_multiplies_both_forms() -> None:
    positions = torch.tensor([[10, 32]])
    assert Integer(scale=0.5).make_embedding(2, 64)(positions)[0, :, 1].tolist() == [5, 16]
    assert Integer(scale=0.5, normalized=True).make_embedding(2, 64)(positions)[0, 1, 1].item() == 0.25


@pytest.mark.bug("B030")
def test_a_build_on_the_meta_device_in_half_precision_changes_nothing() -> None:
    with torch.device("meta"):
        module = Integer().make_embedding(4, 64)
    module = module.to_empty(device="cpu").to(torch.bfloat16)
    positions = torch.tensor([[256, 257]])
    assert module(positions)[0, :, 0].tolist() == [256, 257]  # 257 is no bf16 number


def test_bad_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"model\.embedding\.position: scale = 0\.0: must be above 0"):
        embedding_scheme({"scheme": "integer", "scale": 0}, 8)
    with pytest.raises(ConfigError, match=r"normalised = True: 'integer' has no such field. Did you mean 'normalized'"):
        embedding_scheme({"scheme": "integer", "normalised": True}, 8)


def decoder(block: BlockConfig, embedding: EmbeddingScheme | None) -> Decoder:
    layers = tuple(LayerSpec(i, "all", NoPE(), 4, 2, 8) for i in range(2))
    model = build_model(ModelConfig(50, 20, 48, 2, 16, layers, block=block, embedding_position=embedding)).eval()
    with torch.no_grad():  # weights large enough that attention is not uniform
        for parameter in model.layers.parameters():
            parameter.mul_(3)
    return model


@pytest.mark.parametrize(
    ("norm", "placement", "seen"),
    [
        ("layernorm", "pre", False),
        ("layernorm", "sandwich", False),
        ("layernorm", "parallel", False),
        ("layernorm", "parallel_split", False),
        ("layernorm", "branch_post", True),
        ("layernorm", "post", True),
        ("rmsnorm", "pre", True),
    ],
)
def test_a_layernorm_before_every_layer_takes_the_position_away(norm: str, placement: str, seen: bool) -> None:
    block = BlockConfig(norm=norm, norm_placement=placement)  # type: ignore[arg-type]
    ids = torch.randint(50, (2, 12))
    without, placed = decoder(block, None)(ids), decoder(block, Integer(scale=0.1))(ids)
    assert torch.allclose(without, placed, atol=1e-3) != seen


def test_a_plan_in_which_no_layer_sees_the_position_is_refused() -> None:
    message = "'integer' moves all channels of a token alike, and block.norm = layernorm .*norm_placement = pre"
    with pytest.raises(ConfigError, match=message):
        compose(["model=integer", "block=gpt2"])
    compose(["model=integer", "block=gpt2", "block.norm_placement=branch_post"], warn=False)
    with pytest.raises(ConfigError, match="'integer' moves"):
        compose(["model=integer", "block=gpt2", "block.norm_placement=post", "block.embedding_norm=true"])
    compose(["model=binary", "block=gpt2"], warn=False)
