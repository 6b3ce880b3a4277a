"""Which source decides a layer's field: later sources are laid over earlier ones, value by value.

`position`, `qk_norm`, `temperature` (and `position.scaling`) carry a name. Where two sources name different schemes the
later replaces the whole field; where they name the same one, or the later names none, their fields merge.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from minillm.errors import ConfigError

Plain = Mapping[str, Any]

EVERYWHERE = "model.attention"
INTERVAL = "model.layers.no_rope_layer_interval"

NAME_KEYS = {"position": "scheme", "qk_norm": "type", "temperature": "type", "scaling": "type"}
"""Fields that name a scheme, and the key under which they name it."""

Leaf = tuple[str, ...]
"""A value in a layer's fields: ``("window",)``, ``("position", "theta")``, ``("position", "scaling", "factor")``."""


class Source(NamedTuple):
    """Where a layer's fields come from: `path` for messages, and the fields it gives."""

    path: str
    given: Plain


class Setting(NamedTuple):
    """One value that a source gives."""

    path: str
    leaf: Leaf


def merge(base: Plain, sources: Sequence[Source]) -> dict[str, Any]:
    """The layer's fields: `base`, with each source laid over what came before it."""
    merged = dict(base)
    for source in sources:
        for name, value in source.given.items():
            merged[name] = merge_field(name, merged[name], value, f"{source.path}.{name}")
    return merged


def merge_field(name: str, old: Any, new: Any, where: str) -> Any:
    """`new` laid over `old`, both values of the field `name`."""
    if name not in NAME_KEYS or new is None:
        return new
    key = NAME_KEYS[name]
    over = named(new, name, where)
    if old is None:
        return over
    under = named(old, name, where)
    if key in over and over[key] != under.get(key):
        return over
    result = {**under, **over}
    if "scaling" in over and "scaling" in under:
        result["scaling"] = merge_field("scaling", under["scaling"], over["scaling"], f"{where}.scaling")
    return result


def named(value: Any, name: str, where: str) -> dict[str, Any]:
    """A bare name or a mapping, as a mapping."""
    key = NAME_KEYS[name]
    if isinstance(value, str):
        return {key: value}
    if isinstance(value, Mapping):
        return {str(k): v for k, v in value.items()}
    raise ConfigError(f"{where}: expected a name or a mapping with '{key}' and its fields, got {value!r}.")


def pop_name(given: dict[str, Any], name: str, where: str) -> str:
    """Take the scheme's name out of a mapping."""
    key = NAME_KEYS[name]
    if key not in given:
        raise ConfigError(f"{where} = {given!r}: names no scheme; add '{key}', as in {{{key}: ...}}.")
    return str(given.pop(key))


def leaves(given: Plain) -> dict[Leaf, Any]:
    """The values in a layer's fields, each under its path; a bare name stands under the key that names a scheme."""
    out: dict[Leaf, Any] = {}
    for name, value in given.items():
        if name in NAME_KEYS and isinstance(value, str):
            value = {NAME_KEYS[name]: value}
        if isinstance(value, Mapping):
            out |= {(name, *leaf): inner for leaf, inner in leaves(value).items()}
        else:
            out[(name,)] = value
    return out


def in_effect(merged: Plain, sources: Sequence[Source]) -> set[Setting]:
    """The settings that the layer follows.

    A value given again by a later source is followed in both, except where the first of them is `model.attention`:
    that one is for the layers of which nothing else speaks.
    """
    final = leaves(merged)
    out: set[Setting] = set()
    seen: set[Leaf] = set()
    for source in reversed(sources):
        for leaf, value in leaves(source.given).items():
            followed = leaf in final and final[leaf] == value
            if followed and not (source.path == EVERYWHERE and leaf in seen):
                out.add(Setting(source.path, leaf))
            seen.add(leaf)
    return out
