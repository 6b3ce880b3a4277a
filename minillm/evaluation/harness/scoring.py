"""Log-probabilities of many (context, continuation) pairs, and whether a greedy reader would have written them.

    log_likelihoods(model, [([0, 5, 9], [4, 4]), ([0, 5, 9], [7])])          # [(-3.1, False), (-0.2, True)]

A long context that several continuations share is read once; the others go in batches of like length, padded on the
right, where nothing looks at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from minillm.evaluation.ruler.likelihood import choose
from minillm.evaluation.scoring import SLICE, autocast
from minillm.model.decoder import Decoder

Pair = tuple[Sequence[int], Sequence[int]]
Scored = tuple[float, bool]
"""Summed log-probability in nats, and whether each token is the likeliest one."""
LONG = 128
"""Tokens from which a shared context is worth a cache of its own."""


@torch.inference_mode()
def log_likelihoods(
    model: Decoder,
    pairs: Sequence[Pair],
    batch_tokens: int = 8192,
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> list[Scored]:
    """Of each pair, in their order.

    Args:
        model: in eval mode.
        pairs: ids, at least one in each part.
        batch_tokens: most tokens in a forward pass (a longer pair goes alone).
        precision: fp32, or bf16 for autocast matrix products.
        progress: called with the number of pairs just scored.
    """
    found: dict[int, Scored] = {}
    sharing: dict[tuple[int, ...], list[int]] = {}
    for number, (context, _) in enumerate(pairs):
        sharing.setdefault(tuple(context), []).append(number)
    device = model.embed_tokens.weight.device
    alone: list[int] = []
    for ids, numbers in sharing.items():
        if len(numbers) == 1 or len(ids) < LONG:
            alone += numbers
            continue
        with autocast(device, precision):
            likelihoods = choose(model, ids, [pairs[i][1] for i in numbers], batch_tokens)
        found.update((i, (one.log_probability, one.greedy)) for i, one in zip(numbers, likelihoods, strict=True))
        if progress is not None:
            progress(len(numbers))
    for batch in _batches(model, pairs, alone, batch_tokens):
        found.update(zip(batch, _forward(model, [pairs[i] for i in batch], precision), strict=True))
        if progress is not None:
            progress(len(batch))
    return [found[i] for i in range(len(pairs))]


def _batches(model: Decoder, pairs: Sequence[Pair], numbers: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Longest first, so that a memory that is too small is known at once."""
    # Where keys depend on the length of the whole row, padding would change them.
    equal_only = any(spec.position.cache_limit is not None for spec in model.layer_specs)
    batch: list[int] = []
    longest = 0
    for number in sorted(numbers, key=lambda i: -_length(pairs[i])):
        length = _length(pairs[number])
        if batch and ((len(batch) + 1) * longest > batch_tokens or (equal_only and length != longest)):
            yield batch
            batch = []
        longest = length if not batch else longest
        batch.append(number)
    if batch:
        yield batch


def _length(pair: Pair) -> int:
    return len(pair[0]) + len(pair[1]) - 1


def _forward(model: Decoder, batch: Sequence[Pair], precision: str) -> list[Scored]:
    device = model.embed_tokens.weight.device
    longest = max(map(_length, batch))
    # The last token of a continuation is only predicted, never read.
    rows = [[*context, *continuation][:-1] for context, continuation in batch]
    tokens = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.int64, device=device)
    with autocast(device, precision):
        hidden = model.hidden(tokens)
    states = torch.cat([hidden[i, len(c) - 1 : len(c) - 1 + len(k)] for i, (c, k) in enumerate(batch)]).float()
    targets = torch.tensor([token for _, k in batch for token in k], dtype=torch.int64, device=device)
    log_p, right = [], []
    for start in range(0, len(targets), SLICE):
        # Outside of autocast: logits rounded to bf16 would move each sum by some hundredths.
        logits = model.logits(states[None, start : start + SLICE])[0].float()
        wanted = targets[start : start + SLICE]
        log_p.append(torch.log_softmax(logits, dim=-1).gather(-1, wanted[:, None])[:, 0].double().cpu())
        right.append((logits.argmax(dim=-1) == wanted).cpu())
    sizes = [len(k) for _, k in batch]
    parts = zip(torch.cat(log_p).split(sizes), torch.cat(right).split(sizes), strict=True)
    return [(float(values.sum()), bool(hits.all())) for values, hits in parts]
