"""`banded` against masked attention on one long windowed layer: time forward and backward, and how far they differ.

    python benchmarks/banded.py                       # T=8192, window 512: under a minute on 2 cores
    python benchmarks/banded.py --length 4096 --window 128 --documents 1000

Two opponents: torch's `scaled_dot_product_attention` with a boolean band mask over the whole square (what a model
without a banded path does), and our own `sdpa` backend, which runs the same square row block by row block. The runs of
all three alternate, and the best of each counts; on a busy machine look at processor time. Writes
`benchmarks/results/banded-<date>.json`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
from rounds import RESULTS, write
from torch import Tensor
from torch.nn import functional as F

from minillm.attention.backends import attend
from minillm.attention.mask import visible
from minillm.attention.tokens import StepContext, Tokens, arrange
from minillm.config.layers import LayerSpec
from minillm.position.nope import NoPE

Run = Callable[[Tensor, Tensor, Tensor], Tensor]


def plain_masked(spec: LayerSpec, tokens: Tokens) -> Run:
    mask = visible(spec.mask_key, tokens, tokens)[:, None]
    gqa = spec.num_attention_heads != spec.num_key_value_heads

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=spec.score_scale, enable_gqa=gqa)

    return run


def ours(backend: str, spec: LayerSpec, tokens: Tokens) -> Run:
    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        # A new context per run: making the mask is part of the price.
        return attend(q, k, v, spec, tokens, tokens, StepContext(tokens, contiguous=True), None, backend)

    return run


def measure(run: Run, inputs: list[Tensor], weight: Tensor) -> tuple[float, float, list[Tensor]]:
    """Seconds for forward and backward, by the clock and of the processor; output and the three gradients."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    wall, cpu = time.perf_counter(), time.process_time()
    out = run(*leaves)
    out.backward(weight)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return wall, cpu, [out.detach(), *(x.grad for x in leaves if x.grad is not None)]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--length", type=int, default=8192)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--documents", type=int, default=0, help="tokens per packed document; 0: one document")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--out", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> None:
    args = parse_arguments()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    spec = LayerSpec(0, "local", NoPE(), args.heads, args.kv_heads, args.head_dim, window=args.window)
    ids = None
    if args.documents:
        ids = torch.arange(args.length)[None].expand(args.batch, -1) // args.documents
    tokens = arrange(args.batch, args.length, "cpu", ids)
    # (B, T, heads, K) memory, as projections give it.
    inputs = [
        torch.randn(args.batch, args.length, heads, args.head_dim).transpose(1, 2)
        for heads in (args.heads, args.kv_heads, args.kv_heads)
    ]
    weight = torch.randn_like(inputs[0])
    runs = {
        "masked sdpa (torch, whole square)": plain_masked(spec, tokens),
        "sdpa backend": ours("sdpa", spec, tokens),
        "banded": ours("banded", spec, tokens),
    }
    wall, cpu = dict.fromkeys(runs, float("inf")), dict.fromkeys(runs, float("inf"))
    results: dict[str, list[Tensor]] = {}
    for _ in range(args.repeats):
        for name, run in runs.items():
            seconds, cpu_seconds, results[name] = measure(run, inputs, weight)
            wall[name], cpu[name] = min(wall[name], seconds), min(cpu[name], cpu_seconds)

    rows = []
    for name in runs:
        difference = max((a - b).abs().max().item() for a, b in zip(results[name], results["banded"], strict=True))
        rows.append(
            {
                "name": name,
                "seconds": round(wall[name], 4),
                "times_banded": round(wall[name] / wall["banded"], 2),
                "cpu_seconds": round(cpu[name], 4),
                "cpu_times_banded": round(cpu[name] / cpu["banded"], 2),
                "largest_difference_from_banded": difference,
            }
        )
        print(
            f"{name:34s} {wall[name]:8.3f} s {wall[name] / wall['banded']:6.2f} x banded, "
            f"processor time {cpu[name]:8.3f} s {cpu[name] / cpu['banded']:6.2f} x; difference {difference:.1e}"
        )
    settings = {key: value for key, value in vars(args).items() if key not in ("out", "threads")}
    measured = "forward and backward, float32, best of the repeats; difference in output or any gradient"
    write("banded", rows, args.out, settings=settings, measured=measured)


if __name__ == "__main__":
    main()
