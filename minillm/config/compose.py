"""Hydra at the door: overrides in, `Config` out."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from hydra import compose as hydra_compose
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from minillm.config.hydra_errors import explain, first_line, our_hydra, parse
from minillm.config.merge import NAME_KEYS
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
    with our_hydra():
        try:
            composed = hydra_compose(config_name, overrides=list(overrides), return_hydra_config=True)
        except (HydraException, OmegaConfBaseException) as error:
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
    _keep_names(plain, overrides, config_name)
    named = {str(k): str(v) for k, v in dict(choices).items() if not str(k).startswith("hydra") and v is not None}
    return {**plain, "choices": named}


def _keep_names(plain: dict[Any, Any], overrides: Sequence[str], config_name: str) -> None:
    """Give `position`, `qk_norm` and `temperature` back the bare name that an override of one of their fields removed.

    ``++model.layers.kinds.global.position.theta=5e5`` refines what the arm says there. OmegaConf puts ``{theta: 5e5}``
    in the place of a bare ``nope``; without its name it would silently refine `model.attention.position` instead.
    """
    nameless = [path for path in _fields(plain) if NAME_KEYS[path[-1]] not in _at(plain, path)]
    if not nameless:
        return
    kept = []
    for text in overrides:
        for override in parse(text):
            key = tuple(str(override.key_or_group).split("."))
            if not any(_refines(key, override.value(), path) for path in nameless):
                kept.append(text)
    before = OmegaConf.to_container(hydra_compose(config_name, overrides=kept), resolve=False)
    for path in nameless:
        name = _at(before, path)
        if isinstance(name, str):
            field = _at(plain, path)
            field.update({NAME_KEYS[path[-1]]: name, **field})


def _fields(plain: dict[Any, Any]) -> Iterator[tuple[str, ...]]:
    """Paths of the fields that name a scheme and are mappings."""
    model = plain.get("model")
    owners: list[tuple[str, ...]] = [("model", "attention"), ("model", "embedding")]
    owners += [("model", "layers", "kinds", str(kind)) for kind in _at(model, ("layers", "kinds")) or {}]
    for owner in owners:
        for name in NAME_KEYS:
            if isinstance(_at(plain, (*owner, name)), dict):
                yield (*owner, name)


def _refines(key: tuple[str, ...], value: Any, path: tuple[str, ...]) -> bool:
    """Does the override `key=value` set fields inside `path`, and not `path` itself?"""
    if key[: len(path)] == path and len(key) > len(path):
        return True
    return path[: len(key)] == key and isinstance(_at(value, path[len(key) :]), dict)


def _at(node: Any, path: Sequence[str]) -> Any:
    """The value at `path` in nested mappings, None where there is none."""
    for name in path:
        if not isinstance(node, dict):
            return None
        node = next((value for key, value in node.items() if str(key) == name), None)
    return node
