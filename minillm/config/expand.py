"""The layer plan: kinds + pattern + overrides + interval, expanded once into a tuple of `LayerSpec`s.

Precedence, field by field: `model.attention` < the layer's kind < the interval < its override. `position`, `qk_norm`,
`temperature` (and `position.scaling`) carry a name: where two sources name different schemes the later replaces the
whole field; where they name the same one, or the later names none, their fields merge.

A setting that cannot take effect is never silent: it is a ConfigError, or one of the returned warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minillm.config import fields
from minillm.config.layers import LayerSpec, QKNorm
from minillm.errors import ConfigError, nearest
from minillm.position.base import EmbeddingScheme, LayerShape, PositionScheme, scheme_class
from minillm.position.temperature import TemperatureScheme, temperature_class

Plain = Mapping[str, Any]

NAME_KEYS = {"position": "scheme", "qk_norm": "type", "temperature": "type", "scaling": "type"}
"""Fields that name a scheme, and the key under which they name it."""

DEFAULTS: dict[str, Any] = {
    "position": "rope",
    "window": None,
    "chunk": None,
    "qk_norm": None,
    "temperature": None,
    "softcap": None,
    "scale": None,
    "qkv_bias": False,
    "num_key_value_heads": None,
}
"""A layer's fields and what holds where nothing says otherwise; num_key_value_heads is then the model's."""


@dataclass(frozen=True)
class Heads:
    """The model's head counts, which a layer may refine."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


@dataclass(frozen=True)
class _Source:
    """Where a layer's fields come from: `path` for messages, and the fields it gives."""

    path: str
    given: Plain


# ---- the plan ---------------------------------------------------------------------------------------------------


def expand(
    layers: Plain, attention: Plain, depth: int, heads: Heads, seq_len: int, base: Plain | None = None
) -> tuple[tuple[LayerSpec, ...], tuple[str, ...]]:
    """One validated LayerSpec per layer, and warnings for settings that take no effect.

    Args:
        layers: the `model.layers` mapping: kinds, pattern, overrides, no_rope_layer_interval.
        attention: the `model.attention` mapping: fields for every layer.
        depth: num_hidden_layers.
        seq_len: training length in tokens, which windows and chunks should be below.
        base: values that `attention` has when nobody set them; defaults to DEFAULTS.
    """
    kinds, pattern, overrides, interval = _read_plan(layers, depth)
    base = {**DEFAULTS, **(base or {})}
    _check_fields(attention, "model.attention")
    everywhere = _Source("model.attention", attention)
    used: set[tuple[str, str]] = set()
    applied: dict[tuple[str, str], list[int]] = {}
    specs = []
    for index in range(depth):
        override = overrides.get(index, {})
        kind = override.get("kind", pattern[index % len(pattern)])
        sources = [everywhere, _Source(f"model.layers.kinds.{kind}", kinds[kind])]
        if interval and (index + 1) % interval == 0:
            sources.append(_Source("model.layers.no_rope_layer_interval", {"position": "nope"}))
        if override:
            given = {k: v for k, v in override.items() if k != "kind"}
            sources.append(_Source(f"model.layers.overrides.{index}", given))
        merged, origins = _merge(base, sources)
        used |= origins
        for source in sources:
            for name in source.given:
                applied.setdefault((source.path, name), []).append(index)
        specs.append(_layer(index, kind, merged, heads))
    warnings = [*_idle_settings(applied, used, everywhere, base), *_plan_warnings(kinds, pattern, interval, specs)]
    warnings += _spec_warnings(specs, seq_len)
    return tuple(specs), tuple(warnings)


def embedding_scheme(value: Any) -> EmbeddingScheme | None:
    """`model.embedding.position`: a bare name, a mapping with its fields, or null."""
    if value is None:
        return None
    where = "model.embedding.position"
    given = _named(value, "position", where)
    cls = scheme_class(str(given.pop("scheme", "")), where, embedding=True)
    built = fields.build(cls, given, where)
    assert isinstance(built, EmbeddingScheme)
    return built


