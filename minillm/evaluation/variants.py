"""The same weights under another setting, per layer kind: `variants` of eval.py.

    python eval.py runs=outputs/a '+variants.yarn4.global.position.scaling={type: yarn, factor: 4, ...}'
    python eval.py runs=outputs/a '+variants.log_n.global.temperature={type: log_n, base: 362}' \
                                  '+variants.wide.local.window=128' '+variants.kept.all.sink_tokens=4'

Each variant is a row of its own beside the run as trained. A kind's fields are laid over those it was trained with by
the rule of the layer plan; `all` means every kind. What would need other weights is refused.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from minillm.config.merge import merge_field
from minillm.errors import ConfigError, nearest

if TYPE_CHECKING:
    from minillm.config.schema import Config

ALL = "all"
"""Stands for every kind of a plan."""

Changes = Mapping[str, Mapping[str, Any]]
"""Layer fields by kind."""


def check(variants: Mapping[str, Any]) -> None:
    """Raise ConfigError unless these are names with layer fields by kind; what the fields say is checked per run."""
    for name, changes in variants.items():
        where = f"variants.{name}"
        if not re.fullmatch(r"[A-Za-z0-9_.+-]+", str(name)) or str(name).startswith("."):
            raise ConfigError(f"{where}: a variant's name is a folder's: letters, digits and _ . + - only.")
        if not isinstance(changes, Mapping) or not changes:
            raise ConfigError(
                f"{where}: expected layer fields by kind, as in {{global: {{window: 64}}}}, got {changes!r}."
            )
        for kind, given in changes.items():
            if not isinstance(given, Mapping) or not given:
                raise ConfigError(f"{where}.{kind}: expected a mapping of layer fields, got {given!r}.")


def apply(config: Config, name: str, changes: Changes) -> Config:
    """`config`, named after the variant, with the kinds of its plan changed.

    Raises:
        ConfigError: a kind that the plan does not have, a field that does not exist, or nothing that changes.
    """
    from minillm.config.parse import parse_config  # late: `check` is part of reading a command line, and needs no torch

    where = f"variants.{name}"
    plain = copy.deepcopy(config.plain)
    kinds = plain["model"]["layers"]["kinds"]
    for kind, given in changes.items():
        if kind != ALL and kind not in kinds:
            raise ConfigError(f"{where}.{kind}: no such kind.{nearest(kind, kinds)} Kinds: {', '.join(kinds)}, {ALL}.")
        for target in kinds if kind == ALL else [kind]:
            fields = dict(kinds[target] or {})
            for field, value in given.items():
                fields[field] = merge_field(field, fields.get(field), value, f"{where}.{kind}.{field}")
            kinds[target] = fields
    plain["name"] = f"{config.name or config.choices.get('model', 'model')} +{name}"
    changed = parse_config(plain)
    if changed.model.layers == config.model.layers:
        raise ConfigError(f"{where}: changes no layer of this run: {dict(changes)!r}.")
    return changed
