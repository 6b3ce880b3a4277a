"""One attention layer's time against its length: full, windowed and chunked, forward and backward, on a log-log figure.

    python benchmarks/attention.py                             # 2k to 32k tokens, window 512: some minutes on two cores
    python benchmarks/attention.py --lengths 1024 2048 4096 --rounds 3

The exponent is the slope of log time over log length by least squares: 1 is linear, 2 the square. The layer is what a
plan's layer is (backend `auto`, masks made anew in each call), without its projections. Writes
`benchmarks/results/attention-<date>.json` and `.svg`.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rounds import RESULTS, alternate, write

from minillm.attention.backends import attend
from minillm.attention.tokens import StepContext, arrange
from minillm.config.layers import LayerSpec
from minillm.position.alibi import ALiBi
from minillm.position.nope import NoPE


def layers(window: int) -> dict[str, LayerSpec]:
    """By name; 4 heads of width 64, 2 key-value heads."""
    kinds: dict[str, dict[str, Any]] = {
        "full": {},
        "window": {"window": window},
        "window, ALiBi": {"window": window, "position": ALiBi()},
        "window, 4 kept tokens": {"window": window, "sink_tokens": 4},
        "window, packed documents": {"window": window},
        "chunk": {"chunk": window},
    }
    return {
        name: LayerSpec(
            0, "layer", **{"position": NoPE(), **own}, num_attention_heads=4, num_key_value_heads=2, head_dim=64
        )
        for name, own in kinds.items()
    }


def call(name: str, spec: LayerSpec, length: int) -> Callable[[], None]:
    """Forward and backward of one layer on one row."""
    ids = None
    if name.endswith("documents"):
        ids = torch.arange(length)[None] // 1000
    tokens = arrange(1, length, "cpu", ids)
    heads = (spec.num_attention_heads, spec.num_key_value_heads, spec.num_key_value_heads)
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(1, length, n, spec.head_dim, generator=generator).transpose(1, 2) for n in heads]
    position = spec.position.make(spec.shape)

    def run() -> None:
        leaves = [x.detach().requires_grad_() for x in inputs]
        context = StepContext(tokens, contiguous=True)
        out = attend(*leaves, spec, queries=tokens, keys=tokens, context=context, position=position)
        out.backward(torch.ones_like(out))

    return run


def exponent(lengths: list[int], seconds: list[float]) -> float:
    """Slope of log seconds over log length."""
    x, y = [math.log(n) for n in lengths], [math.log(s) for s in seconds]
    mean_x, mean_y = statistics.fmean(x), statistics.fmean(y)
    pairs = list(zip(x, y, strict=True))
    return sum((a - mean_x) * (b - mean_y) for a, b in pairs) / sum((a - mean_x) ** 2 for a, _ in pairs)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    """Time against length, both axes logarithmic, the fitted exponent in the legend."""
    import matplotlib

    matplotlib.use("svg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(6, 4), layout="constrained")
    for row in rows:
        axes.loglog(row["lengths"], row["median_seconds"], marker="o", label=f"{row['name']}: {row['exponent']:.2f}")
    axes.set(
        xlabel="tokens", ylabel="seconds, forward and backward", title="One attention layer (exponent of its time)"
    )
    axes.set_xticks(rows[0]["lengths"], [f"{n:,}" for n in rows[0]["lengths"]], minor=False)
    axes.grid(alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
    print(f"written: {path}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    torch.set_num_threads(args.threads)
    specs = layers(args.window)
    times: dict[str, list[list[float]]] = {name: [] for name in specs}
    for length in args.lengths:
        found = alternate({name: call(name, spec, length) for name, spec in specs.items()}, args.rounds, warmup=1)
        for name, seconds in found.items():
            times[name].append(seconds)
        print(
            f"T={length:<7}" + "".join(f"{name} {statistics.median(s):.3f} s   " for name, s in found.items()),
            flush=True,
        )
    rows = []
    for name, by_length in times.items():
        medians = [statistics.median(seconds) for seconds in by_length]
        rows.append(
            {
                "name": name,
                "lengths": args.lengths,
                "median_seconds": [round(s, 5) for s in medians],
                "seconds": [[round(s, 5) for s in seconds] for seconds in by_length],
                "exponent": round(exponent(args.lengths, medians), 3),
            }
        )
        print(f"{name:28s} exponent {rows[-1]['exponent']:.2f}")
    path = write("attention", rows, args.out, window=args.window, measured="forward and backward, float32, batch 1")
    draw(rows, path.with_suffix(".svg"))


if __name__ == "__main__":
    main()
