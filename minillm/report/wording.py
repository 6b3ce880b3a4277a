"""Numbers as a reader wants them: as many digits as they are worth, the interval beside, words where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOTHING = "–"  # noqa: RUF001
"""In a cell of which nothing was measured."""


def loss(row: Mapping[str, Any] | None, signed: bool = False, interval: bool = True) -> str:
    """``3.214 [3.102, 3.330]``, ``+0.021 [-0.004, +0.047]``; the note of a row without value; a dash for no row."""
    if row is None:
        return NOTHING
    if row["value"] is None:
        return row["note"] if row.get("note") in ("not defined", "not finite") else "not measured"
    sign = "+" if signed else ""
    text = _fixed(row["value"], sign)
    if interval and row["low"] is not None:
        text += f" [{_fixed(row['low'], sign)}, {_fixed(row['high'], sign)}]"
    return minus(text)


def _fixed(value: float, sign: str) -> str:
    """Three decimals; what rounds to nothing has no minus."""
    return f"{round(value, 3) + 0.0:{sign}.3f}"


def number(value: float | None, digits: int = 3) -> str:
    """`value` with `digits` decimals, or a dash."""
    return NOTHING if value is None else minus(f"{value:.{digits}f}")


def speed(row: Mapping[str, Any] | None) -> str:
    """Tokens per second with the quartiles of the repeats."""
    if row is None or row["value"] is None:
        return loss(row)
    if row["low"] is None:
        return f"{row['value']:,.0f}"
    return f"{row['value']:,.0f} [{row['low']:,.0f}, {row['high']:,.0f}]"


def mebibytes(row: Mapping[str, Any] | None) -> str:
    return loss(row) if row is None or row["value"] is None else f"{row['value'] / 2**20:.2f}"


def count(value: float) -> str:
    """1234567 -> ``1.23M``."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(value) >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:g}"


def minus(text: str) -> str:
    """A true minus sign, as wide as the plus."""
    return text.replace("-", "−")  # noqa: RUF001
