"""Evaluated runs without training or files: real layer plans and settings, results with known numbers."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minillm
from minillm.config.schema import Config
from minillm.evaluation.evaluate import Evaluation
from minillm.evaluation.runs import Run

LENGTHS = (1, 2, 4, 8, 16)


def length_rows(train_length: int, worse: float, table: bool, lift: float = 0.0) -> list[dict[str, Any]]:
    """Three documents of 100 tokens; each doubling of the context adds `worse` nats, and all losses have `lift` more;
    `table` ends at 1x."""
    rows = []
    for protocol in ("position", "same_target", "non_overlapping", "strided"):
        for i, multiple in enumerate(LENGTHS):
            losses = [3.0 + 0.1 * d + worse * i + lift for d in range(3)]
            value = sum(losses) / 3
            row = {
                "metric": "nll",
                "protocol": protocol,
                "length": multiple * train_length,
                "multiple": float(multiple),
                "depth": None,
                "bin": f"{multiple}-{multiple * train_length}" if protocol == "position" else None,
                "value": value,
                "n": 300,
                "low": value - 0.05,
                "high": value + 0.05,
                "documents": 3,
                "note": None,
                "document_nll": [100 * loss for loss in losses],
                "document_tokens": [100, 100, 100],
            }
            if table and multiple > 1:
                row |= {"value": None, "n": 0, "low": None, "high": None, "note": "not defined"}
                row |= {"documents": 0, "document_nll": None, "document_tokens": None}
            rows.append(row)
            if protocol == "same_target":
                change = None if row["value"] is None else worse * i
                ends = {"low": change, "high": change}
                rows.append({**row, "metric": "nll_change", "value": change, **ends, "document_nll": None})
    return rows


def cost_rows(train_length: int) -> list[dict[str, Any]]:
    rows = []
    for multiple in LENGTHS:
        length = multiple * train_length
        common = {"length": length, "depth": None, "note": None}
        for metric, value in (("train_tokens_per_second", 9000.0 / multiple), ("decode_tokens_per_second", 800.0)):
            row = {"metric": metric, "kind": None, "value": value, "n": 5, "low": value * 0.9, "high": value * 1.1}
            rows.append({**common, **row})
        for kind in ("measured", "formula"):
            row = {"metric": "kv_bytes", "kind": kind, "value": 1024.0 * length, "n": 1, "low": None, "high": None}
            rows.append({**common, **row})
    return rows


@functools.cache
def composed(overrides: tuple[str, ...]) -> Config:
    """Composing takes a good part of a second on a busy machine, and the tests ask for few different ones."""
    return minillm.compose(["trainer.max_steps=600", "data.batch_size=16", *overrides], warn=False)


@pytest.fixture
def make_evaluation(tmp_path: Path) -> Callable[..., Evaluation]:
    def make(
        *overrides: str,
        name: str = "run",
        worse: float = 0.0,
        lift: float = 0.0,
        table: bool = False,
        suites: tuple[str, ...] = ("length_perplexity", "cost"),
        metrics: bool = True,
        step: int = 600,
        settings: dict[str, Any] | None = None,
        decided: dict[str, Any] | None = None,
    ) -> Evaluation:
        """A run of these overrides whose loss changes by `worse` nats with each doubling of the context, and has
        `lift` more."""
        config = composed(overrides)
        train_length = config.model.max_position_embeddings
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        if metrics:
            points = [
                {
                    "step": s,
                    "tokens": s * 4096,
                    "time": s / 2,
                    "train/loss": 8 - s / 100,
                    "train/tokens_per_second": 8192,
                }
                | ({"val/loss": 8.1 + lift - s / 100, "val/bits_per_byte": 2.5 - s / 1000} if s % 100 == 0 else {})
                for s in range(1, 601)
            ]
            (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(p)}\n" for p in points) + '{"step": 6')
            start = {"command": f"python train.py {' '.join(overrides)}", "data": "f00d"}
            (folder / "starts.jsonl").write_text(f"{json.dumps(start)}\n")
        results = {}
        if "length_perplexity" in suites:
            own = {
                "lengths": list(LENGTHS),
                "min_documents": 2,
                "train_length": train_length,
                "source": "held-out documents of the embedded corpus",
                "documents": ["first", "second", "third"],
                "documents_left_out": 2,
                "documents_digest": "abc",
                "start_marker": "The start marker stands once.",
                "precision": "fp32",
                **(settings or {}),
            }
            rows = length_rows(train_length, worse, table, lift)
            results["length_perplexity"] = {"suite": "length_perplexity", "settings": own, "rows": rows, "seconds": 1.0}
        if "cost" in suites:
            own = {"lengths": list(LENGTHS), "machine": "a processor", "threads": 2, **(settings or {})}
            results["cost"] = {"suite": "cost", "settings": own, "rows": cost_rows(train_length), "seconds": 1.0}
        return Evaluation(
            run=Run(name, folder, folder),
            config=dataclasses.replace(config, model=dataclasses.replace(config.model, vocab_size=4096)),
            step=step,
            decided=decided or {"precision": "fp32", "backends": ["sdpa"] * 12, "device": "cpu", "torch": "2.13.0"},
            num_parameters=1_887_360,
            results=results,
        )

    return make