def _read_plan(
    layers: Plain, depth: int
) -> tuple[dict[str, Plain], tuple[str, ...], dict[int, dict[str, Any]], int | None]:
    """kinds, pattern, overrides by layer and interval, each checked against the others and against `depth`."""
    where = "model.layers"
    known = ("kinds", "pattern", "overrides", "no_rope_layer_interval")
    for key in layers:
        if key not in known:
            raise ConfigError(
                f"{where}.{key}: unknown key.{nearest(str(key), known)} Allowed here: {', '.join(known)}."
            )
    kinds = layers.get("kinds")
    if not isinstance(kinds, Mapping) or not kinds:
        raise ConfigError(f"{where}.kinds: expected a mapping of kind names to layer fields, got {kinds!r}.")
    kinds = {str(name): given if given is not None else {} for name, given in kinds.items()}
    for name, given in kinds.items():
        _check_fields(given, f"{where}.kinds.{name}")
    pattern = layers.get("pattern")
    if pattern is None and len(kinds) == 1:
        pattern = list(kinds)
    if isinstance(pattern, str) or not isinstance(pattern, Iterable) or not list(pattern):
        raise ConfigError(f"{where}.pattern: expected a list of kind names, got {pattern!r}.")
    names = tuple(str(name) for name in pattern)
    for place, name in enumerate(names):
        _check_kind(name, kinds, f"{where}.pattern[{place}]")
    interval = fields.convert(
        layers.get("no_rope_layer_interval"), int | None, f"{where}.no_rope_layer_interval"
    )
    if interval is not None and interval < 0:
        raise ConfigError(f"{where}.no_rope_layer_interval = {interval}: must be 1 or more, or null for none.")
    return kinds, names, _read_overrides(layers.get("overrides"), kinds, depth), interval or None


def _read_overrides(overrides: Any, kinds: Plain, depth: int) -> dict[int, dict[str, Any]]:
    where = "model.layers.overrides"
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise ConfigError(f"{where}: expected a mapping of layer numbers to fields, got {overrides!r}.")
    out: dict[int, dict[str, Any]] = {}
    for key, given in overrides.items():
        if not (isinstance(key, int) or (isinstance(key, str) and key.isdigit())) or isinstance(key, bool):
            raise ConfigError(f"{where}: {key!r} is not a layer number; layers count from 0 to {depth - 1}.")
        index = int(key)
        if not 0 <= index < depth:
            raise ConfigError(f"{where}.{index}: there is no such layer; layers count from 0 to {depth - 1}.")
        if index in out:
            raise ConfigError(f"{where}.{index}: layer {index} is given twice.")
        if given is None:
            continue
        if isinstance(given, str):
            given = {"kind": given}
        _check_fields(given, f"{where}.{index}", extra=("kind",))
        if "kind" in given:
            _check_kind(str(given["kind"]), kinds, f"{where}.{index}.kind")
        out[index] = dict(given)
    return out


def _check_kind(name: str, kinds: Plain, where: str) -> None:
    if name not in kinds:
        raise ConfigError(f"{where}: '{name}' is not a kind.{nearest(name, kinds)} Kinds: {', '.join(kinds)}.")


def _check_fields(given: Any, where: str, extra: tuple[str, ...] = ()) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: expected a mapping of layer fields, got {given!r}.")
    allowed = (*DEFAULTS, *extra)
    for key in given:
        if key not in allowed:
            raise ConfigError(
                f"{where}.{key}: unknown layer field.{nearest(str(key), allowed)} Allowed: {', '.join(allowed)}."
            )


# ---- one layer --------------------------------------------------------------------------------------------------


