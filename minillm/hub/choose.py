"""Which family says a layer plan exactly, or why none does."""

from __future__ import annotations

from minillm.config.schema import ModelConfig
from minillm.errors import MinillmError
from minillm.hub.family import UNWRITABLE, Family, families
from minillm.hub.family import family as family_of


class NoFamily(MinillmError):
    """No family expresses a plan; the message says for each, layer by layer, why."""


NEAREST = 3
"""Families whose every reason is told; of the others only the first."""


def choose(model: ModelConfig, name: str | None = None) -> Family:
    """The plainest family that expresses `model` exactly, or the one asked for by `name`.

    Raises:
        NoFamily: none does: per family the reasons, layer by layer, nearest first.
        MinillmError: the named one does not, with the reasons.
    """
    if name is not None:
        asked = family_of(name)
        if not asked.exports:
            raise MinillmError(f"{name} is read here but not written.")
        reasons = asked.cannot(model)
        if reasons:
            raise MinillmError(f"{name} does not express this model: {'; '.join(reasons)}.")
        return asked
    tried: list[tuple[Family, list[str]]] = []
    for one in families():
        if not one.exports or one.by_name_only:
            continue
        reasons = one.cannot(model)
        if not reasons:
            return one
        tried.append((one, reasons))
    tried.sort(key=lambda entry: (UNWRITABLE in entry[1], len(entry[1]), entry[0].rank))
    lines = ["No Hugging Face family expresses this model exactly. Nearest first:"]
    for place, (one, reasons) in enumerate(tried):
        more = len(reasons) - 1
        told = reasons if place < NEAREST else [*reasons[:1], *([f"and {more} more"] if more else [])]
        lines.append(f"  {one.name}: {'; '.join(told)}")
    lines.append("This project's own form holds any plan: family='minillm' (--family minillm on the command line).")
    raise NoFamily("\n".join(lines))
