"""The layer plan: kinds + pattern + overrides + interval, expanded once into a tuple of `LayerSpec`s.

Precedence, field by field: `model.attention` < the layer's kind < the interval < its override (config/merge.py).
A setting that cannot take effect is never silent: it is a ConfigError, or one of the returned warnings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from minillm.config import fields, plan_warnings
from minillm.config.layers import LayerSpec, QKNorm
from minillm.config.merge import EVERYWHERE, INTERVAL, Plain, Setting, Source, in_effect, leaves, merge, named, pop_name
from minillm.errors import ConfigError, nearest
from minillm.position.base import EmbeddingScheme, LayerShape, PositionScheme, scheme_class
from minillm.position.temperature import TemperatureScheme, temperature_class

DEFAULTS: dict[str, Any] = {
    "position": "rope",
    "window": None,
    "chunk": None,
    "sink_tokens": None,
    "sink_logits": False,
    "qk_norm": None,
    "temperature": None,
    "softcap": None,
    "scale": None,
    "qkv_bias": False,
    "shared_qk": False,
    "gate": False,
    "num_key_value_heads": None,
}
"""A layer's fields and what holds where nothing says otherwise; num_key_value_heads is then the model's."""


@dataclass(frozen=True)
class Heads:
    """The model's head counts, which a layer may refine."""

    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int


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
    _check_fields(attention, EVERYWHERE)
    everywhere = Source(EVERYWHERE, attention)
    given: dict[str, Plain] = {}
    given_to: dict[Setting, list[int]] = {}
    used: set[Setting] = set()
    specs = []
    for index in range(depth):
        override = overrides.get(index, {})
        kind = str(override.get("kind", pattern[index % len(pattern)]))
        sources = [everywhere, Source(f"model.layers.kinds.{kind}", kinds[kind])]
        if interval and (index + 1) % interval == 0:
            sources.append(Source(INTERVAL, {"position": "nope"}))
        if override:
            own = {k: v for k, v in override.items() if k != "kind"}
            sources.append(Source(f"model.layers.overrides.{index}", own))
        merged = merge(base, sources)
        specs.append(_layer(index, kind, merged, heads))
        for source in sources:
            given[source.path] = source.given
            for leaf in leaves(source.given):
                given_to.setdefault(Setting(source.path, leaf), []).append(index)
        used |= in_effect(merged, sources)
    warnings = plan_warnings.idle_settings(given, given_to, used, base)
    warnings += plan_warnings.plan(kinds, pattern, interval, specs)
    warnings += plan_warnings.layers(specs, seq_len)
    return tuple(specs), tuple(warnings)


def embedding_scheme(value: Any, hidden_size: int) -> EmbeddingScheme | None:
    """`model.embedding.position`: a bare name, a mapping with its fields, or null."""
    if value is None:
        return None
    where = "model.embedding.position"
    given = named(value, "position", where)
    cls = scheme_class(pop_name(given, "position", where), where, embedding=True)
    built = fields.build(cls, given, where, cls.scheme)
    assert isinstance(built, EmbeddingScheme)
    try:
        built.validate_embedding(hidden_size)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
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
                f"{where}.{key} = {layers[key]!r}: unknown key.{nearest(str(key), known)} "
                f"Allowed here: {', '.join(known)}."
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
    interval = fields.convert(layers.get("no_rope_layer_interval"), int | None, f"{where}.no_rope_layer_interval")
    if interval is not None and interval < 0:
        raise ConfigError(f"{where}.no_rope_layer_interval = {interval}: must be 1 or more, or null (or 0) for none.")
    return kinds, names, _read_overrides(layers.get("overrides"), kinds, depth), interval or None


def _read_overrides(overrides: Any, kinds: Plain, depth: int) -> dict[int, dict[str, Any]]:
    where = "model.layers.overrides"
    if overrides is None:
        return {}
    if not isinstance(overrides, Mapping):
        raise ConfigError(f"{where}: expected a mapping of layer numbers to fields, got {overrides!r}.")
    out: dict[int, dict[str, Any]] = {}
    for key, given in overrides.items():
        if not (isinstance(key, int) or (isinstance(key, str) and key.isdecimal())) or isinstance(key, bool):
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
                f"{where}.{key} = {given[key]!r}: unknown layer field.{nearest(str(key), allowed)} "
                f"Allowed: {', '.join(allowed)}."
            )


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
    window, chunk, sinks = (_tokens(merged[name], name, where) for name in ("window", "chunk", "sink_tokens"))
    if window is not None and chunk is not None:
        raise ConfigError(
            f"{where}: window = {window} and chunk = {chunk} exclude each other; set one of them to null."
        )
    if sinks is not None and window is None:
        raise ConfigError(
            f"{where}: sink_tokens = {sinks} has no effect without a window: give one, or set sink_tokens to null."
        )

    def flag(name: str) -> bool:
        value: bool = fields.convert(merged[name], bool, f"{where}: {name}")
        return value

    return LayerSpec(
        index=index,
        kind=kind,
        position=_position(merged["position"], shape, where),
        num_attention_heads=heads.num_attention_heads,
        num_key_value_heads=kv_heads,
        head_dim=heads.head_dim,
        window=window,
        chunk=chunk,
        sink_tokens=sinks,
        sink_logits=flag("sink_logits"),
        qk_norm=_qk_norm(merged["qk_norm"], where),
        temperature=_temperature(merged["temperature"], shape, where),
        softcap=_above_zero(merged["softcap"], "softcap", where),
        scale=_above_zero(merged["scale"], "scale", where),
        qkv_bias=flag("qkv_bias"),
        shared_qk=flag("shared_qk"),
        gate=flag("gate"),
    )


def _tokens(value: Any, name: str, where: str) -> int | None:
    number: int | None = fields.convert(value, int | None, f"{where}: {name}")
    if number is not None and number < 1:
        none = "none" if name == "sink_tokens" else "full attention"
        raise ConfigError(f"{where}: {name} = {number}: must be 1 or more, or null for {none}.")
    return number


def _above_zero(value: Any, name: str, where: str) -> float | None:
    number: float | None = fields.convert(value, float | None, f"{where}: {name}")
    if number is not None and number <= 0:
        raise ConfigError(f"{where}: {name} = {number}: must be above 0, or null.")
    return number


def _position(value: Any, shape: LayerShape, where: str) -> PositionScheme:
    if value is None:
        raise ConfigError(f"{where}: position is null; for no position at all say 'nope'.")
    given = named(value, "position", f"{where}: position")
    cls = scheme_class(pop_name(given, "position", f"{where}: position"), f"{where}: position")
    scheme = fields.build(cls, given, f"{where}: position", cls.scheme)
    _validate(scheme, shape, where)
    return scheme


def _qk_norm(value: Any, where: str) -> QKNorm | None:
    if value is None:
        return None
    return fields.build(QKNorm, named(value, "qk_norm", f"{where}: qk_norm"), f"{where}: qk_norm")


def _temperature(value: Any, shape: LayerShape, where: str) -> TemperatureScheme | None:
    if value is None:
        return None
    given = named(value, "temperature", f"{where}: temperature")
    cls = temperature_class(pop_name(given, "temperature", f"{where}: temperature"), f"{where}: temperature")
    scheme = fields.build(cls, given, f"{where}: temperature", cls.type)
    _validate(scheme, shape, where)
    return scheme


def _validate(scheme: PositionScheme | TemperatureScheme, shape: LayerShape, where: str) -> None:
    try:
        scheme.validate(shape)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