def _merge(base: Plain, sources: list[_Source]) -> tuple[dict[str, Any], set[tuple[str, str]]]:
    """The layer's fields, and which (source, field) pairs had a part in them."""
    merged = dict(base)
    origins: dict[str, set[tuple[str, str]]] = {name: set() for name in base}
    for source in sources:
        for name, value in source.given.items():
            merged[name], kept = _merge_field(name, merged[name], value, f"{source.path}.{name}")
            if not kept:
                origins[name] = set()
            origins[name].add((source.path, name))
    return merged, set().union(*origins.values())


def _merge_field(name: str, old: Any, new: Any, where: str) -> tuple[Any, bool]:
    """`new` laid over `old`, and whether anything of `old` is kept."""
    if name not in NAME_KEYS or new is None:
        return new, False
    key = NAME_KEYS[name]
    over = _named(new, name, where)
    if old is None:
        return over, False
    under = _named(old, name, where)
    if key in over and over[key] != under.get(key):
        return over, False
    result = {**under, **over}
    if "scaling" in over and "scaling" in under:
        result["scaling"], _ = _merge_field("scaling", under["scaling"], over["scaling"], f"{where}.scaling")
    return result, True


def _named(value: Any, name: str, where: str) -> dict[str, Any]:
    """A bare name or a mapping, as a mapping."""
    key = NAME_KEYS[name]
    if isinstance(value, str):
        return {key: value}
    if isinstance(value, Mapping):
        return {str(k): v for k, v in value.items()}
    raise ConfigError(f"{where}: expected a name or a mapping with '{key}' and its fields, got {value!r}.")


def _layer(index: int, kind: str, merged: dict[str, Any], heads: Heads) -> LayerSpec:
    where = f"layer {index} (kind '{kind}')"
    kv_heads = fields.convert(merged["num_key_value_heads"], int | None, f"{where}: num_key_value_heads")
    kv_heads = heads.num_key_value_heads if kv_heads is None else kv_heads
    if kv_heads < 1 or heads.num_attention_heads % kv_heads:
        raise ConfigError(
            f"{where}: num_key_value_heads = {kv_heads} does not divide num_attention_heads = "
            f"{heads.num_attention_heads}."
        )
    shape = LayerShape(index, heads.num_attention_heads, kv_heads, heads.head_dim)
    window, chunk = (_tokens(merged[name], name, where) for name in ("window", "chunk"))
    if window is not None and chunk is not None:
        raise ConfigError(f"{where}: window = {window} and chunk = {chunk} exclude each other; set one of them to null.")
    return LayerSpec(
        index=index,
        kind=kind,
        position=_position(merged["position"], shape, where),
        num_attention_heads=heads.num_attention_heads,
        num_key_value_heads=kv_heads,
        head_dim=heads.head_dim,
        window=window,
        chunk=chunk,
        qk_norm=_qk_norm(merged["qk_norm"], where),
        temperature=_temperature(merged["temperature"], shape, where),
        softcap=_above_zero(merged["softcap"], "softcap", where),
        scale=_above_zero(merged["scale"], "scale", where),
        qkv_bias=fields.convert(merged["qkv_bias"], bool, f"{where}: qkv_bias"),
    )


def _tokens(value: Any, name: str, where: str) -> int | None:
    number: int | None = fields.convert(value, int | None, f"{where}: {name}")
    if number is not None and number < 1:
        raise ConfigError(f"{where}: {name} = {number}: must be 1 or more, or null for full attention.")
    return number


def _above_zero(value: Any, name: str, where: str) -> float | None:
    number: float | None = fields.convert(value, float | None, f"{where}: {name}")
    if number is not None and number <= 0:
        raise ConfigError(f"{where}: {name} = {number}: must be above 0, or null.")
    return number


def _position(value: Any, shape: LayerShape, where: str) -> PositionScheme:
    if value is None:
        raise ConfigError(f"{where}: position is null; for no position at all say 'nope'.")
    given = _named(value, "position", f"{where}: position")
    cls = scheme_class(str(given.pop("scheme", "")), f"{where}: position")
    scheme = fields.build(cls, given, f"{where}: position '{cls.scheme}'")
    _validate(scheme, shape, where)
    return scheme


