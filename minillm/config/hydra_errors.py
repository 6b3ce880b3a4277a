"""Hydra's errors as ConfigErrors: one paragraph, with the nearest thing that exists.

with our_hydra():
    try:
        composed = hydra.compose("train", overrides)
    except (HydraException, OmegaConfBaseException) as error:
        raise explain(error, overrides, "train") from None
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from minillm.config.expand import DEFAULTS
from minillm.config.paths import conf_dir
from minillm.errors import ConfigError, nearest


@contextmanager
def our_hydra() -> Iterator[None]:
    """Hydra initialised with our configuration folder, also inside a program that uses Hydra for itself."""
    theirs = GlobalHydra.instance().hydra
    GlobalHydra.instance().clear()
    try:
        with initialize_config_dir(str(conf_dir()), version_base="1.3"):
            yield
    finally:
        GlobalHydra.instance().hydra = theirs


def explain(error: Exception, overrides: Sequence[str], config_name: str) -> ConfigError:
    """What was given, what is wrong with it, and the nearest right name."""
    text = str(error)
    missing = re.search(r"Could not find '([\w./-]+)'", text)
    if missing:
        group, _, option = missing.group(1).rpartition("/")
        options = re.findall(r"^\t(\S+)$", text, flags=re.MULTILINE)
        hint = nearest(option, options)
        return ConfigError(f"{group}={option}: no such option.{hint} Available: {', '.join(options) or 'none'}.")
    if "Config group override" in text:
        hint = "a config group takes the name of one of its files, as in logger=none"
        return ConfigError(f"{' '.join(overrides)}: {hint} ({first_line(error)})")
    unknown = re.search(r"Could not (?:override|delete from config\.) '([^']+)'", text)
    if unknown:
        # Of `a.b={c:1}` the message names a.b, its cause the key that does not exist.
        full = getattr(error.__cause__, "full_key", None) or unknown.group(1)
        given = unknown.group(1)
        return _unknown_key(full if full.startswith(f"{given}.") else given, overrides, config_name)
    present = re.search(r"An item is already at '([^']+)'", text)
    if present:
        return ConfigError(f"{present.group(1)}: exists already; change it by {present.group(1)}=..., without the +.")
    ambiguous = re.search(r"Ambiguous value for argument '([^'=]+)=(.*)'$", text, flags=re.MULTILINE)
    if ambiguous:
        key, value = ambiguous.groups()
        return ConfigError(
            f"{key}={value}: is it a list, a text or a sweep? Write {key}=[{value}] for a list, "
            f"{key}=\"'{value}'\" for a text; -m runs one job for each value."
        )
    if isinstance(error, HydraException) and not error.__cause__:
        unreadable = next((o for o in overrides if not parse(o)), None)
        if unreadable is not None:
            return ConfigError(f"{unreadable}: cannot be read as KEY=VALUE ({first_line(error)})")
    cause = f" ({first_line(error.__cause__)})" if error.__cause__ else ""
    return ConfigError(f"{first_line(error)}{cause}")


def _unknown_key(key: str, overrides: Sequence[str], config_name: str) -> ConfigError:
    """`key` is not in the configuration that the group choices among `overrides` compose."""
    layer = re.fullmatch(r"model\.layers(?:\.overrides)?\.(\d+)(?:\.([\w.]+))?", key)
    if layer:
        field = f"{layer[2]}:..." if layer[2] else "..."
        return ConfigError(
            f"{key}: unknown key. One layer's fields are set by model.layers.overrides={{{layer[1]}:{{{field}}}}}."
        )
    keys = _known_keys(overrides, config_name)
    if key in keys:
        return ConfigError(f"~{key}: Hydra cannot remove a key that is null; give it another value instead.")
    parent, _, leaf = key.rpartition(".")
    siblings = sorted(k.rpartition(".")[2] for k in keys if k.rpartition(".")[0] == parent)
    hint = nearest(leaf, siblings) if siblings else nearest(key, keys)
    if siblings and parent:
        hint = hint.replace("'", f"'{parent}.", 1)
    listed = f" {f'Keys of {parent}' if parent else 'Keys'}: {', '.join(siblings)}." if siblings else ""
    add = ""
    own = re.fullmatch(r"(model\.layers\.kinds\.[^.]+)\.(\w+)(\..+)?", key)
    if own and own[1] in keys and own[2] in DEFAULTS and not (siblings and hint):
        hint, add = "", f" It can be added: ++{key}=..."
    elif parent == "model.layers.kinds":
        add = f" A kind is added by +{key}={{...}}."
    return ConfigError(f"{key}: unknown key.{hint}{listed}{add}")


def _known_keys(overrides: Sequence[str], config_name: str) -> set[str]:
    """Dotted keys, and groups, of what the group choices among `overrides` compose."""
    with our_hydra():
        groups = GlobalHydra.instance().config_loader().list_groups("")
        choices = [text for text in overrides for o in parse(text) if o.key_or_group in groups]
        try:
            composed = hydra_compose(config_name, overrides=choices, return_hydra_config=True)
        except (HydraException, OmegaConfBaseException):
            composed = hydra_compose(config_name, return_hydra_config=True)
    chosen = {str(group) for group in composed.hydra.runtime.choices if not str(group).startswith("hydra")}
    plain = OmegaConf.to_container(composed, resolve=False)
    assert isinstance(plain, dict)
    return _dotted({key: value for key, value in plain.items() if key != "hydra"}) | chosen


def parse(override: str) -> list[Any]:
    """The parsed override in a list, which is empty where Hydra cannot read it."""
    try:
        return list(OverridesParser.create().parse_overrides([override]))
    except HydraException:
        return []


def _dotted(node: Any, prefix: str = "") -> set[str]:
    if not isinstance(node, dict):
        return set()
    keys = set()
    for key, value in node.items():
        keys.add(f"{prefix}{key}")
        keys |= _dotted(value, f"{prefix}{key}.")
    return keys


def first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") + "." if lines else type(error).__name__
