"""Read cases with a model and keep, of each layer, small sums per case and head; no row of probabilities is kept.

found = collect(model, cases, even_rows=64)
found.layers[3].mass           # (N, H, 4): mean mass on begin, needle, context, qc over the answer rows of a case
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from minillm.attention.tokens import StepContext
from minillm.evaluation.attention.cases import Case
from minillm.evaluation.attention.probe import Rows, probe
from minillm.evaluation.attention.walk import watching
from minillm.evaluation.scoring import autocast
from minillm.model.attention import Attention
from minillm.model.decoder import Decoder

SHOWN_FROM, SHOWN_SHARE, STRETCHES = 10, 0.97, 20
"""Attention by place in the text leaves out the first 10 and the last 3 % of tokens, as in arXiv 2501.18795."""

NEAR = 2
"""Tokens from the one to be copied at which a head still counts as looking at it. Trained needle models read a token
from the one after it, into which earlier layers have carried it."""


@dataclass
class LayerSums:
    """Sums of one layer over N cases, H heads; the lists are stacked by `stacked`. Even rows see the text before the
    question, answer rows emit a token to be copied."""

    mass: list[np.ndarray] = field(default_factory=list)
    """(H, 4) by segment, summed over answer rows."""
    share: list[np.ndarray] = field(default_factory=list)
    """(4,) share of the keys up to the query that lie in each segment, summed over answer rows: what a head that
    attends to all alike would have."""
    hits: list[np.ndarray] = field(default_factory=list)
    """(H,) answer rows whose highest key is the token to be copied."""
    near: list[np.ndarray] = field(default_factory=list)
    """(H,) answer rows whose highest key is at most `NEAR` tokens from it."""
    by_place: list[np.ndarray] = field(default_factory=list)
    """(20,) mass by stretch of the text, mean over heads, summed over answer rows."""
    entropy: list[np.ndarray] = field(default_factory=list)
    """(H,) bits, summed over even rows; so are the next ones."""
    entropy_share: list[np.ndarray] = field(default_factory=list)
    """(H,) share of log2(visible keys)."""
    distance: list[np.ndarray] = field(default_factory=list)
    """(H,) expected distance in tokens."""
    to_sink: list[np.ndarray] = field(default_factory=list)
    """(H,) what the sink logit takes."""
    on_first: list[np.ndarray] = field(default_factory=list)
    """(H,) probability of key 0, over the even rows that see it."""
    seeing_first: list[int] = field(default_factory=list)
    """How many these are."""
    by_distance: list[np.ndarray] = field(default_factory=list)
    """(N bins,) mass, mean over heads."""
    keys_by_distance: list[np.ndarray] = field(default_factory=list)
    """(N bins,) visible keys."""
    share_by_distance: list[np.ndarray] = field(default_factory=list)
    """(N bins,) share of a row's visible keys."""

    def stacked(self, name: str) -> np.ndarray:
        """(N, ...) float64."""
        return np.stack([np.asarray(x, np.float64) for x in getattr(self, name)])


@dataclass
class Collected:
    """Everything of one set of cases."""

    layers: list[LayerSums]
    clusters: list[int]
    even_rows: list[int]
    answer_rows: list[int]
    correct: list[float] = field(default_factory=list)
    """Answer tokens that are the most likely ones, of each case."""
    log_prob: list[float] = field(default_factory=list)
    """Nats of the answer tokens, summed."""
    hidden: list[np.ndarray] = field(default_factory=list)
    """Per case (1 + layers, places, D) float32: the stream before the first layer and after each."""
    places: list[np.ndarray] = field(default_factory=list)
    """(places,) positions of these."""


@dataclass(frozen=True)
class Reading:
    """How cases are read."""

    batch_tokens: int = 4096
    """Most tokens at once; a longer case goes alone."""
    device: torch.device | str = "cpu"
    precision: str = "fp32"
    progress: Callable[[int], None] = lambda tokens: None
    """Called with the number of tokens just read."""

    def hidden(self, model: Decoder, tokens: Tensor) -> Tensor:
        with autocast(self.device, self.precision):
            return model.hidden(tokens)


@torch.inference_mode()
def collect(
    model: Decoder,
    cases: Sequence[Case],
    even_rows: int,
    places: int = 0,
    reading: Reading = Reading(),
    also: Callable[[int, Attention, Tensor, Tensor, StepContext], None] | None = None,
) -> Collected:
    """Read all cases.

    Args:
        even_rows: probe rows of each text; places: positions whose hidden states are kept, 0 for none.
        also: called with (layer, attention, q, k, context) of each batch.
    """
    reach = max([s.reach for s in model.layer_specs if s.reach is not None], default=0)
    found = Collected([LayerSums() for _ in model.layer_specs], [], [], [])
    for batch in batches(cases, reading.batch_tokens):
        read = _Batch(batch, even_rows, reach, places, reading.device)

        def see(index: int, attention: Attention, x: Tensor, context: StepContext, read: _Batch = read) -> None:
            q, k, _ = attention.project(x, context)
            own = q.gather(2, read.at[:, None, :, None].expand(-1, q.shape[1], -1, q.shape[3]))
            rows = probe(
                own, k, attention.spec, attention.position, context.tokens, read.at, read.features, attention.sinks
            )
            read.add(found.layers[index], rows)
            if also is not None:
                also(index, attention, q, k, context)

        with watching(model, see, read.keep if places else None):
            hidden = reading.hidden(model, read.tokens)
        for i, case in enumerate(batch):
            correct, log_prob = answered(model, hidden[i], case)
            found.correct.append(correct)
            found.log_prob.append(log_prob)
        found.clusters += [case.cluster for case in batch]
        found.even_rows += [even_rows] * len(batch)
        found.answer_rows += [len(case.rows) for case in batch]
        found.hidden += read.hidden_of_cases()
        found.places += [read.places] * len(batch) if places else []
        reading.progress(read.tokens.numel())
    return found


