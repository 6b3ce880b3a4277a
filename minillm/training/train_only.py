"""Which parameters a run trains: `train_only`, globs over their names; the rest keep their values.

freeze(decoder, ["*.temperature.*"])      # the others: no gradient, no decay, no optimiser state
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from torch import nn

from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError, nearest
from minillm.model.decoder import build_model
from minillm.training.transfer import grouped


def trained_names(names: Iterable[str], patterns: Sequence[str] | None) -> list[str]:
    """Those of `names` that a pattern matches, in their order; all where `patterns` is None.

    Raises:
        ConfigError: a pattern matches nothing.
    """
    names = list(names)
    if patterns is None:
        return names
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            general = list(dict.fromkeys(re.sub(r"(?<=\.)\d+(?=\.)", "*", name) for name in names))
            raise ConfigError(
                f"train_only: {pattern!r} matches no parameter.{nearest(pattern, general)} "
                f"The parameters are {', '.join(general)}."
            )
    return [name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns)]


def freeze(model: nn.Module, patterns: Sequence[str] | None) -> None:
    """Turn gradients off for every parameter that `patterns` do not match. A tied one counts under its first name."""
    parameters = dict(model.named_parameters())
    trained = set(trained_names(parameters, patterns))
    for name, parameter in parameters.items():
        parameter.requires_grad_(name in trained)


def trained_sizes(config: ModelConfig, patterns: Sequence[str] | None) -> dict[str, int]:
    """Numbers in each parameter that is trained, by name; without building the model."""
    sizes = {name: p.numel() for name, p in build_model(config, device="meta").named_parameters()}
    return {name: sizes[name] for name in trained_names(sizes, patterns)}


def describe(config: ModelConfig, patterns: Sequence[str]) -> str:
    """How much of the model `patterns` let move, and what."""
    sizes = trained_sizes(config, patterns)
    return f"{sum(sizes.values()):,} numbers in {len(sizes)} parameters: {'; '.join(grouped(sizes))}"
