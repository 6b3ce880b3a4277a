"""A training step beside those of other projects: tokens per second and ratios of one shape on one machine in one run.

    make bench-setup                                          # a venv of its own, with the peers
    .venv-bench/bin/python benchmarks/train_step.py           # T=512 and 4096, bf16, eager and compiled
    .venv-bench/bin/python benchmarks/train_step.py --length 512 --batch 8 --precision fp32 --modes eager

Every contestant does forward, loss, backward and a fused AdamW update on the same tokens, in turn with the others
(benchmarks/rounds.py). Eager is held against eager and compiled against compiled. A contestant that is not installed,
or fails to compile, is a row that says why. Writes `benchmarks/results/train_step-<date>.json`.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peers import BUILDERS, PACKAGES, Shape, compiled
from rounds import RESULTS, alternate, ratio, spread, write
from torch import nn


def training_step(model: nn.Module, length: int, batch: int, vocab_size: int, bf16: bool) -> Callable[[], float]:
    """One update on the same random tokens each time; returns the loss."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(1, vocab_size, (batch, length + 1), generator=torch.Generator().manual_seed(0))
    tokens, targets = ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    def step() -> float:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
            loss = model(tokens, targets)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def contestants(
    names: list[str], shape: Shape, length: int, batch: int, window: int, bf16: bool, mode: str
) -> tuple[dict[str, Callable[[], float]], dict[str, str]]:
    """Steps that work, each run once; and of those that do not, the reason."""
    steps, refused = {}, {}
    for name in names:
        try:
            model = BUILDERS[name](shape, length, window).train()
            if mode == "compiled":
                model = compiled(name, model)
            step = training_step(model, length, batch, shape.vocab_size, bf16)
            step()
        except Exception as error:  # whatever another project raises: its row says so, the others go on
            refused[name] = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]
            continue
        steps[name] = step
    return steps, refused


def compare(args: argparse.Namespace, length: int, batch: int, mode: str) -> list[dict[str, Any]]:
    """Rows of one length in one mode, with each one's ratio to the quickest peer."""
    shape, window = Shape(), args.window or length // 8
    steps, refused = contestants(args.only, shape, length, batch, window, args.precision == "bf16", mode)
    times = alternate(steps, args.rounds, args.warmup) if steps else {}
    common = {"length": length, "batch": batch, "window": window, "precision": args.precision, "mode": mode}
    rows: list[dict[str, Any]] = [{**common, "name": name, "not_measured": why} for name, why in refused.items()]
    peers = [name for name in times if not name.startswith("ours")]
    best = min(peers, key=lambda name: statistics.median(times[name]), default=None)
    for name, seconds in times.items():
        row = {**common, "name": name, "tokens_per_second": round(length * batch / statistics.median(seconds), 1)}
        row["seconds"] = [round(s, 4) for s in seconds]
        if best is not None:
            row |= {"best_peer": best, "times_best_peer": round(ratio(times[best], seconds), 3)}
            row["times_best_peer_range"] = [round(r, 3) for r in spread(times[best], seconds)]
        rows.append(row)
    return rows


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        head = f"T={row['length']:<6} {row['precision']} {row['mode']:9s} {row['name']:36s}"
        if "not_measured" in row:
            print(f"{head} not measured: {row['not_measured']}", flush=True)
            continue
        low, high = row.get("times_best_peer_range", [0, 0])
        against = f"{row['times_best_peer']:6.2f} x {row['best_peer']} ({low:.2f} to {high:.2f})" if high else ""
        print(f"{head} {row['tokens_per_second']:10,.0f} tokens/s {against}", flush=True)


def parse_arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, nargs="+", default=[512, 4096])
    parser.add_argument("--batch", type=int, nargs="+", default=[8, 1], help="sequences, one number for each length")
    parser.add_argument("--window", type=int, default=0, help="of windowed layers; 0: an eighth of the length")
    parser.add_argument("--precision", choices=["bf16", "fp32"], default="bf16")
    parser.add_argument("--modes", nargs="+", choices=["eager", "compiled"], default=["eager", "compiled"])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--only", nargs="+", choices=list(BUILDERS), default=list(BUILDERS), metavar="CONTESTANT")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if len(args.length) != len(args.batch):
        parser.error("--length and --batch: as many of one as of the other")
    return args


def main(argv: list[str] | None = None) -> None:
    args = parse_arguments(argv)
    torch.set_num_threads(args.threads)
    rows = []
    for length, batch in zip(args.length, args.batch, strict=True):
        for mode in args.modes:
            found = compare(args, length, batch, mode)
            show(found)
            rows += found
    write("train_step", rows, args.out, PACKAGES, shape=vars(Shape()), measured="forward, backward and fused AdamW")


if __name__ == "__main__":
    main()
