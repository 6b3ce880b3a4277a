"""Are the GPU paths right, and how fast are they? One script, at most 8 minutes on one GPU.

    make gpu-check                                    # or: python benchmarks/gpu_check.py
    python benchmarks/gpu_check.py --device cpu --toy # the same path at toy size, where there is no GPU

1. Parity: every backend on every kind of layer against `reference`, forward and backward, with a tolerance per dtype.
2. One layer's attention by backend: milliseconds forward and backward, and memory.
3. Training steps of three sizes, three plans and five lengths, eager and compiled: tokens/s, MFU and memory.

It needs torch and jaxtyping alone, detects what its torch offers, keeps to `--minutes`, and says what it left out.
Tables are printed and written to `benchmarks/results/gpu-check-<date>.{md,json}`. The exit code is 1 where parity fails
or a measurement raises.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import signal
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]  # runs from a checkout that is not installed

import gpu_parity  # noqa: E402
import gpu_speed  # noqa: E402
import torch  # noqa: E402

from minillm.attention.machine import machine, varlen_arguments  # noqa: E402
from minillm.training.compilation import missing_compiler  # noqa: E402
from minillm.training.peak import device_name, matmul_peak  # noqa: E402

CONVENTION = (
    "MFU: FLOPs of the model over those that the device can do. A multiply-add is 2 FLOPs, training is three times the "
    "forward pass, attention is charged for the query-key pairs that the mask lets through (windows and causality "
    "counted; figures that charge the full square are up to twice as high), the embedding is free. The peak is the "
    "best of repeated square matrix products, measured here. Every window is an eighth of the length."
)
PARITY_SHARE, ATTENTION_SHARE = 0.45, 0.15
"""Of the time: parity, then one layer; training steps get the rest."""


class OutOfTime(BaseException):
    """The alarm that keeps the promise on time where a single measurement or compilation does not end."""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    parser.add_argument("--toy", action="store_true", help="sizes and lengths of a test")
    parser.add_argument("--minutes", type=float, default=8.0, help="of the whole run")
    parser.add_argument("--no-compile", action="store_true", help="leave compiled training steps out")
    parser.add_argument("--out", type=Path, default=HERE / "results")
    return parser.parse_args()


def facts(device: str) -> dict[str, Any]:
    """Where this runs and what is there."""
    here = machine(device)
    return {
        "device": device_name(device),
        "memory_mib": torch.cuda.get_device_properties(0).total_memory // 2**20 if device == "cuda" else None,
        "capability": ".".join(map(str, torch.cuda.get_device_capability())) if device == "cuda" else None,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "flex_attention": here.flex,
        "varlen_attn": here.varlen,
        "varlen_attn_takes": sorted(varlen_arguments()),
        "compiler_missing": missing_compiler(device),
        "threads": torch.get_num_threads(),
    }


def table(rows: list[dict[str, Any]], columns: list[str]) -> str:
    """Markdown, columns as wide as their cells."""
    cells = [columns, *([_cell(row.get(name)) for name in columns] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) + " |" for line in cells
    ]
    lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
    return "\n".join(lines)


def _cell(value: Any) -> str:
    if value is None or value is False:
        return ""
    if value is True:
        return "yes"
    if isinstance(value, float):
        return f"{value:.2g}" if abs(value) < 1 else f"{value:.1f}"
    return str(value)


def main() -> int:
    args = parse_arguments()
    device = args.device if args.device != "auto" else ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda" and not torch.cuda.is_available():
        print("No CUDA device here. With --device cpu --toy the same path runs at toy size.", file=sys.stderr)
        return 2
    if device == "cpu" and not args.toy:
        print("Without a GPU this would take hours: add --device cpu --toy.", file=sys.stderr)
        return 2
    started, budget = time.perf_counter(), 60 * args.minutes

    def until(share: float) -> gpu_speed.Fits:
        return lambda seconds: time.perf_counter() - started + 1.2 * seconds < share * budget - min(15, budget / 20)

    def ring(*_: Any) -> None:
        raise OutOfTime

    record: dict[str, Any] = {
        "benchmark": "gpu_check",
        "date": datetime.date.today().isoformat(),
        "command": " ".join(["python benchmarks/gpu_check.py", *sys.argv[1:]]),
        "facts": facts(device),
        "convention": CONVENTION,
        "parity": [], "attention": [], "training": [], "left_out": [],
    }  # fmt: skip
    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, max(60, budget - 5), 5)  # again, should a compiler swallow it
    try:
        measure(args, device, record, until)
    except OutOfTime:
        record["left_out"].append("the rest: the time was over during a measurement")
    signal.setitimer(signal.ITIMER_REAL, 0)
    record["seconds"] = round(time.perf_counter() - started, 1)
    text = report(record)
    print(text)
    args.out.mkdir(parents=True, exist_ok=True)
    stem = f"gpu-check-{record['date']}" + ("-toy" if args.toy else "")
    (args.out / f"{stem}.json").write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    (args.out / f"{stem}.md").write_text(text + "\n", encoding="utf-8")
    print(f"\nwritten: {args.out / stem}.md and .json")
    raised = [row for part in ("attention", "training") for row in record[part] if "raised" in row]
    return 0 if all(row["ok"] for row in record["parity"]) and not raised else 1


def measure(args: argparse.Namespace, device: str, record: dict[str, Any], until: Any) -> None:
    """Fill `record` part by part, so that what is there survives the end of the time."""
    torch.manual_seed(0)
    print(f"{record['facts']['device']}, torch {record['facts']['torch']}: parity first", flush=True)
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    shape = gpu_parity.TOY_SHAPE if args.toy else gpu_parity.GPU_SHAPE
    scale = gpu_speed.TOY_SCALE if args.toy else gpu_speed.GPU_SCALE
    left = record["left_out"]
    gpu_parity.check(shape, device, until(PARITY_SHARE), record["parity"], left)
    print("one layer's attention by backend", flush=True)
    planned = gpu_speed.Planned(until(PARITY_SHARE + ATTENTION_SHARE), record["attention"], left)
    gpu_speed.attention(scale, device, dtype, planned)
    peak = matmul_peak(device, dtype)
    record["facts"]["peak_tflops"] = round(peak / 1e12, 2)
    no_compiler = missing_compiler(device)
    if args.no_compile or no_compiler is not None:
        left.append(f"compiled training steps: {no_compiler or 'asked for by --no-compile'}")
    compiled = not args.no_compile and no_compiler is None
    print("training steps", flush=True)
    planned = gpu_speed.Planned(until(1.0), record["training"], left)
    gpu_speed.training(scale, device, peak, compiled, dtype, planned)


def report(record: dict[str, Any]) -> str:
    parity, passed = record["parity"], sum(row["ok"] for row in record["parity"])
    worst = [row for row in parity if not row["ok"]]
    summary: dict[tuple[str, str], dict[str, Any]] = {}
    for row in parity:
        line = summary.setdefault(
            (row["backend"], row["dtype"]),
            {"backend": row["backend"], "dtype": row["dtype"], "cases": 0, "passed": 0, "seconds": 0.0},
        )
        line["cases"] += 1
        line["passed"] += row["ok"]
        line["seconds"] += row["seconds"]
        for key in ("forward_error", "backward_error"):
            if row.get(key) is not None:
                line[key] = max(row[key], line.get(key, 0.0))
        line["tolerance"] = row.get("tolerance", line.get("tolerance"))
    errors = ["forward_error", "backward_error", "tolerance"]
    parts = [
        f"# GPU check, {record['date']}",
        f"`{record['command']}`: {record['seconds']} s.",
        "\n".join(f"- {key}: {value}" for key, value in record["facts"].items()),
        f"## Parity with reference: {passed} of {len(parity)} cases within tolerance",
        table(list(summary.values()), ["backend", "dtype", "cases", "passed", *errors, "seconds"]),
    ]
    if worst:
        parts.append(table(worst, ["backend", "layer", "layout", "length", "dtype", *errors, "raised"]))
    parts += [
        "## One layer's attention, forward and backward (chosen: by `auto`)",
        table(record["attention"], ["length", "layer", "backend", "milliseconds", "peak_mib", "chosen", "raised"]),
        "## Training steps",
        record["convention"],
        table(
            record["training"],
            ["size", "length", "plan", "state", "rows", "tokens_per_second", "mfu", "peak_mib", "backends", "raised"],
        ),
        "## Left out",
        "\n".join(f"- {text}" for text in record["left_out"]) or "Nothing.",
    ]
    return "\n\n".join(parts)


if __name__ == "__main__":
    sys.exit(main())
