"""Decoding with each kind of cache: milliseconds per token and bytes at one length, and what few bits do to the loss.

    OMP_NUM_THREADS=1 python benchmarks/cache.py                        # context 8192: a minute or two
    python benchmarks/cache.py --weights FOLDER                         # also the loss of a run or Hugging Face folder

All kinds decode in turn, round after round (benchmarks/rounds.py), from a cache that holds `--length` tokens; ratios
are to the exact cache of the same plan. With one thread, processor time is measured. `cat` is what the cache would be
without room to grow: torch.cat for each token. Writes `benchmarks/results/cache-<date>.json` and prints the tables.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rounds import RESULTS, alternate, ratio, spread, write
from torch import Tensor

import minillm
from minillm.attention.cache import KVCache
from minillm.attention.cache_settings import CacheSettings, Evict
from minillm.attention.stores import Store
from minillm.attention.tokens import arrange
from minillm.data.sources import EmbeddedSource
from minillm.model.decoder import Decoder

KINDS: dict[str, CacheSettings] = {
    "exact": CacheSettings(),
    "cat": CacheSettings(),
    "int8": CacheSettings("int8"),
    "int4": CacheSettings("int4"),
    "evict 512+4": CacheSettings(evict=Evict(512, 4)),
    "int4, evict 512+4": CacheSettings("int4", evict=Evict(512, 4)),
}
SHAPE = [
    "tokenizer.vocab_size=4096", "size.hidden_size=256", "size.num_hidden_layers=8", "size.num_attention_heads=4",
    "size.num_key_value_heads=2", "size.head_dim=64", "size.intermediate_size=768", "size.window=512",
]  # fmt: skip
PLANS = ("rope", "rnope_swa")
SPEECH = "1841-Tyler-1"


class Cat(Store):
    """A full layer's store that is made anew for each token."""

    def append(self, new: Tensor, seen: int) -> Tensor:
        self.held = new.clone() if self.held is None else torch.cat([self.held, new], dim=self.dim)
        return self.held


def filled(model: Decoder, kind: str, length: int) -> KVCache:
    """A cache of random entries: what they are does not matter for time and bytes."""
    cache = model.new_cache(1, KINDS[kind])
    if kind == "cat":
        for layer in cache.layers:
            if layer.spec.reach is None:
                layer.keys, layer.values = Cat(None, 2), Cat(None, 2)
    for size in cache.pieces(length):
        tokens = arrange(1, size, "cpu", past=cache.past)
        for layer in cache.layers:
            spec = layer.spec
            k, v = torch.randn(2, 1, spec.num_key_value_heads, size, spec.head_dim)
            layer.append(k, v, tokens)
        cache.advance(tokens)
    return cache


def decoding(model: Decoder, cache: KVCache, tokens: int) -> Callable[[], None]:
    token = torch.ones(1, 1, dtype=torch.int64)

    def step() -> None:
        for _ in range(tokens):
            model(token, cache=cache)

    return step


@torch.inference_mode()
def speed(plan: str, length: int, tokens: int, rounds: int) -> list[dict[str, Any]]:
    config = minillm.compose([f"model={plan}", *SHAPE], warn=False).model
    model = minillm.build_model(config).eval()
    caches = {kind: filled(model, kind, length) for kind in KINDS}
    held = {kind: cache.nbytes() for kind, cache in caches.items()}
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times = alternate({kind: decoding(model, cache, tokens) for kind, cache in caches.items()}, rounds, clock=clock)
    rows = []
    for kind, seconds in times.items():
        low, high = spread(seconds, times["exact"])
        counted = minillm.cost(config, length, cache=KINDS[kind]).kv_bytes
        rows.append(
            {
                "plan": plan, "kind": kind, "ms_per_token": round(1e3 * statistics.median(seconds) / tokens, 2),
                "time_over_exact": round(ratio(seconds, times["exact"]), 3), "low": round(low, 3),
                "high": round(high, 3), "bytes": held[kind], "formula": counted,
                "bytes_over_exact": round(held[kind] / held["exact"], 3),
            }
        )  # fmt: skip
    return rows


@torch.inference_mode()
def losses(weights: str, length: int) -> list[dict[str, Any]]:
    """Nats per token over the second half of the first `length` tokens of a held-out speech of the corpus."""
    model, tokenizer = minillm.load(weights)
    documents = {document.name: document.text for document in EmbeddedSource().documents()}
    ids = torch.tensor([tokenizer.encode(documents[SPEECH], bos=True)[: length + 1]])
    rows, exact = [], 0.0
    for kind, settings in KINDS.items():
        if kind == "cat":
            continue
        cache = model.new_cache(1, settings)
        hidden = torch.cat([model.hidden(part, cache=cache) for part in ids[:, :-1].split(512, dim=1)], dim=1)
        half = ids.shape[1] // 2
        nll = F.cross_entropy(model.logits(hidden[0, half:]), ids[0, half + 1 :]).item()
        exact = nll if kind == "exact" else exact
        rows.append({"kind": kind, "nll": round(nll, 4), "more": round(nll - exact, 4), "bytes": cache.nbytes()})
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--tokens", type=int, default=16, help="decoded in each round")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--weights", help="a run or Hugging Face folder, for the loss of a real model")
    parser.add_argument("--loss-length", type=int, default=2048)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    rows = [row for plan in PLANS for row in speed(plan, given.length, given.tokens, given.rounds)]
    print(table(rows))
    facts: dict[str, Any] = {"length": given.length}
    if given.weights is not None:
        facts["losses"] = losses(given.weights, given.loss_length)
        print(table(facts["losses"]))
    write("cache", rows, given.out, **facts)


if __name__ == "__main__":
    main()
