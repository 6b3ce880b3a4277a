"""Suite `cost`: how fast a model trains and decodes, and how many bytes its KV cache holds, by length.

Training speed is forward and backward (no optimiser: it does the same for every layer plan) over the same number of
tokens at every length. Decoding goes token by token, one sequence, with a cache that already holds the length. Bytes
of the cache are counted in the cache itself and set beside the formula that the layer table uses. Times are medians
over repeats; `low` and `high` are their quartiles, which a busy moment of the machine does not move.

    rows = measure(model, train_length=256, settings=CostSettings())
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from minillm.errors import CacheNotExact, PositionUndefined
from minillm.evaluation.length_perplexity import NOT_DEFINED
from minillm.evaluation.scoring import autocast
from minillm.evaluation.settings import CostSettings
from minillm.model.cost import cost
from minillm.model.decoder import Decoder

Row = dict[str, Any]
NO_EXACT_CACHE = "no exact cache"
"""Note of a row at a length where a cache would change the logits (RoPE scaling by length)."""
PREFILL_PIECE = 1024
"""Tokens fed to the cache at once: a long prompt in one piece would need the memory of a training step."""


def measure(
    model: Decoder,
    train_length: int,
    settings: CostSettings,
    device: torch.device | str = "cpu",
    precision: str = "fp32",
    progress: Callable[[int], None] | None = None,
) -> list[Row]:
    """Rows of the suite; `progress` is called with 1 after each of the ``2 * len(settings.lengths)`` measurements.

    Rows: train_tokens_per_second, decode_tokens_per_second, kv_bytes of kind measured and formula (one sequence),
    flops_per_token (forward and backward) and parameters.
    """
    lengths = [multiple * train_length for multiple in settings.lengths]
    rows: list[Row] = []
    tokens_per_step = settings.train_tokens or lengths[-1]
    for length in lengths:
        try:
            speeds = _train_speed(model, length, tokens_per_step, settings.seconds, device, precision)
            rows.append(_row("train_tokens_per_second", length, speeds))
        except PositionUndefined:
            rows.append(_row("train_tokens_per_second", length, note=NOT_DEFINED))
        _tick(progress)
    rows += _decode_rows(model, lengths, settings.decode_tokens, device, precision, progress)
    for length in lengths:
        counted = cost(model.config, length)
        rows.append(_row("kv_bytes", length, [float(counted.kv_bytes)], kind="formula"))
        rows.append(_row("flops_per_token", length, [float(counted.flops_per_token)], kind="formula"))
    rows.append(_row("parameters", None, [float(sum(p.numel() for p in model.parameters()))], kind="counted"))
    return rows


def _train_speed(
    model: Decoder, length: int, tokens_per_step: int, seconds: float, device: torch.device | str, precision: str
) -> list[float]:
    """Tokens per second of each timed forward and backward pass; the model is left without gradients."""
    rows = max(1, tokens_per_step // length)
    both = torch.randint(model.config.vocab_size, (rows, length + 1), device=device, generator=_generator(device))

    def step() -> None:
        with autocast(device, precision):
            loss = model.loss(both[:, :-1], both[:, 1:])
        loss.backward()
        model.zero_grad(set_to_none=True)

    try:
        step()  # warm-up: allocator, threads, kernels
        return [rows * length / took for took in _time(step, seconds, device)]
    finally:
        model.zero_grad(set_to_none=True)


@torch.inference_mode()
def _decode_rows(
    model: Decoder,
    lengths: list[int],
    decode_tokens: int,
    device: torch.device | str,
    precision: str,
    progress: Callable[[int], None] | None,
) -> list[Row]:
    """One cache grows through all lengths: its bytes are read, and a few tokens decoded, at each."""
    rows: list[Row] = []
    cache = model.new_cache(1)
    ids = torch.randint(model.config.vocab_size, (1, lengths[-1]), device=device, generator=_generator(device))
    for length in lengths:
        try:
            with autocast(device, precision):
                # The last tokens up to `length` are the decoded ones, so that a position table may end there.
                decoded = min(decode_tokens, length - len(cache))
                while len(cache) < length - decoded:
                    model(ids[:, len(cache) : min(length - decoded, len(cache) + PREFILL_PIECE)], cache=cache)
                times = [_decode_one(model, cache, ids, device) for _ in range(decoded)]
            rows.append(_row("decode_tokens_per_second", length, [1 / took for took in times]))
            rows.append(_row("kv_bytes", length, [float(cache.nbytes())], kind="measured"))
        except (PositionUndefined, CacheNotExact) as error:
            # So it is for longer ones: their tokens come after these.
            note = NOT_DEFINED if isinstance(error, PositionUndefined) else NO_EXACT_CACHE
            rows.append(_row("decode_tokens_per_second", length, note=note))
            rows.append(_row("kv_bytes", length, kind="measured", note=note))
        _tick(progress)
    return rows


def _decode_one(model: Decoder, cache: Any, ids: torch.Tensor, device: torch.device | str) -> float:
    """Seconds for one more token."""
    seen = len(cache)
    token = ids[:, seen : seen + 1]
    _synchronise(device)
    start = time.perf_counter()
    model(token, cache=cache)
    _synchronise(device)
    return time.perf_counter() - start


def _time(step: Callable[[], None], seconds: float, device: torch.device | str) -> list[float]:
    """Durations of repeated steps, until their sum reaches `seconds`, three at least."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        _synchronise(device)
        start = time.perf_counter()
        step()
        _synchronise(device)
        times.append(time.perf_counter() - start)
    return times


def _synchronise(device: torch.device | str) -> None:
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def _generator(device: torch.device | str) -> torch.Generator:
    return torch.Generator(device).manual_seed(0)


def _tick(progress: Callable[[int], None] | None) -> None:
    if progress is not None:
        progress(1)


def _row(
    metric: str, length: int | None, values: list[float] | None = None, kind: str | None = None, note: str | None = None
) -> Row:
    """A row of the median of `values`; a single value has no interval."""
    many = values is not None and len(values) > 1
    quartiles = statistics.quantiles(values, n=4, method="inclusive") if many and values else None
    return {
        "metric": metric,
        "length": length,
        "depth": None,
        "kind": kind,
        "value": statistics.median(values) if values else None,
        "n": len(values) if values else 0,
        "low": quartiles[0] if quartiles else None,
        "high": quartiles[2] if quartiles else None,
        "note": note,
    }
