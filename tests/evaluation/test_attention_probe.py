"""Probe rows against the whole softmax, against what the layers' own backends put out, and against closed forms."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from minillm.attention.mask import Call, visible
from minillm.attention.reference import reference
from minillm.attention.tokens import StepContext, arrange
from minillm.config.layers import LayerSpec, QKNorm
from minillm.config.schema import ModelConfig
from minillm.evaluation.attention.probe import Rows, bin_edges, probabilities, probe
from minillm.evaluation.attention.walk import silenced, watching
from minillm.model.attention import Attention
from minillm.model.decoder import Decoder, build_model
from minillm.position.alibi import ALiBi
from minillm.position.deberta import DeBERTa
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.scaling_by_length import DynamicNTK
from minillm.position.shaw import Shaw
from minillm.position.t5 import T5
from minillm.position.temperature import LogN
from minillm.position.transformer_xl import TransformerXL

T = 256
LAYERS: dict[str, LayerSpec] = {
    name: LayerSpec(0, name, position, heads, kv_heads, 8, **fields)
    for name, position, heads, kv_heads, fields in (
        ("rope", RoPE(), 4, 2, {}),
        ("nope", NoPE(), 3, 1, {}),
        ("alibi", ALiBi(), 3, 3, {}),
        ("t5", T5(), 4, 2, {}),
        ("shaw", Shaw(), 4, 2, {}),
        ("transformer_xl", TransformerXL(), 4, 1, {}),
        ("deberta", DeBERTa(), 4, 2, {}),
        ("rope scaled by length", RoPE(scaling=DynamicNTK(factor=2.0, original_max_position_embeddings=64)), 2, 1, {}),
        ("window", RoPE(), 4, 2, {"window": 33}),
        ("window of alibi with kept tokens", ALiBi(), 4, 2, {"window": 33, "sink_tokens": 3}),
        ("chunk", NoPE(), 4, 2, {"chunk": 50}),
        ("softcap", NoPE(), 4, 2, {"softcap": 3.0, "scale": 0.5}),
        ("sink logits", RoPE(), 4, 2, {"sink_logits": True, "window": 90}),
        ("temperature and qk-norm", NoPE(), 4, 2, {"temperature": LogN(base=16.0), "qk_norm": QKNorm("rms")}),
        ("gate and shared q and k", RoPE(), 4, 1, {"gate": True, "shared_qk": True}),
    )
}


def model_of(*layers: LayerSpec, length: int = 64) -> Decoder:
    """Random weights large enough that attention is far from uniform."""
    specs = tuple(dataclasses.replace(spec, index=i) for i, spec in enumerate(layers))
    model = build_model(ModelConfig(50, 24, 40, len(specs), length, specs), seed=1).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "qkv_proj" in name or "position" in name or "sinks" in name:
                p.copy_(0.3 * torch.randn(p.shape, generator=torch.Generator().manual_seed(2)))
    return model


def packed(length: int) -> Tensor:
    """Two documents in each row, with other boundaries, and padding at the end of the second row."""
    ids = torch.stack([(torch.arange(length) >= length // 3).long(), (torch.arange(length) >= length // 2).long()])
    ids[1, -7:] = -1
    return ids


def seen(
    model: Decoder, tokens: Tensor, ids: Tensor | None = None
) -> list[tuple[Attention, Tensor, Tensor, Tensor, StepContext]]:
    """(attention, q, k, v, context) of each layer."""
    found = []

    def see(index: int, attention: Attention, x: Tensor, context: StepContext) -> None:
        found.append((attention, *attention.project(x, context), context))

    with torch.no_grad(), watching(model, see):
        model.hidden(tokens, ids)
    return found


def rows_at(q: Tensor, at: Tensor) -> Tensor:
    return q.gather(2, at[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))


def probed(layer: tuple[Any, ...], at: Tensor, features: Tensor, block: int = 60) -> Rows:
    attention, q, k, _, context = layer
    return probe(
        rows_at(q, at), k, attention.spec, attention.position, context.tokens, at, features, attention.sinks, block
    )


@pytest.mark.parametrize("ids", [None, packed(T)], ids=["one document", "packed"])
@pytest.mark.parametrize("name", LAYERS)
def test_probe_rows_are_those_of_the_whole_softmax(name: str, ids: Tensor | None) -> None:
    model = model_of(LAYERS[name])
    (layer,) = seen(model, torch.randint(50, (2, T)), ids)
    attention, q, k, v, context = layer
    at = torch.stack([torch.randperm(T)[:21], torch.randperm(T)[:21]])
    at[:, 0], at[:, 1] = 0, T - 1
    features = torch.randn(2, T, 5)
    rows = probed(layer, at, features)

    call = Call(q, k, v, attention.spec, context.tokens, context.tokens, context, attention.position, attention.sinks)
    _, every = reference(call, return_probs=True)
    p = every.detach().double().gather(2, at[:, None, :, None].expand(-1, q.shape[1], -1, T))
    total = p.sum(-1)
    close = {"atol": 1e-5, "rtol": 1e-5}
    torch.testing.assert_close(rows.to_sink, 1 - total, **close)
    p = p / total[..., None]  # among the keys
    torch.testing.assert_close(rows.sums, torch.einsum("bhpk,bkf->bhpf", p, features.double()), **close)
    torch.testing.assert_close(rows.entropy, -torch.special.xlogy(p, p).sum(-1), **close)
    torch.testing.assert_close(rows.on_first, p[..., 0], **close)
    back = (at[:, :, None] - torch.arange(T)).clamp(min=0)
    torch.testing.assert_close(rows.distance, (p * back[:, None]).sum(-1), atol=1e-3, rtol=1e-5)
    for n, (low, high) in enumerate(bin_edges(T)):
        inside = (back >= low) & (back <= high) & (at[:, :, None] >= torch.arange(T))
        torch.testing.assert_close(rows.by_distance[..., n], (p * inside[:, None]).sum(-1), **close)
    torch.testing.assert_close(p.gather(-1, rows.top[..., None])[..., 0], p.amax(-1), **close)
    seen_keys = visible(attention.spec.mask_key, context.tokens, context.tokens).expand(2, T, T).sum(-1)
    torch.testing.assert_close(rows.visible, seen_keys.gather(1, at).double())
    assert (rows.entropy <= rows.visible.log()[:, None] + 1e-9).all()


@pytest.mark.parametrize("name", ["rope", "nope", "alibi", "t5", "window", "chunk", "sink logits", "softcap"])
def test_weighted_values_are_what_the_layer_hands_on(name: str) -> None:
    """Whatever backend the layer runs on, with one kv head, so that values can be the features."""
    model = model_of(dataclasses.replace(LAYERS[name], num_key_value_heads=1))
    handed_on: list[Tensor] = []
    hook = model.layers[0].attention.o_proj.register_forward_pre_hook(lambda m, inputs: handed_on.append(inputs[0]))
    (layer,) = seen(model, torch.randint(50, (2, T)))
    hook.remove()
    at = torch.arange(5, T, 11).expand(2, -1)
    rows = probed(layer, at, layer[3][:, 0])
    out = (rows.sums * (1 - rows.to_sink)[..., None]).transpose(1, 2).flatten(2)
    torch.testing.assert_close(out.float(), handed_on[0][:, at[0]], atol=1e-4, rtol=1e-4)


def test_a_nope_layer_spreads_a_repeated_token_evenly() -> None:
    """Rows are exactly 1/t in the first layer and in those after it (arXiv 2410.10781, appendix)."""
    model = model_of(LAYERS["nope"], LAYERS["nope"])
    at = torch.arange(T)[None]
    for layer in seen(model, torch.full((1, T), 7)):
        attention, q, k, _, context = layer
        p = probabilities(q, k, attention.spec, attention.position, context.tokens, at)
        even = torch.tril(torch.ones(T, T)) / torch.arange(1, T + 1)[:, None]
        torch.testing.assert_close(p, even.expand_as(p), atol=1e-6, rtol=1e-4)
        rows = probed(layer, at, torch.eye(T)[None])
        torch.testing.assert_close(rows.entropy, rows.visible.log().expand_as(rows.entropy), atol=1e-6, rtol=0)


def test_equal_keys_and_a_value_at_the_first_token_count_the_place() -> None:
    """1, 1/2, 1/3, ...: how NoPE can know absolute position (arXiv 2305.19466, theorem 1)."""
    spec = LAYERS["nope"]
    tokens = arrange(1, T, "cpu")
    value = (torch.arange(T) == 0).float()[None, :, None]
    at = torch.arange(T)[None]
    rows = probe(torch.randn(1, 3, T, 8), torch.ones(1, 1, T, 8), spec, None, tokens, at, value, block=37)
    torch.testing.assert_close(rows.sums[0, 0, :, 0], 1 / torch.arange(1, T + 1).double(), atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("name", ["window", "chunk"])
def test_nothing_lies_beyond_a_window(name: str) -> None:
    (layer,) = seen(model_of(LAYERS[name]), torch.randint(50, (1, T)))
    reach = LAYERS[name].reach
    assert reach is not None
    at = torch.arange(reach, T, 9)[None]
    index = torch.arange(T)[None, :, None]
    rows = probed(layer, at, torch.cat([index <= at[0] - reach], dim=-1).float())
    beyond = torch.diagonal(rows.sums[0], dim1=1, dim2=2)
    assert (beyond == 0).all()
    assert (rows.visible <= reach).all()
    assert not rows.sees_first.any()


def test_silenced_heads_hand_on_nothing_and_the_others_all() -> None:
    model = model_of(LAYERS["rope"], LAYERS["gate and shared q and k"])
    handed_on: list[Tensor] = []
    tokens = torch.randint(50, (2, 20))
    with torch.no_grad():
        before = model.hidden(tokens)
        with silenced(model, {(1, 0), (1, 3)}):
            hook = model.layers[1].attention.o_proj.register_forward_hook(lambda m, i, o: handed_on.append(i[0]))
            changed = model.hidden(tokens)
            hook.remove()
        by_head = handed_on[0].unflatten(-1, (4, 8))
        assert (by_head[:, :, [0, 3]] == 0).all()
        assert (by_head[:, :, [1, 2]].abs().amax(dim=(0, 1, 3)) > 0).all()
        assert (changed - before).abs().max() > 1e-3
        torch.testing.assert_close(model.hidden(tokens), before, atol=0, rtol=0)
