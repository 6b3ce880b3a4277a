"""Hydra at the door: overrides in, `Config` out; Hydra's errors become ConfigErrors with the nearest right name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from minillm.config.parse import parse_config
from minillm.config.paths import conf_dir
from minillm.config.schema import Config
from minillm.errors import ConfigError, ConfigWarning, nearest


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
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            composed = hydra_compose(config_name, overrides=list(overrides), return_hydra_config=True)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, overrides, config_name) from None
    return plain_from_hydra(composed, composed.hydra.runtime.choices)


def plain_from_hydra(composed: DictConfig, choices: Any) -> dict[str, Any]:
    """A composed DictConfig as plain values, interpolations resolved, Hydra's own node left out."""
    own = composed.copy()
    with open_dict(own):
        own.pop("hydra", None)
    try:
        plain = OmegaConf.to_container(own, resolve=True)
    except OmegaConfBaseException as error:
        raise ConfigError(f"{error.full_key or 'configuration'}: {_first_line(error)}") from None
    assert isinstance(plain, dict)
    named = {str(k): str(v) for k, v in dict(choices).items() if not str(k).startswith("hydra") and v is not None}
    return {**plain, "choices": named}  # type: ignore[dict-item]


def explain(error: Exception, overrides: Sequence[str], config_name: str) -> ConfigError:
    """Hydra's error in one paragraph: what was given, and the nearest thing that exists."""
    text = str(error)
    missing = re.search(r"Could not find '([\w./-]+)'", text)
    if missing:
        group, _, option = missing.group(1).rpartition("/")
        options = re.findall(r"^\t(\S+)$", text, flags=re.MULTILINE)
        return ConfigError(f"{group}={option}: no such option.{nearest(option, options)} Available: {', '.join(options)}.")
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        return _unknown_key(unknown.group(1), overrides, config_name)
    group = re.search(r"No match in the defaults list|Could not override '([^']+)'\.\nNo match", text)
    if group:
        name = group.group(1) or text
        return _unknown_key(name, overrides, config_name)
    cause = f" ({_first_line(error.__cause__)})" if error.__cause__ else ""
    return ConfigError(f"{_first_line(error)}{cause}")


def _unknown_key(key: str, overrides: Sequence[str], config_name: str) -> ConfigError:
    """`key` is not in the configuration that the group choices among `overrides` compose."""
    with initialize_config_dir(str(conf_dir()), version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        groups = set(loader.list_groups(""))
        choices = [o.input_line or "" for o in _parse(overrides) if o.key_or_group in groups]
        try:
            composed = hydra_compose(config_name, overrides=choices)
        except (HydraException, OmegaConfBaseException):
            composed = hydra_compose(config_name)
    keys = _dotted(OmegaConf.to_container(composed, resolve=False)) | groups
    near = nearest(key, keys)
    parent, _, leaf = key.rpartition(".")
    siblings = [k.removeprefix(f"{parent}.") for k in keys if parent and k.startswith(f"{parent}.")]
    siblings = sorted(s for s in siblings if "." not in s)
    better = nearest(leaf, siblings)
    if better:
        near = better
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(\w+)", key)
    if layer:
        return ConfigError(
            f"{key}: unknown key. One layer's fields are set by model.layers.overrides={{{layer[1]}:{{{layer[2]}:...}}}}."
        )
    allowed = f" Keys of {parent}: {', '.join(siblings)}." if siblings else ""
    add = ""
    if key.startswith("model.layers."):
        add = f" To give a layer field that the YAML does not list, write ++{key}=..."
    return ConfigError(f"{key}: unknown key.{near}{allowed}{add}")


def _parse(overrides: Sequence[str]) -> list[Any]:
    parser = OverridesParser.create()
    parsed = []
    for override in overrides:
        try:
            parsed += parser.parse_overrides([override])
        except HydraException:
            continue
    return parsed


def _dotted(node: Any, prefix: str = "") -> set[str]:
    if not isinstance(node, dict):
        return set()
    keys = set()
    for key, value in node.items():
        keys.add(f"{prefix}{key}")
        keys |= _dotted(value, f"{prefix}{key}.")
    return keys


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") + "." if lines else type(error).__name__
