"""Layer plans as the tests of this folder write them: plain mappings in, specs and warnings out."""

from __future__ import annotations

from typing import Any

import pytest

from minillm.config.expand import Heads, expand
from minillm.config.layers import LayerSpec
from minillm.errors import ConfigError

Plan = dict[str, Any]
HEADS = Heads(num_attention_heads=4, num_key_value_heads=2, head_dim=8)


def full(
    layers: Plan, attention: Plan | None = None, depth: int = 4, heads: Heads = HEADS, seq_len: int = 64
) -> tuple[tuple[LayerSpec, ...], tuple[str, ...]]:
    """Specs and warnings."""
    return expand(layers, attention or {}, depth, heads, seq_len)


def specs(layers: Plan, attention: Plan | None = None, depth: int = 4, **more: Any) -> tuple[LayerSpec, ...]:
    return full(layers, attention, depth, **more)[0]


def warned(layers: Plan, attention: Plan | None = None, depth: int = 4, **more: Any) -> tuple[str, ...]:
    return full(layers, attention, depth, **more)[1]


def one_kind(**fields: Any) -> Plan:
    """A plan whose layers are all of kind `a`."""
    return {"kinds": {"a": fields}, "pattern": ["a"]}


def refused(layers: Plan, attention: Plan | None = None, depth: int = 4, **more: Any) -> str:
    """The message with which the plan is refused."""
    with pytest.raises(ConfigError) as error:
        expand(layers, attention or {}, depth, more.get("heads", HEADS), more.get("seq_len", 64))
    message = str(error.value)
    assert "\n" not in message, "one paragraph"
    return message
