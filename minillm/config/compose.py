"""Hydra at the door: overrides in, `Config` out."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose as hydra_compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from minillm.config.hydra_errors import explain, first_line, our_hydra, parse
from minillm.config.merge import NAME_KEYS, merge_field
from minillm.config.parse import parse_config
from minillm.config.schema import Config
from minillm.errors import ConfigError, ConfigWarning


def compose(overrides: Sequence[str] = (), warn: bool = True) -> Config:
    """The configuration of ``python train.py OVERRIDES``, by the same rules and with the same errors.

    Args:
        overrides: Hydra overrides, e.g. ``["model=rnope_swa", "size=micro", "model.attention.window=8"]``.
        warn: emit `Config.warnings` as ConfigWarning too.

    Raises:
        ConfigError: for anything that cannot be honoured.
    """
    config = parse_config(compose_plain(overrides))
    if warn:
        for text in config.warnings:
            warnings.warn(text, ConfigWarning, stacklevel=2)
    return config


def compose_plain(overrides: Sequence[str], config_name: str = "train") -> dict[str, Any]:
    """The resolved plain mapping that `overrides` compose, with the chosen group options under ``choices``."""
    overrides = loosen(overrides)
    with our_hydra():
        try:
            composed = hydra_compose(config_name, overrides=overrides, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise explain(error, overrides, config_name) from None
        return plain_from_hydra(composed, composed.hydra.runtime.choices, overrides, config_name)


def plain_from_hydra(
    composed: DictConfig, choices: Any, overrides: Sequence[str], config_name: str = "train"
) -> dict[str, Any]:
    """A composed DictConfig as plain values, interpolations resolved, Hydra's own node left out.

    To be called while Hydra is initialised: in a job, or as `compose_plain` does.
    """
    own = composed.copy()
    with open_dict(own):
        own.pop("hydra", None)
    try:
        plain = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'configuration'}: {first_line(error)}") from None
    assert isinstance(plain, dict)
    _lay_over(plain, overrides, config_name)
    named = {str(k): str(v) for k, v in dict(choices).items() if not str(k).startswith("hydra") and v is not None}
    if config_name == "train" and "model" not in named:
        raise ConfigError("model: exactly one arm is needed, as in model=rnope_swa.")
    return {**plain, "choices": named}


def loosen(overrides: Sequence[str]) -> list[str]:
    """Overrides as Hydra must be given them: a mapping for `position`, `qk_norm` or `temperature` may hold any of its
    scheme's fields, also those that the arm does not list, which Hydra takes with ++ only."""
    return [f"++{text}" if _NAMED_MAPPING.match(text) else text for text in overrides]


_NAMED_MAPPING = re.compile(
    r"model\.(?:attention|embedding|layers\.kinds\.[^.=]+)\.(?:position|qk_norm|temperature)(?:\.scaling)?=\s*\{"
)


def _lay_over(plain: dict[Any, Any], overrides: Sequence[str], config_name: str) -> None:
    """Merge what overrides say of `position`, `qk_norm` and `temperature` by the plan's rule instead of OmegaConf's.

    OmegaConf merges any two mappings, so that ``position={scheme:alibi}`` would keep the arm's theta, and puts
    ``{theta: 5e5}`` in the place of a bare ``nope``, whose name it forgets.
    """
    parsed = [(text, override) for text in overrides for override in parse(text)]
    given: dict[tuple[str, ...], list[tuple[tuple[str, ...], Any]]] = {}
    touching = set()
    for text, override in parsed:
        if override.is_delete() or override.is_sweep_override() or "${" in text:
            continue
        key = tuple(str(override.key_or_group).split("."))
        for path in _named_fields(plain):
            inside = _inside(key, override.value(), path)
            if inside is not None:
                given.setdefault(path, []).append(inside)
                touching.add(text)
    if not given:
        return
    before = OmegaConf.to_container(
        hydra_compose(config_name, overrides=[o for o in overrides if o not in touching]), resolve=True
    )
    for path, changes in given.items():
        value = _at(before, path)
        for rest, new in changes:
            for name in reversed(rest):
                new = {name: new}
            value = merge_field(path[-1], value, new, ".".join(path))
        _at(plain, path[:-1])[path[-1]] = value


def _named_fields(plain: dict[Any, Any]) -> Iterator[tuple[str, ...]]:
    """Paths of the fields that name a scheme."""
    model = plain.get("model")
    owners: list[tuple[str, ...]] = [("model", "attention"), ("model", "embedding")]
    owners += [("model", "layers", "kinds", str(kind)) for kind in _at(model, ("layers", "kinds")) or {}]
    for owner in owners:
        fields = _at(plain, owner)
        if isinstance(fields, dict):
            yield from ((*owner, name) for name in NAME_KEYS if name in fields)


def _inside(key: tuple[str, ...], value: Any, path: tuple[str, ...]) -> tuple[tuple[str, ...], Any] | None:
    """What the override `key=value` says of `path`: the rest of its key inside the field, and the value there."""
    if key[: len(path)] == path:
        return key[len(path) :], value
    if path[: len(key)] == key and isinstance(value, dict):
        node: Any = value
        for name in path[len(key) :]:
            if not isinstance(node, dict) or name not in node:
                return None
            node = node[name]
        return (), node
    return None


def _at(node: Any, path: Sequence[str]) -> Any:
    """The value at `path` in nested mappings, None where there is none."""
    for name in path:
        if not isinstance(node, dict):
            return None
        node = next((value for key, value in node.items() if str(key) == name), None)
    return node
