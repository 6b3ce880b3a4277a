"""Which windows of a document each protocol reads, and which of their tokens it scores. Pure functions, no model.

A document is `[start marker] + tokens`, as in training: the marker (bos) stands once, in front of the document. A
window that begins inside the document begins with its text, as a training window does; nothing is added to any window.
Four protocols cut the same documents:

position         one window of the longest length from the document's start; each token is scored by its context length.
same_target      the same last tokens, read with a context of 1x, 2x, ... the training length. Its windows all begin
                 inside the document, so no context holds the start marker and another does not.
non_overlapping  windows of one length laid end to end, every token scored (the "early-token curse": a token near a
                 window's start has little context, and longer windows have fewer of those).
strided          windows that advance by a stride and score only what the last one did not; the first is scored whole.

    score, = strided(document=0, limit=6144, length=256, stride=128)[:1]
    score.window, score.first          # Window(0, 0, 256), 0: all of its 256 predictions count

A window of `length` inputs has `length` predictions: input j (from 0) predicts the next token from j + 1 of context.
"""

from __future__ import annotations

from typing import NamedTuple


class Window(NamedTuple):
    """Inputs `start .. start + length - 1` of a document; its targets are the tokens one further on."""

    document: int
    start: int
    length: int


class Scored(NamedTuple):
    """A window of which the predictions `first ..` count."""

    window: Window
    first: int


def from_the_start(document: int, length: int) -> Scored:
    """The document's first `length` predictions, in one window."""
    return Scored(Window(document, 0, length), 0)


def same_target(document: int, end: int, context: int, targets: int) -> Scored:
    """The last `targets` predictions before input `end`, from a window of `context` inputs that ends there."""
    if targets > context:
        raise ValueError(f"{targets} targets do not fit a context of {context} tokens")
    if end - context < 1:
        raise ValueError(f"a context of {context} tokens that ends at {end} would hold the start marker")
    return Scored(Window(document, end - context, context), context - targets)


def non_overlapping(document: int, limit: int, length: int) -> list[Scored]:
    """The first `limit` predictions in windows of `length` end to end; the last may be shorter. Each counts once."""
    return [Scored(Window(document, start, min(length, limit - start)), 0) for start in range(0, limit, length)]


def strided(document: int, limit: int, length: int, stride: int) -> list[Scored]:
    """The first `limit` predictions, each once: a whole first window, then `stride` further predictions at a time.

    Every window but a document shorter than one has `length` inputs, so from the second on each scored token has at
    least `length - stride` tokens of context. The last window ends at `limit` and may score fewer.
    """
    if not 1 <= stride <= length:
        raise ValueError(f"a stride of {stride} does not fit windows of {length} tokens")
    first = min(length, limit)
    scored = [Scored(Window(document, 0, first), 0)]
    done = first
    while done < limit:
        end = min(done + stride, limit)
        scored.append(Scored(Window(document, end - length, length), length - (end - done)))
        done = end
    return scored


def position_bins(train_length: int, longest: int) -> list[tuple[int, int]]:
    """Bins of context length in tokens, both ends included: doubling, with an edge at every multiple 1, 2, 4, ... of
    the training length, the first reaching down to 1. ``(1, 16), (17, 32), ... (129, 256), (257, 512), ...``
    """
    edges = [train_length]
    while edges[0] // 2 >= 16:
        edges.insert(0, edges[0] // 2)
    while edges[-1] * 2 <= longest:
        edges.append(edges[-1] * 2)
    if edges[-1] < longest:
        edges.append(longest)
    return [(low + 1, high) for low, high in zip([0, *edges], edges, strict=False)]
