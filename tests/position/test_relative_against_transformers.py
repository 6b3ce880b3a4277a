"""Relative terms against the attention modules of `transformers` that have them, with copied weights.

DeBERTa v2's and XLNet's (which is Transformer-XL's; the model of that name has left the library) under a causal mask,
and the keys of SeamlessM4T v2's encoder, which are Shaw's.
"""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor

from minillm.attention.backends import attend
from minillm.attention.tokens import StepContext, arrange
from minillm.config.layers import LayerSpec
from minillm.position import PositionScheme
from minillm.position.deberta import DeBERTa, bucket_edges
from minillm.position.distances import count_edges
from minillm.position.shaw import Shaw
from minillm.position.transformer_xl import TransformerXL

transformers = pytest.importorskip("transformers")

from transformers.models.deberta_v2 import modeling_deberta_v2 as deberta_v2  # noqa: E402
from transformers.models.seamless_m4t_v2 import modeling_seamless_m4t_v2 as seamless  # noqa: E402
from transformers.models.xlnet import modeling_xlnet as xlnet  # noqa: E402

HEADS, WIDTH, LENGTH, BATCH = 3, 6, 23, 2
HIDDEN = HEADS * WIDTH


def heads(x: Tensor) -> Tensor:
    """(B, T, H * K) to (B, H, T, K)."""
    return x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


def ours(scheme: PositionScheme, weights: dict[str, Tensor], q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """(B, T, H * K) of one causal layer."""
    spec = LayerSpec(0, "tested", scheme, HEADS, HEADS, WIDTH)
    module = scheme.make(spec.shape)
    assert module is not None
    module.load_state_dict(weights)
    tokens = arrange(BATCH, LENGTH, "cpu")
    out = attend(heads(q), heads(k), heads(v), spec, tokens, tokens, StepContext(tokens, contiguous=True), module)
    return out.transpose(1, 2).flatten(2)


def enlarged(module: torch.nn.Module) -> torch.nn.Module:
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.5)
    return module.eval()


@pytest.mark.parametrize("terms", [("c2p", "p2c"), ("c2p",), ("p2c",)], ids="+".join)
@pytest.mark.parametrize(("span", "buckets"), [(8, None), (64, None), (30, 8)], ids=str)
@torch.no_grad()
def test_deberta_is_v2s_under_a_causal_mask(terms: tuple[str, ...], span: int, buckets: int | None) -> None:
    logging.getLogger("transformers").setLevel(logging.ERROR)
    config = transformers.DebertaV2Config(
        hidden_size=HIDDEN,
        num_attention_heads=HEADS,
        relative_attention=True,
        max_relative_positions=span,
        position_buckets=buckets or -1,
        pos_att_type=list(terms),
        share_att_key=False,
    )
    theirs = enlarged(deberta_v2.DisentangledSelfAttention(config))
    for name in ("pos_key_proj", "pos_query_proj"):  # the paper has none; the key's would cancel in the softmax
        if hasattr(theirs, name):
            getattr(theirs, name).bias.zero_()
    rows = buckets or span
    table, x = torch.randn(2 * rows, HIDDEN), torch.randn(BATCH, LENGTH, HIDDEN)
    causal = torch.ones(LENGTH, LENGTH).tril()[None, None]
    wanted = theirs(x, causal, rel_embeddings=table)[0]
    weights = {"table.weight": table[rows:]}
    if "c2p" in terms:
        weights["key_proj.weight"] = theirs.pos_key_proj.weight
    if "p2c" in terms:
        weights["query_proj.weight"] = theirs.pos_query_proj.weight
    scheme = DeBERTa(max_distance=span, position_buckets=buckets, terms=terms)  # type: ignore[arg-type]
    got = ours(scheme, weights, theirs.query_proj(x), theirs.key_proj(x), theirs.value_proj(x))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@pytest.mark.parametrize(("buckets", "far"), [(8, 30), (32, 128), (64, 500), (256, 512)])
def test_debertas_log_buckets_are_v2s_at_every_distance(buckets: int, far: int) -> None:
    distance = torch.arange(2 * far)
    wanted = deberta_v2.make_log_bucket_position(distance, buckets, far).long().clamp(max=buckets - 1)
    got = count_edges(distance, bucket_edges(buckets, far))
    assert torch.equal(got, wanted)


@torch.no_grad()
def test_transformer_xl_is_xlnets_under_a_causal_mask() -> None:
    config = transformers.XLNetConfig(d_model=HIDDEN, n_head=HEADS, n_layer=1, d_inner=8, vocab_size=9)
    theirs = enlarged(xlnet.XLNetRelativeAttention(config))
    x = torch.randn(LENGTH, BATCH, HIDDEN)
    q, k, v = (torch.einsum("ibh,hnd->ibnd", x, weight) for weight in (theirs.q, theirs.k, theirs.v))
    frequencies = 1 / 10000 ** (torch.arange(0, HIDDEN, 2) / HIDDEN)
    waves = xlnet.XLNetModel.positional_embedding(torch.arange(LENGTH, -1, -1.0), frequencies, BATCH)
    r = torch.einsum("ibh,hnd->ibnd", waves, theirs.r)
    future = torch.ones(LENGTH, LENGTH).triu(1)[:, :, None, None].expand(-1, -1, BATCH, HEADS)
    wanted = theirs.rel_attn_core(q, k, v, r, attn_mask=future).transpose(0, 1).flatten(2)
    weights = {"u": theirs.r_w_bias.flatten(), "v": theirs.r_r_bias.flatten(), "r_proj.weight": theirs.r.flatten(1).t()}
    got = ours(TransformerXL(), weights, *(part.transpose(0, 1).flatten(2) for part in (q, k, v)))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)


@torch.no_grad()
def test_shaws_keys_are_those_of_seamless_under_a_causal_mask() -> None:
    config = transformers.SeamlessM4Tv2Config(
        hidden_size=HIDDEN,
        speech_encoder_attention_heads=HEADS,
        position_embeddings_type="relative_key",
        left_max_position_embeddings=7,
        right_max_position_embeddings=2,
        attn_implementation="eager",
    )
    theirs = enlarged(seamless.SeamlessM4Tv2ConformerSelfAttention(config))
    theirs.linear_out = torch.nn.Identity()
    x = torch.randn(BATCH, LENGTH, HIDDEN)
    future = torch.full((LENGTH, LENGTH), float("-inf")).triu(1)[None, None]
    wanted = theirs(x, attention_mask=future)[0]
    # Their row 7 is distance 0, row 0 a key 7 or more back.
    weights = {"key_vectors.weight": theirs.distance_embedding.weight[:8].flip(0)}
    scheme = Shaw(max_distance=7, values=False)
    got = ours(scheme, weights, theirs.linear_q(x), theirs.linear_k(x), theirs.linear_v(x))
    torch.testing.assert_close(got, wanted, atol=1e-5, rtol=0)
