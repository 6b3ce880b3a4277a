"""Measuring trained models: suites that read a checkpoint and write `eval/<suite>.json` into its run folder.

print(minillm.evaluation.length_table("outputs/rnope_swa-micro-embedded-s1-3f9c2a1b"))
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["length_table"]


def length_table(run_dir: str | Path) -> str:
    """Loss at 1x to 16x the training length as text; see `minillm.evaluation.evaluate.length_table`."""
    # Imported late: the program's --help and its errors need no torch.
    from minillm.evaluation.evaluate import length_table as measured

    return measured(run_dir)