def batches(cases: Sequence[Case], batch_tokens: int) -> Iterator[list[Case]]:
    """Neighbours of equal length together, in the order given."""
    batch: list[Case] = []
    for case in cases:
        full = batch and (len(batch) + 1) * len(case.tokens) > batch_tokens
        if full or (batch and len(batch[0].tokens) != len(case.tokens)):
            yield batch
            batch = []
        batch.append(case)
    if batch:
        yield batch


def answered(model: Decoder, hidden: Tensor, case: Case) -> tuple[float, float]:
    """Of a case's hidden states (T, D): answer tokens that are the most likely ones, and the sum of the log-probability
    (nats) of the answer tokens."""
    rows, gold = (torch.from_numpy(x).to(hidden.device) for x in (case.rows, case.answers))
    log_p = torch.log_softmax(model.logits(hidden[None, rows].float())[0], dim=-1)
    return float((log_p.argmax(dim=-1) == gold).sum()), float(log_p.gather(1, gold[:, None]).double().sum())


class _Batch:
    """Cases of one length as tensors. Probe rows are the answer rows, filled up with row 0, and then the even ones."""

    def __init__(
        self, cases: Sequence[Case], even_rows: int, reach: int, places: int, device: torch.device | str
    ) -> None:
        self.cases = cases
        self.most = max(len(case.rows) for case in cases)
        length = len(cases[0].tokens)
        at = np.zeros((len(cases), self.most + even_rows), np.int64)
        for i, case in enumerate(cases):
            at[i, : len(case.rows)] = case.rows
            at[i, self.most :] = case.even_rows(even_rows, reach)
        self.categories = np.stack([case.categories() for case in cases])
        kinds = 3 + max((len(case.needles) for case in cases), default=0)
        self.kinds = kinds
        one_hot = F.one_hot(torch.from_numpy(self.categories), kinds)
        self.features = torch.cat([one_hot, _stretches(length).expand(len(cases), -1, -1)], dim=-1).double().to(device)
        self.at = torch.from_numpy(at).to(device)
        self.tokens = torch.from_numpy(np.stack([case.tokens for case in cases])).to(device)
        # Share of the keys up to each row in each category.
        upto = np.cumsum(one_hot.numpy(), axis=1)[np.arange(len(cases))[:, None], at]
        self.shares = upto / (at + 1)[..., None]
        self.places = np.linspace(0, length - 1, min(places, length)).round().astype(np.int64)
        self.kept: list[np.ndarray] = []

    def keep(self, index: int, x: Tensor) -> None:
        self.kept.append(x[:, torch.from_numpy(self.places).to(x.device)].float().cpu().numpy())

    def hidden_of_cases(self) -> list[np.ndarray]:
        return [np.stack([layer[i] for layer in self.kept]) for i in range(len(self.cases))] if self.kept else []

    def add(self, sums: LayerSums, rows: Rows) -> None:
        everything = {name: getattr(rows, name).cpu().numpy() for name in rows.__dataclass_fields__}
        for i, case in enumerate(self.cases):
            r = {name: value[i] for name, value in everything.items()}
            n = len(case.rows)
            sums.mass.append(_segments(r["sums"][:, :n, : self.kinds], case))
            sums.share.append(_segments(self.shares[None, i, :n], case)[0])
            sums.hits.append((r["top"][:, :n] == case.copied_from).sum(axis=1))
            sums.near.append((np.abs(r["top"][:, :n] - case.copied_from) <= NEAR).sum(axis=1))
            sums.by_place.append(r["sums"][:, :n, self.kinds :].mean(axis=0).sum(axis=0))
            even = slice(self.most, None)
            bits = r["entropy"][:, even] / np.log(2)
            most = np.log2(r["visible"][even])
            sums.entropy.append(bits.sum(axis=1))
            sums.entropy_share.append(np.divide(bits, most, out=np.zeros_like(bits), where=most > 0).sum(axis=1))
            sums.distance.append(r["distance"][:, even].sum(axis=1))
            sums.to_sink.append(r["to_sink"][:, even].sum(axis=1))
            seeing = r["sees_first"][even]
            sums.on_first.append(r["on_first"][:, even][:, seeing].sum(axis=1))
            sums.seeing_first.append(int(seeing.sum()))
            sums.by_distance.append(r["by_distance"][:, even].mean(axis=0).sum(axis=0))
            keys = r["keys_by_distance"][even]
            sums.keys_by_distance.append(keys.sum(axis=0))
            sums.share_by_distance.append((keys / r["visible"][even, None]).sum(axis=0))


def _segments(by_category: np.ndarray, case: Case) -> np.ndarray:
    """(H, R, categories) -> (H, 4) summed over rows: a row's needle is its own one, other needles are context."""
    begin, qc = by_category[..., 1].sum(axis=-1), by_category[..., 2].sum(axis=-1)
    own = by_category[:, np.arange(len(case.rows)), 3 + case.needle_of].sum(axis=-1) if case.needles else 0 * begin
    return np.stack([begin, own, by_category.sum(axis=(-1, -2)) - begin - own - qc, qc], axis=-1)


def _stretches(length: int) -> Tensor:
    """(T, 20): which stretch of the text a token lies in; none for the first and last tokens."""
    last = int(length * SHOWN_SHARE)
    out = torch.zeros(length, STRETCHES)
    shown = torch.arange(min(SHOWN_FROM, last), last)
    if len(shown):
        out[shown, (shown - shown[0]) * STRETCHES // len(shown)] = 1
    return out
