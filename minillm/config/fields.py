"""Plain mappings into frozen dataclasses: unknown keys, wrong types and bad choices are errors that say where.

`build` is the only reader of nested plain values in the project. It understands what our schemas use: bool, int,
float, str, None, Literal, tuple[X, ...], dict, nested dataclasses, unions of these, and classes that read themselves
through a classmethod `from_plain(value, where)` (RoPE's scaling, whose fields depend on its type).
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Any, Literal, TypeVar

from minillm.errors import ConfigError, nearest

T = TypeVar("T")


@cache
def _hints(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def build(cls: type[T], values: Mapping[str, Any], where: str, scheme: str | None = None) -> T:
    """Make `cls` (a dataclass) from `values`; `where` is the dotted path that error messages begin with.

    `scheme` is the name under which `cls` was chosen, for the message about a field that it does not have.
    """
    if not isinstance(values, Mapping):
        raise ConfigError(f"{where}: expected a mapping, got {values!r}.")
    names = {f.name: f for f in dataclasses.fields(cls) if f.init}  # type: ignore[arg-type]
    for key in values:
        if key not in names:
            what = "unknown key" if scheme is None else f"'{scheme}' has no such field"
            allowed = f"Allowed here: {', '.join(sorted(names))}." if names else "It has no fields."
            raise ConfigError(f"{where}.{key} = {values[key]!r}: {what}.{nearest(str(key), names)} {allowed}")
    hints = _hints(typing.cast(Any, cls))
    built: dict[str, Any] = {}
    for name, spec in names.items():
        if name in values:
            built[name] = convert(values[name], hints[name], f"{where}.{name}")
        elif spec.default is dataclasses.MISSING and spec.default_factory is dataclasses.MISSING:
            raise ConfigError(f"{where}.{name}: missing, and it has no default.")
    return cls(**built)


def convert(value: Any, hint: Any, where: str) -> Any:
    """`value` as the type `hint`, or a ConfigError. Text that reads as a number is taken for one (``"1e-4"``)."""
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(value, typing.get_args(hint), where)
    if origin is Literal:
        allowed = typing.get_args(hint)
        if value in allowed and not isinstance(value, bool):
            return value
        raise ConfigError(
            f"{where}: {value!r} is not allowed.{nearest(str(value), allowed)} "
            f"Allowed: {', '.join(str(a) for a in allowed)}."
        )
    if origin is tuple:
        if isinstance(value, str) or not isinstance(value, (list, tuple)):
            raise ConfigError(f"{where}: expected a list, got {value!r}.")
        inner = typing.get_args(hint)[0]
        return tuple(convert(v, inner, f"{where}[{i}]") for i, v in enumerate(value))
    if hasattr(hint, "from_plain"):
        return hint.from_plain(value, where)
    if dataclasses.is_dataclass(hint):
        return build(typing.cast(type, hint), value, where)
    if hint is Any:
        return value
    if hint is type(None):
        if value is None:
            return None
    elif hint is bool:
        if isinstance(value, bool):
            return value
    elif hint is int:
        return _convert_int(value, where)
    elif hint is float:
        return _convert_float(value, where)
    elif hint is str:
        if isinstance(value, (str, int, float)) and not isinstance(value, bool):
            return str(value)
    elif (origin is dict or hint is dict) and isinstance(value, Mapping):
        return dict(value)
    raise ConfigError(f"{where}: expected {_name(hint)}, got {value!r}.")


def _convert_union(value: Any, options: tuple[Any, ...], where: str) -> Any:
    if value is None and type(None) in options:
        return None
    rest = [o for o in options if o is not type(None)]
    if len(rest) == 1:
        return convert(value, rest[0], where)
    if type(value) in rest:  # 1.0 is no 1 where both may stand
        return convert(value, type(value), where)
    for option in rest:
        try:
            return convert(value, option, where)
        except ConfigError:
            continue
    words = [word for option in rest if typing.get_origin(option) is Literal for word in typing.get_args(option)]
    expected = " or ".join(_name(option) for option in options)
    raise ConfigError(f"{where}: expected {expected}, got {value!r}.{nearest(str(value), words)}")


def _convert_int(value: Any, where: str) -> int:
    number = _whole(value, where)
    if abs(number) >= 2**63:
        raise ConfigError(f"{where}: expected a whole number of at most 64 bits, got one of {number.bit_length()}.")
    return number


def _whole(value: Any, where: str) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            pass
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if number.is_integer():
            return int(number)
    raise ConfigError(f"{where}: expected a whole number, got {value!r}.")


def _convert_float(value: Any, where: str) -> float:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        try:
            number = float(value)
        except OverflowError:
            raise ConfigError(f"{where}: expected a number, got one beyond all that a float holds.") from None
    elif isinstance(value, str):
        try:
            number = float(value)
        except ValueError:
            raise ConfigError(f"{where}: expected a number, got {value!r}.") from None
    else:
        raise ConfigError(f"{where}: expected a number, got {value!r}.")
    if not math.isfinite(number):
        raise ConfigError(f"{where}: expected a finite number, got {value!r}.")
    return number


WORDS: dict[Any, str] = {
    type(None): "null", bool: "true or false", int: "a whole number", float: "a number", str: "text", dict: "a mapping",
    tuple: "a list",
}  # fmt: skip


def _name(hint: Any) -> str:
    """A type as people say it."""
    if typing.get_origin(hint) is Literal:
        return " or ".join(f"'{word}'" for word in typing.get_args(hint))
    return WORDS.get(hint, WORDS.get(typing.get_origin(hint), getattr(hint, "__name__", str(hint))))
