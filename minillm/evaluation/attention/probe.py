"""Attention of a few rows, exactly, in memory that grows with rows x keys of one block and never with keys squared.

The fused kernels give no probabilities. Here the scores of P probe rows against one block of keys after another are
those of the layer itself (`attention.reference.masked_scores`: mask, bias, scale, soft-cap and relative terms have no
second home), and a running maximum m, sum l = sum e^(s - m) and weighted sums are kept, as a fused kernel does::

    rows = probe(q, k, layer, tokens, at=rows, features=one_hot_segments)
    rows.sums          # (B, H, P, F): sum over keys of probability x feature
    rows.entropy       # (B, H, P), nats: log l - (sum e^(s - m) (s - m)) / l

A sink's logit (`LayerSpec.sink_logits`) takes part in no sum: probabilities are those among the keys and add up to 1.
What the sink takes of the whole is `to_sink`. Shapes: B samples, H query heads, P rows, T keys, F features, N bins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F

from minillm.attention.mask import Call, visible
from minillm.attention.reference import masked_scores
from minillm.attention.tokens import StepContext, Tokens, cut
from minillm.config.layers import LayerSpec
from minillm.position.base import LayerPosition

BLOCK = 2048
"""Keys whose scores are held at once."""


@dataclass(frozen=True)
class Rows:
    """Attention of the probe rows of one layer; float64 where nothing else is said."""

    sums: Float[Tensor, "B H P F"]
    """Probability times feature, summed over keys."""
    by_distance: Float[Tensor, "B H P N"]
    """Probability by distance to the key, in the bins of `bin_edges`; sums to 1."""
    keys_by_distance: Float[Tensor, "B P N"]
    """Visible keys in each of these bins."""
    visible: Float[Tensor, "B P"]
    """Visible keys."""
    entropy: Float[Tensor, "B H P"]
    """Nats; never above log(visible)."""
    logsumexp: Float[Tensor, "B H P"]
    """Of the masked scores, sinks apart."""
    distance: Float[Tensor, "B H P"]
    """Expected distance to the key in tokens; the query itself is at 0."""
    top: Int[Tensor, "B H P"]
    """Index of the key of highest probability, the first of equal ones, int64."""
    on_first: Float[Tensor, "B H P"]
    """Probability of the row's key 0."""
    sees_first: Bool[Tensor, "B P"]
    to_sink: Float[Tensor, "B H P"]
    """What the layer's sink logit takes beside all keys; 0 where it has none."""


def bin_edges(length: int) -> list[tuple[int, int]]:
    """First and last distance of each bin that a row of `length` tokens can have: 0, 1, 2-3, 4-7, 8-15, ..."""
    return [(0, 0), *((1 << bit, (2 << bit) - 1) for bit in range((length - 1).bit_length()))]


@torch.no_grad()
def probe(
    q: Float[Tensor, "B H P K"],
    k: Float[Tensor, "B G T K"],
    spec: LayerSpec,
    position: LayerPosition | None,
    tokens: Tokens,
    at: Int[Tensor, "B P"],
    features: Float[Tensor, "B T F"],
    sinks: Float[Tensor, "H"] | None = None,
    block: int = BLOCK,
) -> Rows:
    """Statistics of the rows `at`.

    Args:
        q, k: as `Attention.project` gives them; q of the probe rows alone.
        tokens: of all keys; the row is whole (no cache), so that index 0 is its first token.
        at: indices of the probe rows, in any order.
        features: what is summed over keys, weighted by probability.
    """
    queries = pick(tokens, at)
    sums = _Sums(q, tokens.index.shape[1], features.shape[-1])
    for start, keys in _seen_blocks(spec, queries, tokens, block):
        stop = start + keys.index.shape[1]
        context = StepContext(queries, contiguous=False)  # shares nothing between blocks
        call = Call(q, k[:, :, start:stop], k[:, :, start:stop], spec, queries, keys, context, position)
        sums.add(masked_scores(call).double(), at, start, features[:, start:stop])
    return sums.rows(at, sinks)


@torch.no_grad()
def probabilities(
    q: Float[Tensor, "B H P K"],
    k: Float[Tensor, "B G T K"],
    spec: LayerSpec,
    position: LayerPosition | None,
    tokens: Tokens,
    at: Int[Tensor, "B P"],
) -> Float[Tensor, "B H P T"]:
    """The probabilities among keys themselves, for short rows: one softmax, sinks apart."""
    queries = pick(tokens, at)
    context = StepContext(queries, contiguous=False)
    return masked_scores(Call(q, k, k, spec, queries, tokens, context, position)).softmax(dim=-1)


