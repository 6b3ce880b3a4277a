"""Integer embeddings: the raw position, or its share of the trained length, never of the text at hand."""

from __future__ import annotations

import pytest
import torch

from minillm.config.expand import embedding_scheme
from minillm.errors import ConfigError
from minillm.position.integer import Integer


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
