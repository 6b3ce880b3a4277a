"""What a general compressor makes of the held-out text: the bar that a language model's bits per byte should pass.

xz_bits_per_byte(["some text", "more text"])
"""

from __future__ import annotations

import lzma
from collections.abc import Iterable

LIMIT = 16 * 2**20
"""Bytes compressed at most: xz -9e does about 1 MB a second, and its figure hardly moves after this."""


def xz_bits_per_byte(texts: Iterable[str], limit: int = LIMIT) -> float:
    """Bits per UTF-8 byte of `xz -9e` over the texts joined together, or over their first `limit` bytes."""
    joined = bytearray()
    for text in texts:
        joined += text.encode("utf-8")
        if len(joined) >= limit:
            break
    raw = bytes(joined[:limit])
    if not raw:
        raise ValueError("No text to compress.")
    return 8 * len(lzma.compress(raw, preset=9 | lzma.PRESET_EXTREME)) / len(raw)
