"""How alike two models attend: Jensen-Shannon divergence of their probabilities on the same rows of the same text.

Kazemnejad et al. 2023 (arXiv 2305.19466) found NoPE's attention closest to that of T5's bias. Each run keeps the
probabilities of a few rows of its documents' beginnings (one byte each), and a report compares runs that read the same
tokens: for layers at one depth, the two heads that are most alike, averaged over layers (their equation),
and all pairs of heads. In bits: 0 is equal, 1 is nothing in common.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from minillm.attention.tokens import StepContext, cut
from minillm.evaluation.attention.cases import Case
from minillm.evaluation.attention.probe import probabilities
from minillm.evaluation.attention.summary import Row, row
from minillm.model.attention import Attention

STEPS = 255
"""Probabilities are kept as round(255 sqrt(p)): fine where they are small, one byte each."""


class Keeper:
    """Collects rows of the first `cases` cases: `also` is what `collect` calls."""

    def __init__(self, cases: Sequence[Case], documents: int, rows: int, longest: int) -> None:
        self.left = min(documents, len(cases))
        self.tokens = min([longest, *(case.question for case in cases[: self.left])]) if self.left else 0
        self.at = np.unique(np.linspace(self.tokens // 10, self.tokens - 1, rows).round().astype(np.int64))
        self.digest = tokens_digest([case.tokens[: self.tokens] for case in cases[: self.left]])
        self.kept: dict[int, list[np.ndarray]] = {}

    def also(self, index: int, attention: Attention, q: Tensor, k: Tensor, context: StepContext) -> None:
        """Keep this layer's rows, as long as cases are missing."""
        have = sum(len(x) for x in self.kept.get(index, []))
        take = min(q.shape[0], self.left - have)
        if take <= 0:
            return
        at = torch.from_numpy(self.at).to(q.device)
        tokens = cut(context.tokens, 0, self.tokens)
        p = probabilities(
            q[:take, :, at], k[:take, :, : self.tokens], attention.spec, attention.position, tokens, at.expand(take, -1)
        )
        self.kept.setdefault(index, []).append(p.float().cpu().numpy())

    def rows(self, length: int, kinds: Mapping[int, str]) -> list[Row]:
        """One row a layer, with its probabilities packed in `data`."""
        rows = []
        for index, parts in self.kept.items():
            data = {**pack(np.concatenate(parts)), "tokens": self.digest}
            rows.append(row("attention_rows", length, layer=index, kind=kinds[index], data=data))
        return rows


def tokens_digest(tokens: Sequence[np.ndarray]) -> str:
    """Sixteen hex digits over some rows of tokens."""
    return hashlib.sha256(b"".join(np.ascontiguousarray(t, np.int64).tobytes() for t in tokens)).hexdigest()[:16]


def pack(p: np.ndarray) -> dict[str, Any]:
    """(N, H, P, T) probabilities as text; keys after a row's own are 0 and compress to nothing."""
    bytes_ = np.round(STEPS * np.sqrt(p)).astype(np.uint8)
    return {"shape": list(p.shape), "zip": base64.b64encode(zlib.compress(bytes_.tobytes(), 9)).decode()}


def unpack(data: Mapping[str, Any]) -> np.ndarray:
    """What `pack` was given, to a thousandth or so, each row adding up to 1; float64."""
    bytes_ = np.frombuffer(zlib.decompress(base64.b64decode(data["zip"])), np.uint8).reshape(data["shape"])
    p = (bytes_.astype(np.float64) / STEPS) ** 2
    return p / p.sum(axis=-1, keepdims=True)


def divergence(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Jensen-Shannon divergence in bits along the last axis, broadcast over the others."""
    middle = (p + q) / 2
    return (_against(p, middle) + _against(q, middle)) / 2


def _against(p: np.ndarray, middle: np.ndarray) -> np.ndarray:
    ratio = np.divide(p, middle, out=np.ones_like(middle), where=p > 0)
    return (p * np.log2(ratio)).sum(axis=-1)


def between_heads(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """(N, H, P, T) and (N, H2, P, T) of one layer of each model -> (H, H2) mean divergence over samples and rows."""
    return np.stack(
        [np.stack([divergence(a[:, h], b[:, g]).mean() for g in range(b.shape[1])]) for h in range(a.shape[1])]
    )