def pick(tokens: Tokens, at: Int[Tensor, "B P"]) -> Tokens:
    """The tokens of the rows `at`, other ones in each sample."""

    def rows(x: Tensor) -> Tensor:
        return x.expand(at.shape[0], -1).gather(1, at)

    index = rows(tokens.index)
    position = index if tokens.position is tokens.index else rows(tokens.position)
    return Tokens(index, position, None if tokens.document is None else rows(tokens.document))


def _seen_blocks(spec: LayerSpec, queries: Tokens, tokens: Tokens, block: int) -> Iterator[tuple[int, Tokens]]:
    """Blocks of keys of which some row sees some: a window's rows see few of a long text."""
    length = tokens.index.shape[1]
    for start in range(0, length, block):
        keys = cut(tokens, start, min(start + block, length))
        if visible(spec.mask_key, queries, keys).any():
            yield start, keys


class _Sums:
    """Running sums of one layer, relative to the running maximum."""

    def __init__(self, q: Tensor, length: int, features: int) -> None:
        samples, heads, rows, _ = q.shape
        lows = [low for low, _ in bin_edges(length)]
        self.lows = torch.tensor([*lows, length], device=q.device)
        self.width, bins = features, len(lows)
        self.max = torch.full((samples, heads, rows), float("-inf"), dtype=torch.float64, device=q.device)
        self.total = torch.zeros_like(self.max)
        self.times_score = torch.zeros_like(self.max)
        self.top = torch.zeros_like(self.max, dtype=torch.int64)
        self.weighted = self.max.new_zeros(samples, heads, rows, features + 2)
        """By the features, by the key's index, and the weight of key 0."""
        self.binned = self.max.new_zeros(samples, heads, rows, bins)
        self.counts = self.max.new_zeros(samples, 1, rows, bins)
        self.sees_first = torch.zeros_like(self.max[:, 0], dtype=torch.bool)

    def add(self, scores: Tensor, at: Tensor, start: int, features: Tensor) -> None:
        """Scores (B, H, P, block), float64, of the keys from index `start` on."""
        highest, where = scores.max(dim=-1)
        new = torch.maximum(self.max, highest)
        # Of a row that has seen no key yet the maximum is -inf, and -inf minus -inf is no number.
        safe = new.masked_fill(new == float("-inf"), 0.0)
        shrink = (self.max - safe).exp()
        lower = torch.where(self.total > 0, self.max - safe, 0.0)
        self.top = torch.where(highest > self.max, where + start, self.top)
        self.max = new

        shifted = scores - safe[..., None]
        weight = shifted.exp()
        unseen = shifted == float("-inf")
        product = (weight * shifted.masked_fill_(unseen, 0.0)).sum(dim=-1)
        self.times_score = shrink * (self.times_score + self.total * lower) + product
        self.total = shrink * self.total + weight.sum(dim=-1)
        place = torch.arange(start, start + scores.shape[-1], device=scores.device)
        of_key = torch.stack([place, place == 0], dim=-1).double().expand(len(features), -1, -1)
        by_key = torch.cat([features.double(), of_key], dim=-1)
        added = (weight.flatten(1, 2) @ by_key).unflatten(1, weight.shape[1:3])
        self.weighted = shrink[..., None] * self.weighted + added
        self.binned = shrink[..., None] * self.binned + self._by_bin(weight, at, start)
        # A layer's heads see the same keys.
        seen = (~unseen[:, :1]).double()
        self.counts = self.counts + self._by_bin(seen, at, start)
        if start == 0:
            self.sees_first = seen[:, 0, :, 0] > 0

    def _by_bin(self, x: Tensor, at: Tensor, start: int) -> Tensor:
        """Sums over the keys of each bin of distances: keys are in order, so a bin is a stretch of them."""
        running = F.pad(x.cumsum(dim=-1), (1, 0))
        ends = (at[:, :, None] + 1 - self.lows - start).clamp(0, x.shape[-1])
        upto = running.gather(-1, ends[:, None].expand(-1, x.shape[1], -1, -1))
        return upto[..., :-1] - upto[..., 1:]

    def rows(self, at: Tensor, sinks: Tensor | None) -> Rows:
        sums, index, on_first = (self.weighted / self.total[..., None]).split([self.width, 1, 1], dim=-1)
        logsumexp = self.max + self.total.log()
        to_sink = torch.zeros_like(logsumexp)
        if sinks is not None:
            to_sink = (sinks.double()[:, None] - logsumexp).sigmoid()
        return Rows(
            sums=sums,
            by_distance=self.binned / self.total[..., None],
            keys_by_distance=self.counts[:, 0],
            visible=self.counts[:, 0].sum(dim=-1),
            entropy=self.total.log() - self.times_score / self.total,
            logsumexp=logsumexp,
            distance=at[:, None] - index[..., 0],
            top=self.top,
            on_first=on_first[..., 0],
            sees_first=self.sees_first,
            to_sink=to_sink,
        )
