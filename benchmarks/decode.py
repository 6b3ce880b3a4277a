"""Decoding one token after another behind a long context, beside transformers with the same weights and its own cache.

    python benchmarks/decode.py                                # context 8192, Cohere 2 and Gemma 3 plans, window 512
    python benchmarks/decode.py --context 2048 --tokens 16 --rounds 3

Both sides are given the context once; a round then decodes `--tokens` tokens one by one, each the likeliest, by plain
forward calls in float32: theirs with the DynamicCache that `generate` makes (sliding layers keep their window), ours
with `model.new_cache`. That their logits agree is checked first. Writes `benchmarks/results/decode-<date>.json`.
"""

from __future__ import annotations

import argparse
import copy
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import Shape, transformers_model
from rounds import RESULTS, alternate, ratio, spread, write
from torch import Tensor

import minillm

TOLERANCE = 1e-3
"""Largest difference of logits that are called the same, behind thousands of tokens in float32."""


def decode(step: Callable[[Tensor], Tensor], first: Tensor, count: int) -> Tensor:
    """`count` greedy tokens; `step` takes (1, 1) ids and gives the next logits (1, V)."""
    tokens = [first]
    for _ in range(count):
        tokens.append(step(tokens[-1]).argmax(dim=-1, keepdim=True))
    return torch.cat(tokens, dim=1)


@torch.no_grad()
def compare(family: str, args: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each side."""
    from transformers import DynamicCache

    torch.manual_seed(0)
    theirs = transformers_model(family)(Shape(), args.context + args.tokens, args.window).model.eval()  # type: ignore[union-attr]
    theirs.config.use_cache = True
    ours = minillm.hub.from_transformers(theirs)
    prompt = torch.randint(1, Shape().vocab_size, (1, args.context), generator=torch.Generator().manual_seed(1))

    their_cache = DynamicCache(config=theirs.config)
    their_logits = theirs(input_ids=prompt, past_key_values=their_cache, logits_to_keep=1).logits[:, -1]
    our_cache = ours.new_cache(1)
    our_logits = ours.logits(ours.hidden(prompt, cache=our_cache)[:, -1:])[:, -1]
    difference = float((their_logits - our_logits).abs().max())
    if difference > TOLERANCE:
        raise SystemExit(f"{family}: logits differ by {difference:.1e}: these are not the same model")
    first = our_logits.argmax(dim=-1, keepdim=True)

    # Each round goes on from the context alone: caches are copied, and the copy is no part of the time.
    made: dict[str, Any] = {}

    def theirs_once() -> None:
        cache = made.pop("theirs")
        made["their tokens"] = decode(
            lambda ids: theirs(input_ids=ids, past_key_values=cache).logits[:, -1], first, args.tokens
        )

    def ours_once() -> None:
        cache = made.pop("ours")
        made["our tokens"] = decode(lambda ids: ours(ids, cache=cache)[:, -1], first, args.tokens)

    times: dict[str, list[float]] = {"transformers": [], "ours": []}
    for number in range(args.rounds + 1):
        made |= {"theirs": copy.deepcopy(their_cache), "ours": copy.deepcopy(our_cache)}
        found = alternate({"transformers": theirs_once, "ours": ours_once}, rounds=1, warmup=0)
        if number:  # the first warms up
            for name, seconds in found.items():
                times[name] += seconds
    same = torch.equal(made["their tokens"], made["our tokens"])
    rows = []
    sizes = {"transformers": cache_bytes(their_cache), "ours": our_cache.nbytes()}
    for name, seconds in times.items():
        row = {
            "model": family,
            "name": name,
            "context": args.context,
            "window": args.window,
            "milliseconds_per_token": round(1000 * statistics.median(seconds) / args.tokens, 3),
            "cache_bytes": sizes[name],
            "seconds": [round(s, 4) for s in seconds],
        }
        if name == "ours":
            row |= {
                "times_transformers": round(ratio(times["transformers"], seconds), 3),
                "times_transformers_range": [round(r, 3) for r in spread(times["transformers"], seconds)],
                "cache_bytes_by_formula": minillm.cost(ours.config, args.context).kv_bytes,
                "logits_differ_by": difference,
                "same_tokens": same,
            }
        rows.append(row)
    return rows


def cache_bytes(cache: Any) -> int:
    """Of a transformers cache: what its layers hold."""
    return sum(t.numel() * t.element_size() for layer in cache.layers for t in (layer.keys, layer.values))


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=["llama", "cohere2", "gemma3"], default=["cohere2", "gemma3"])
    parser.add_argument("--context", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    rows = []
    for family in args.models:
        found = compare(family, args)
        for row in found:
            against = f"   {row['times_transformers']:.2f} x transformers" if "times_transformers" in row else ""
            print(
                f"{family:8s} {row['name']:13s} {row['milliseconds_per_token']:8.2f} ms/token   "
                f"cache {row['cache_bytes'] / 2**20:7.2f} MiB{against}",
                flush=True,
            )
        rows += found
    write("decode", rows, args.out, ("transformers",), shape=vars(Shape()), measured="greedy, batch 1, float32")


if __name__ == "__main__":
    main()
