"""Negative log-likelihoods of every token of many windows: each distinct window is read once, whoever asks for it.

Protocols overlap (the windows of `non_overlapping` at 16x are the first window of `strided`, and so on): asking for
the union here makes the shared ones free and exactly equal. Windows of one length share a batch; a batch holds at
most `batch_tokens` tokens. The log-softmax is float32 whatever the model computes in.

    nll = score_windows(model, documents, windows)      # {Window: float32 array (length,) or None}
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from minillm.errors import PositionUndefined
from minillm.evaluation.windows import Window


class LanguageModel(Protocol):
    """What scoring needs of a model; `minillm.model.decoder.Decoder` has it."""

    def hidden(self, tokens: Tensor, /) -> Tensor:
        """(B, T) int64 -> (B, T, D), after the last norm."""
        ...

    def logits(self, hidden: Tensor, /) -> Tensor:
        """(B, T, D) -> (B, T, V)."""
        ...


SLICE = 1024
"""Tokens whose logits are held at once: those of a whole batch would be the largest tensor by far."""


NLLs = dict[Window, np.ndarray | None]


def token_nll(logits: Float[Tensor, "B T V"], targets: Int[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """-log p(target) in nats, float32, whatever the dtype of the logits."""
    flat = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction="none")
    return flat.view(targets.shape)


@torch.inference_mode()
def score_windows(
    model: LanguageModel,
    documents: Sequence[np.ndarray],
    windows: Iterable[Window],
    batch_tokens: int = 4096,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> NLLs:
    """The NLL of each prediction of each window, in nats.

    Args:
        model: in eval mode, on `device`.
        documents: token ids, each with its start marker in front.
        windows: repeated ones are read once.
        batch_tokens: most tokens in a forward pass (a longer window goes alone).
        precision: fp32, or bf16 for autocast matrix products.
        progress: called with the number of tokens just read.

    Returns:
        For each window (length,) float32, or None where the model has no meaning at that length (PositionUndefined).
    """
    results: NLLs = {}
    undefined_from: int | None = None
    for batch in batches(windows, batch_tokens):
        length = batch[0].length
        if undefined_from is None or length < undefined_from:
            try:
                nll = _forward(model, documents, batch, device, precision)
                results.update(zip(batch, nll, strict=True))
            except PositionUndefined:
                undefined_from = length
        if undefined_from is not None and length >= undefined_from:
            results.update(dict.fromkeys(batch))
        if progress is not None:
            progress(length * len(batch))
    return results


def batches(windows: Iterable[Window], batch_tokens: int) -> Iterator[list[Window]]:
    """Distinct windows in batches of one length, shortest first."""
    by_length: dict[int, list[Window]] = defaultdict(list)
    for window in sorted(set(windows)):
        by_length[window.length].append(window)
    for length in sorted(by_length):
        rows = max(1, batch_tokens // length)
        same = by_length[length]
        yield from (same[i : i + rows] for i in range(0, len(same), rows))


def _forward(
    model: LanguageModel,
    documents: Sequence[np.ndarray],
    batch: Sequence[Window],
    device: torch.device | str,
    precision: str,
) -> np.ndarray:
    pieces = np.stack([_piece(documents[w.document], w) for w in batch])
    both = torch.from_numpy(pieces).to(device)
    with autocast(device, precision):
        hidden = model.hidden(both[:, :-1])
    # Outside of autocast: logits rounded to bf16 would move each NLL by up to a few hundredths.
    flat, targets = hidden.float().flatten(0, 1)[None], both[:, 1:].flatten()[None]
    parts = [
        token_nll(model.logits(flat[:, i : i + SLICE]), targets[:, i : i + SLICE])
        for i in range(0, flat.shape[1], SLICE)
    ]
    return torch.cat(parts, dim=1).view(len(batch), -1).cpu().numpy()


def _piece(ids: np.ndarray, window: Window) -> np.ndarray:
    end = window.start + window.length + 1
    if window.start < 0 or end > len(ids):
        raise IndexError(f"{window} does not fit a document of {len(ids)} tokens")
    return np.asarray(ids[window.start : end], np.int64)


def autocast(device: torch.device | str, precision: str) -> Any:
    """The context in which a forward pass runs: bf16 matrix products, or nothing for fp32."""
    if precision == "bf16":
        return torch.autocast(torch.device(device).type, dtype=torch.bfloat16)
    return nullcontext()
