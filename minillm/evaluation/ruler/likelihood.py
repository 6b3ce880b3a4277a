"""Log-probabilities of several continuations of one text, which is read once.

    choose(model, [1, 5, 9], [[4, 4], [7]])          # [Likelihood(-3.1, 2), Likelihood(-2.2, 1)]

The text goes into a cache, whose copies the continuations go on from. Where no cache is exact (a rotary scaling that
depends on the length) each continuation is read behind the whole text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from minillm.errors import CacheNotExact
from minillm.generation import PREFILL_TOKENS
from minillm.model.decoder import Decoder


class Likelihood(NamedTuple):
    """Of one continuation, in nats."""

    log_probability: float
    """Summed over its tokens."""
    tokens: int
    greedy: bool = False
    """Whether each of its tokens is the likeliest one."""


@torch.inference_mode()
def choose(
    model: Decoder, context: Sequence[int], continuations: Sequence[Sequence[int]], batch_tokens: int = 8192
) -> list[Likelihood]:
    """log p(continuation | context) of each.

    Args:
        context: at least one token.
        continuations: at least one token each.
        batch_tokens: most tokens of all rows together, texts included, that are held at once (one row at least).
    """
    try:
        return _cached(model, context, continuations, batch_tokens)
    except CacheNotExact:
        return _whole(model, context, continuations, batch_tokens)


def _cached(
    model: Decoder, context: Sequence[int], continuations: Sequence[Sequence[int]], batch_tokens: int
) -> list[Likelihood]:
    device = model.embed_tokens.weight.device
    tokens = torch.tensor([list(context)], dtype=torch.int64, device=device)
    cache = model.new_cache(1)
    for start in range(0, tokens.shape[1], PREFILL_TOKENS):
        hidden = model.hidden(tokens[:, start : start + PREFILL_TOKENS], cache=cache)
    last = hidden[:, -1:].float()
    found = []
    for group in _groups(continuations, batch_tokens, len(context)):
        rows = _padded(group, device)
        states = last.expand(len(group), -1, -1)
        if rows.shape[1] > 1:
            # The last token of a continuation is only predicted, never read.
            read = model.hidden(rows[:, :-1], cache=cache.repeated(len(group)))
            states = torch.cat([states, read.float()], dim=1)
        found += _summed(model, states, rows, group)
    return found


def _whole(
    model: Decoder, context: Sequence[int], continuations: Sequence[Sequence[int]], batch_tokens: int
) -> list[Likelihood]:
    device = model.embed_tokens.weight.device
    found = []
    for group in _groups(continuations, batch_tokens, len(context)):
        # One by one where their lengths differ: keys may depend on the length of the whole text, padding included.
        for same in _of_one_length(group):
            rows = _padded(same, device)
            texts = torch.tensor([list(context)] * len(same), dtype=torch.int64, device=device)
            hidden = model.hidden(torch.cat([texts, rows[:, :-1]], dim=1))
            found += _summed(model, hidden[:, len(context) - 1 :].float(), rows, same)
    return found


def _summed(model: Decoder, states: Tensor, rows: Tensor, continuations: Sequence[Sequence[int]]) -> list[Likelihood]:
    """(B, n, D) states and the (B, n) tokens that follow each."""
    # Not under the caller's autocast: logits rounded to bf16 would move each sum by some hundredths.
    with torch.autocast(states.device.type, enabled=False):
        log_p = torch.log_softmax(model.logits(states).float(), dim=-1)
    of_tokens = log_p.gather(-1, rows[:, :, None])[:, :, 0].double().cpu()
    best = (log_p.argmax(dim=-1) == rows).cpu()
    return [
        Likelihood(float(line[: len(c)].sum()), len(c), bool(hits[: len(c)].all()))
        for line, hits, c in zip(of_tokens, best, continuations, strict=True)
    ]


def _groups(continuations: Sequence[Sequence[int]], batch_tokens: int, length: int) -> list[Sequence[Sequence[int]]]:
    """As few groups of nearly equal size as the batch allows."""
    most = max(1, batch_tokens // (length + max(map(len, continuations))))
    parts = -(-len(continuations) // most)
    size = -(-len(continuations) // parts)
    return [continuations[i : i + size] for i in range(0, len(continuations), size)]


def _of_one_length(continuations: Sequence[Sequence[int]]) -> list[Sequence[Sequence[int]]]:
    """Runs of neighbours of equal length: the order stays."""
    runs: list[list[Sequence[int]]] = []
    for one in continuations:
        if runs and len(runs[-1][0]) == len(one):
            runs[-1].append(one)
        else:
            runs.append([one])
    return list(runs)


def _padded(continuations: Sequence[Sequence[int]], device: torch.device) -> Tensor:
    """(B, n), shorter ones filled up on the right, where nothing looks at."""
    longest = max(map(len, continuations))
    return torch.tensor([[*c, *[0] * (longest - len(c))] for c in continuations], dtype=torch.int64, device=device)
