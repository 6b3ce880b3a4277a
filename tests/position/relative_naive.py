"""Attention with relative terms written a second time: one query and one key at a time, in float64, from the papers.

It reads the fields of the layer's spec and the parameters of its position module, and nothing else of the package.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from minillm.config.layers import LayerSpec

Weights = dict[str, Tensor]
Term = Callable[[LayerSpec, Weights, int, Tensor, Tensor, int], Tensor]


def shaw(spec: LayerSpec, own: Weights, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    return q @ own["key_vectors.weight"][min(distance, spec.position.max_distance)]  # type: ignore[attr-defined]


def transformer_xl(spec: LayerSpec, own: Weights, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    width = spec.num_attention_heads * spec.head_dim
    angles = [distance / 10000 ** (2 * i / width) for i in range(width // 2)]
    wave = torch.tensor([math.sin(a) for a in angles] + [math.cos(a) for a in angles], dtype=torch.float64)
    mine = slice(head * spec.head_dim, (head + 1) * spec.head_dim)
    r = own["r_proj.weight"][mine] @ wave
    u, v = (own[name].unflatten(0, (-1, len(q)))[head] for name in ("u", "v"))
    return q @ r + u @ k + v @ r


def deberta(spec: LayerSpec, own: Weights, head: int, q: Tensor, k: Tensor, distance: int) -> Tensor:
    row = own["table.weight"][min(distance, len(own["table.weight"]) - 1)]
    out = torch.zeros((), dtype=torch.float64)
    if "key_proj.weight" in own:
        key_head = head // (spec.num_attention_heads // spec.num_key_value_heads)
        out = out + q @ (own["key_proj.weight"][key_head * spec.head_dim : (key_head + 1) * spec.head_dim] @ row)
    if "query_proj.weight" in own:
        out = out + k @ (own["query_proj.weight"][head * spec.head_dim : (head + 1) * spec.head_dim] @ row)
    return out


TERMS: dict[str, Term] = {"shaw": shaw, "transformer_xl": transformer_xl, "deberta": deberta}


def attention(
    spec: LayerSpec, own: Weights, q: Tensor, k: Tensor, v: Tensor, documents: list[list[int]], positions: list[int]
) -> Tensor:
    """(B, H, T, K) float64. `positions` are those of a row that is one document; several count from 0 each."""
    parts = 1 + len(spec.position.terms) if spec.position.scheme == "deberta" else 1  # type: ignore[attr-defined]
    term = TERMS[spec.position.scheme]
    groups = spec.num_attention_heads // spec.num_key_value_heads
    rows = []
    for b, ids in enumerate(documents):
        at = positions if len(set(ids)) == 1 else [sum(d == ids[t] for d in ids[:t]) for t in range(len(ids))]
        for head in range(spec.num_attention_heads):
            for i in range(len(ids)):
                seen = [j for j in range(i + 1) if i == j or (ids[i] == ids[j] >= 0 and _sees(spec, i, j, at))]
                keys, values = k[b, head // groups], v[b, head // groups]
                scores = [
                    (q[b, head, i] @ keys[j] + term(spec, own, head, q[b, head, i], keys[j], at[i] - at[j]))
                    / math.sqrt(spec.head_dim * parts)
                    for j in seen
                ]
                weights = torch.stack(scores).softmax(0)
                out = weights @ values[seen]
                if "value_vectors.weight" in own:
                    vectors = own["value_vectors.weight"]
                    out = out + weights @ torch.stack([vectors[min(at[i] - at[j], len(vectors) - 1)] for j in seen])
                rows.append(out)
    return torch.stack(rows).reshape(q.shape)


def _sees(spec: LayerSpec, i: int, j: int, at: list[int]) -> bool:
    if spec.window is not None:
        return i - j < spec.window
    return spec.chunk is None or at[i] // spec.chunk == at[j] // spec.chunk
