"""A decoder written a second time, to be obviously right: one row, one head and one query at a time, in float64.

It reads the weights of a `Decoder` and the fields of its layer specs, and nothing else of the package. The five blocks
are written out one by one from the models they are named after.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from minillm.config.layers import LayerSpec
from minillm.model.decoder import Decoder

Weights = dict[str, Tensor]


def logits(model: Decoder, tokens: Tensor, document_ids: Tensor | None = None) -> Tensor:
    """(B, T, V) float64. Padding (-1) gives rows that mean nothing."""
    weights = {name: value.double() for name, value in model.state_dict().items()}
    if document_ids is None:
        document_ids = torch.zeros_like(tokens)
    rows = zip(tokens.tolist(), document_ids.tolist(), strict=True)
    return torch.stack([row_logits(model, weights, row, documents) for row, documents in rows])


def row_logits(model: Decoder, weights: Weights, tokens: list[int], documents: list[int]) -> Tensor:
    block = model.config.block
    positions = [sum(d == documents[t] for d in documents[:t]) for t in range(len(documents))]
    x = weights["embed_tokens.weight"][tokens]
    if block.embedding_scale == "sqrt_hidden":
        x = x * math.sqrt(x.shape[1])
    if model.config.embedding_position is not None:
        x = x + position_vectors(model, weights, positions)
    if block.embedding_norm:
        x = FINAL_NORMS[block_name(model)](x, weights["embed_norm.weight"], weights.get("embed_norm.bias"))
    for spec in model.layer_specs:
        own = {
            name.removeprefix(f"layers.{spec.index}."): w
            for name, w in weights.items()
            if f"layers.{spec.index}." in name
        }
        if block.residual_scale is not None:
            # What a branch adds is scaled by the matrices that write it, where no norm follows them.
            assert block.norm_placement in ("pre", "parallel")
            for name in own:
                if "o_proj" in name or "down_proj" in name:
                    own[name] = own[name] * block.residual_scale
        x = BLOCKS[block_name(model)](x, own, spec, positions, documents)
    x = FINAL_NORMS[block_name(model)](x, weights["norm.weight"], weights.get("norm.bias"))
    head = weights["embed_tokens.weight"] if block.tie_word_embeddings else weights["lm_head.weight"]
    out = x @ head.T
    if block.logit_scale is not None:
        out = out * block.logit_scale
    if block.final_logit_softcapping is not None:
        out = block.final_logit_softcapping * torch.tanh(out / block.final_logit_softcapping)
    return out


def block_name(model: Decoder) -> str:
    block = model.config.block
    if block.norm == "layernorm":
        return {"parallel": "cohere2", "parallel_split": "gpt_neox", "pre": "gpt2"}[block.norm_placement]
    return {"pre": "standard", "sandwich": "gemma3", "branch_post": "olmo2"}[block.norm_placement]


def position_vectors(model: Decoder, weights: Weights, positions: list[int]) -> Tensor:
    scheme = model.config.embedding_position
    assert scheme is not None
    if scheme.scheme == "learned":
        return weights["embed_positions.table.weight"][positions]
    width = model.config.hidden_size
    out = torch.zeros(len(positions), width, dtype=torch.float64)
    for t, position in enumerate(positions):
        for i in range(width // 2):
            angle = position / 10000 ** (2 * i / width)
            out[t, 2 * i], out[t, 2 * i + 1] = math.sin(angle), math.cos(angle)
    return out * scheme.scale  # type: ignore[attr-defined]


# ---- norms and mlps ---------------------------------------------------------------------------------------------


def rms(x: Tensor, weight: Tensor | float, eps: float = 1e-6) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float = 1e-5) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    out = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() * weight
    return out if bias is None else out + bias


def gelu(x: Tensor) -> Tensor:
    """The tanh form of GPT-2 and Gemma."""
    return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def gelu_erf(x: Tensor) -> Tensor:
    """The exact form of GPT-NeoX."""
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def gated(x: Tensor, own: Weights, act: Callable[[Tensor], Tensor]) -> Tensor:
    gate, up = (x @ own["mlp.up_proj.weight"].T).chunk(2, dim=-1)
    return (act(gate) * up) @ own["mlp.down_proj.weight"].T


def silu(x: Tensor) -> Tensor:
    return x / (1 + torch.exp(-x))


# ---- blocks -----------------------------------------------------------------------------------------------------


def standard(x: Tensor, own: Weights, spec: LayerSpec, positions: list[int], documents: list[int]) -> Tensor:
    x = x + attention(rms(x, own["input_layernorm.weight"]), own, spec, positions, documents, lambda w: w, 1e-6)
    return x + gated(rms(x, own["pre_feedforward_layernorm.weight"]), own, silu)


def cohere2(x: Tensor, own: Weights, spec: LayerSpec, positions: list[int], documents: list[int]) -> Tensor:
    h = layer_norm(x, own["input_layernorm.weight"], None)
    return x + attention(h, own, spec, positions, documents, lambda w: w, 1e-5) + gated(h, own, silu)


def gemma3(x: Tensor, own: Weights, spec: LayerSpec, positions: list[int], documents: list[int]) -> Tensor:
    h = attention(rms(x, 1 + own["input_layernorm.weight"]), own, spec, positions, documents, lambda w: 1 + w, 1e-6)
    x = x + rms(h, 1 + own["post_attention_layernorm.weight"])
    h = gated(rms(x, 1 + own["pre_feedforward_layernorm.weight"]), own, gelu)
    return x + rms(h, 1 + own["post_feedforward_layernorm.weight"])


def olmo2(x: Tensor, own: Weights, spec: LayerSpec, positions: list[int], documents: list[int]) -> Tensor:
    h = attention(x, own, spec, positions, documents, lambda w: w, 1e-6)
    x = x + rms(h, own["post_attention_layernorm.weight"])
    return x + rms(gated(x, own, silu), own["post_feedforward_layernorm.weight"])


def gpt2(x: Tensor, own: Weights, spec: LayerSpec, positions: list[int], documents: list[int]) -> Tensor:
    h = layer_norm(x, own["input_layernorm.weight"], own["input_layernorm.bias"])
    x = x + attention(h, own, spec, positions, documents, lambda w: w, 1e-5)
    h = layer_norm(x, own["pre_feedforward_layernorm.weight"], own["pre_feedforward_layernorm.bias"])
    h = gelu(h @ own["mlp.up_proj.weight"].T + own["mlp.up_proj.bias"])
    return x + h @ own["mlp.down_proj.weight"].T + own["mlp.down_proj.bias"]


def gpt_neox(x: Tensor, own: Weights, spec: LayerSpec, positions: list[int], documents: list[int]) -> Tensor:
    h = layer_norm(x, own["input_layernorm.weight"], own["input_layernorm.bias"])
    attended = attention(h, own, spec, positions, documents, lambda w: w, 1e-5)
    h = layer_norm(x, own["pre_feedforward_layernorm.weight"], own["pre_feedforward_layernorm.bias"])
    h = gelu_erf(h @ own["mlp.up_proj.weight"].T + own["mlp.up_proj.bias"])
    return x + attended + h @ own["mlp.down_proj.weight"].T + own["mlp.down_proj.bias"]


BLOCKS = {
    "standard": standard, "cohere2": cohere2, "gemma3": gemma3, "olmo2": olmo2, "gpt2": gpt2, "gpt_neox": gpt_neox,
}  # fmt: skip
FINAL_NORMS: dict[str, Callable[[Tensor, Tensor, Tensor | None], Tensor]] = {
    "standard": lambda x, w, b: rms(x, w),
    "cohere2": lambda x, w, b: layer_norm(x, w, None),
    "gemma3": lambda x, w, b: rms(x, 1 + w),
    "olmo2": lambda x, w, b: rms(x, w),
    "gpt2": layer_norm,
    "gpt_neox": layer_norm,
}


# ---- attention --------------------------------------------------------------------------------------------------


def attention(
    h: Tensor,
    own: Weights,
    spec: LayerSpec,
    positions: list[int],
    documents: list[int],
    norm_weight: Callable[[Tensor], Tensor],
    eps: float,
) -> Tensor:
    """All heads of one layer over one row (T, D)."""
    heads, kv_heads, width = spec.num_attention_heads, spec.num_key_value_heads, spec.head_dim
    qkv = h @ own["attention.qkv_proj.weight"].T + own.get("attention.qkv_proj.bias", torch.zeros(1).double())
    if spec.shared_qk:
        z, v = qkv.chunk(2, dim=-1)
        q_weight, q_bias, k_weight, k_bias = (
            own[f"attention.shared_qk.{n}"].flatten() for n in ("q_weight", "q_bias", "k_weight", "k_bias")
        )
        z = silu(z)
        of_heads = [z[:, head // (heads // kv_heads) * width :][:, :width] for head in range(heads)]
        q, k = torch.cat(of_heads, dim=-1) * q_weight + q_bias, z * k_weight + k_bias
    else:
        q, k, v = qkv.split([heads * width, kv_heads * width, kv_heads * width], dim=-1)
    if spec.qk_norm is not None and spec.qk_norm.order == "before_rope":
        q, k = (
            normed(x, own.get(f"attention.{n}_norm.norm.weight"), spec, norm_weight, eps)
            for x, n in ((q, "q"), (k, "k"))
        )
    if spec.position.scheme == "rope":
        q, k = (torch.cat([rotated(part, spec, positions) for part in x.split(width, dim=-1)], dim=-1) for x in (q, k))
    if spec.qk_norm is not None and spec.qk_norm.order == "after_rope":
        q, k = (
            normed(x, own.get(f"attention.{n}_norm.norm.weight"), spec, norm_weight, eps)
            for x, n in ((q, "q"), (k, "k"))
        )
    out = torch.zeros(len(h), heads * width, dtype=torch.float64)
    for head in range(heads):
        kv = head // (heads // kv_heads)
        mine = slice(head * width, (head + 1) * width)
        theirs = slice(kv * width, (kv + 1) * width)
        for t in range(len(h)):
            seen = [s for s in range(t + 1) if sees(spec, t, s, positions, documents)]
            query = q[t, mine] * temperature(spec, positions[t])
            scores = k[seen][:, theirs] @ query * spec.score_scale
            if spec.softcap is not None:
                scores = spec.softcap * torch.tanh(scores / spec.softcap)
            if spec.position.scheme == "alibi":
                # Heads are a power of two here: 2 ** (-8 (head + 1) / heads).
                slope = 2.0 ** (-8 * (head + 1) / heads)
                scores = scores - slope * torch.tensor([positions[t] - positions[s] for s in seen], dtype=torch.float64)
            weights = torch.exp(scores)
            total = weights.sum()
            if spec.sink_logits:
                total = total + torch.exp(own["attention.sinks"][head])
            out[t, mine] = (weights / total) @ v[seen][:, theirs]
    if spec.gate:
        out = out / (1 + torch.exp(-h @ own["attention.gate_proj.weight"].T))
    result = out @ own["attention.o_proj.weight"].T
    return result + own["attention.o_proj.bias"] if "attention.o_proj.bias" in own else result


def sees(spec: LayerSpec, query: int, key: int, positions: list[int], documents: list[int]) -> bool:
    if query == key:
        return True
    if key > query or documents[query] != documents[key] or documents[key] < 0:
        return False
    if spec.window is not None and key <= query - spec.window and positions[key] >= (spec.sink_tokens or 0):
        return False
    return spec.chunk is None or positions[query] // spec.chunk == positions[key] // spec.chunk


def normed(
    x: Tensor, weight: Tensor | None, spec: LayerSpec, norm_weight: Callable[[Tensor], Tensor], eps: float
) -> Tensor:
    """QK-norm over the full width or over each head."""
    norm = spec.qk_norm
    assert norm is not None
    parts = [x] if norm.over == "full" else list(x.split(spec.head_dim, dim=-1))
    if norm.type == "rms":
        assert weight is not None
        done = [rms(part, norm_weight(weight), eps) for part in parts]
    elif norm.type == "l2":
        done = [rms(part, 1.0, eps) for part in parts]
    else:
        assert weight is not None
        done = [layer_norm(part, weight, None, eps) for part in parts]
    return torch.cat(done, dim=-1)


def rotated(x: Tensor, spec: LayerSpec, positions: list[int]) -> Tensor:
    """One head (T, K), turned pair by pair."""
    rope = spec.position
    width = x.shape[1]
    share: float = rope.partial_rotary_factor  # type: ignore[attr-defined]
    neox = rope.rule == "neox"  # type: ignore[attr-defined]
    rotary = int(width * share) if neox else width
    pairs = rotary // 2
    turning = pairs if neox else int(share * width // 2)
    out = x.clone()
    for t, position in enumerate(positions):
        for i in range(turning):
            angle = position * rope.theta ** (-2 * i / rotary)  # type: ignore[attr-defined]
            if rope.scaling is not None:  # type: ignore[attr-defined]
                angle /= rope.scaling.factor  # type: ignore[attr-defined]  # linear alone
            a, b = (2 * i, 2 * i + 1) if rope.layout == "interleaved" else (i, i + pairs)  # type: ignore[attr-defined]
            c, s = math.cos(angle), math.sin(angle)
            out[t, a], out[t, b] = x[t, a] * c - x[t, b] * s, x[t, b] * c + x[t, a] * s
    return out


def temperature(spec: LayerSpec, position: int) -> float:
    scheme = spec.temperature
    if scheme is None:
        return 1.0
    if scheme.type == "llama4":
        return 1 + scheme.scale * math.log(1 + math.floor((position + 1) / scheme.floor))  # type: ignore[attr-defined]
    return math.log(scheme.base + position) / math.log(scheme.base)  # type: ignore[attr-defined]
