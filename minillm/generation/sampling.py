"""From logits to one id a row: repetition penalty, temperature, then the cuts top_k, top_p and min_p, in this order.

It is the order of transformers, so that settings mean the same there.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import ConfigError


@dataclass(frozen=True)
class Sampling:
    """How the next id is drawn; the arguments of `generate` of these names."""

    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float = 1.0

    def __post_init__(self) -> None:
        if not self.temperature >= 0:
            raise ConfigError(f"temperature = {self.temperature}: must be 0 (greedy) or above.")
        if self.top_k is not None and self.top_k < 0:
            raise ConfigError(f"top_k = {self.top_k}: must not be negative.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ConfigError(f"top_p = {self.top_p}: must be above 0 and at most 1.")
        if self.min_p is not None and not 0 <= self.min_p <= 1:
            raise ConfigError(f"min_p = {self.min_p}: must be from 0 to 1.")
        if not 0 < self.repetition_penalty < float("inf"):
            raise ConfigError(f"repetition_penalty = {self.repetition_penalty}: must be above 0; 1 changes nothing.")


def pick(
    logits: Float[Tensor, "B V"], sampling: Sampling, generators: Sequence[torch.Generator | None]
) -> Int[Tensor, "B"]:
    """One id per row: the likeliest at temperature 0, else one drawn."""
    if sampling.temperature == 0:
        return logits.argmax(dim=-1)
    probs = probabilities(logits, sampling)
    return torch.cat([torch.multinomial(p, 1, generator=g) for p, g in zip(probs, generators, strict=True)])


def probabilities(logits: Float[Tensor, "B V"], sampling: Sampling) -> Float[Tensor, "B V"]:
    """What ids are drawn from, float64, up to a factor: 0 for those that are cut off. The likeliest never is."""
    best = logits.amax(dim=-1, keepdim=True)
    # Relative to the best first: a tiny temperature then gives 0 and -inf, never NaN.
    scaled = (logits - best).double() / sampling.temperature
    if sampling.top_k and sampling.top_k < logits.shape[-1]:
        # By place and not by value: of equal logits no more than top_k are kept.
        kept = scaled.topk(sampling.top_k, dim=-1)
        scaled = torch.full_like(scaled, float("-inf")).scatter(1, kept.indices, kept.values)
    probs = torch.softmax(scaled, dim=-1)
    if sampling.top_p is not None and sampling.top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= sampling.top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(1, order, ordered)
    if sampling.min_p:
        probs = probs.masked_fill(probs < sampling.min_p * probs.amax(dim=-1, keepdim=True), 0.0)
    return probs


class Repetition:
    """Logits of ids that a row holds already, its prompt included, are divided by the penalty where positive and
    multiplied where negative (CTRL, arXiv 1909.05858, section 4.1; the sign as transformers has it)."""

    def __init__(self, penalty: float, prompts: Sequence[Sequence[int]], vocab_size: int, device: torch.device) -> None:
        self.penalty = penalty
        self._held = torch.zeros(len(prompts), vocab_size, dtype=torch.bool, device=device)
        if penalty != 1:
            for row, prompt in enumerate(prompts):
                self._held[row, torch.tensor(list(prompt), dtype=torch.int64, device=device)] = True

    def apply(self, logits: Float[Tensor, "B V"]) -> Float[Tensor, "B V"]:
        if self.penalty == 1:
            return logits
        return torch.where(self._held, torch.where(logits < 0, logits * self.penalty, logits / self.penalty), logits)

    def add(self, ids: Int[Tensor, "B"]) -> None:
        if self.penalty != 1:
            self._held.scatter_(1, ids[:, None], True)


def generators_for(seed: int | Sequence[int] | None, rows: int, device: torch.device) -> list[torch.Generator | None]:
    """The random numbers of each row: of a row's own seed, or of one seed and the row's place."""
    if seed is None:
        return [None] * rows
    if isinstance(seed, int):
        names = [f"{seed}:{row}" for row in range(rows)]
    else:
        if len(seed) != rows:
            raise ConfigError(f"seed: {len(seed)} seeds for {rows} prompts. Allowed: one number, or one for each.")
        names = [f"{one}:0" for one in seed]
    # 32 bits, well mixed: torch's CPU generator drops what is above them.
    return [torch.Generator(device=device).manual_seed(zlib.crc32(name.encode())) for name in names]
