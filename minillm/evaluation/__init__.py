"""Measuring trained models: suites that read a checkpoint and write `eval/<suite>.json` into its run folder.

print(minillm.evaluation.length_table("outputs/rnope_swa-micro-embedded-s1-3f9c2a1b"))
"""

from __future__ import annotations

from minillm.evaluation.evaluate import length_table as length_table

__all__ = ["length_table"]