def _qk_norm(value: Any, where: str) -> QKNorm | None:
    if value is None:
        return None
    return fields.build(QKNorm, _named(value, "qk_norm", f"{where}: qk_norm"), f"{where}: qk_norm")


def _temperature(value: Any, shape: LayerShape, where: str) -> TemperatureScheme | None:
    if value is None:
        return None
    given = _named(value, "temperature", f"{where}: temperature")
    cls = temperature_class(str(given.pop("type", "")), f"{where}: temperature")
    scheme = fields.build(cls, given, f"{where}: temperature '{cls.type}'")
    _validate(scheme, shape, where)
    return scheme


def _validate(scheme: PositionScheme | TemperatureScheme, shape: LayerShape, where: str) -> None:
    try:
        scheme.validate(shape)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


# ---- warnings ---------------------------------------------------------------------------------------------------


def _idle_settings(
    applied: Mapping[tuple[str, str], list[int]], used: set[tuple[str, str]], everywhere: _Source, base: Plain
) -> list[str]:
    """Fields that were given, and replaced in every layer they were given to."""
    out = []
    for (path, name), indices in applied.items():
        if (path, name) in used:
            continue
        if path == everywhere.path:
            if everywhere.given[name] == base[name]:
                continue  # nobody set it: it is the default
            out.append(f"{path}.{name} = {everywhere.given[name]!r} has no effect: every layer sets its own {name}.")
        else:
            out.append(f"{path}: {name} has no effect: a later source replaces it in {ranges(indices)}.")
    return out


def _plan_warnings(
    kinds: Plain, pattern: tuple[str, ...], interval: int | None, specs: list[LayerSpec]
) -> list[str]:
    out = []
    depth = len(specs)
    present = {spec.kind for spec in specs}
    for name, given in kinds.items():
        if name not in present:
            out.append(f"model.layers.kinds.{name} is used by no layer, so its settings ({dict(given)}) have no effect.")
    rest = depth % len(pattern)
    if rest and len(pattern) > 1:
        missing = ", ".join(pattern[rest:])
        last = ranges(range(depth - rest, depth))
        out.append(
            f"model.layers.pattern has {len(pattern)} entries and num_hidden_layers = {depth}: the last group "
            f"({last}) is cut before: {missing}."
        )
    if interval and interval > depth:
        out.append(
            f"model.layers.no_rope_layer_interval = {interval} is above num_hidden_layers = {depth}: no layer drops "
            "its position."
        )
    return out


def _spec_warnings(specs: list[LayerSpec], seq_len: int) -> list[str]:
    wide: dict[tuple[str, int], list[int]] = {}
    dead_bias = []
    for spec in specs:
        for name in ("window", "chunk"):
            value = getattr(spec, name)
            if value is not None and value >= seq_len:
                wide.setdefault((name, value), []).append(spec.index)
        if spec.qkv_bias and spec.position.place in ("nowhere", "bias") and spec.qk_norm is None:
            dead_bias.append(spec.index)
    out = [
        f"{ranges(indices)}: {name} = {value} is not smaller than the training length {seq_len}, so it hides nothing."
        for (name, value), indices in wide.items()
    ]
    if dead_bias:
        out.append(
            f"{ranges(dead_bias)}: qkv_bias = true, but without rotation or QK-norm the key bias cancels in the "
            "softmax and never learns."
        )
    return out


def ranges(indices: Iterable[int]) -> str:
    """``[0, 1, 2, 4]`` as ``layers 0-2, 4``."""
    runs: list[list[int]] = []
    for i in indices:
        if runs and i == runs[-1][1] + 1:
            runs[-1][1] = i
        else:
            runs.append([i, i])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
    return f"layer {text}" if len(runs) == 1 and runs[0][0] == runs[0][1] else f"layers {text}"
