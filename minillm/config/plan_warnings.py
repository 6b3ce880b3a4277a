"""What a plan says in vain: settings that no layer follows, windows wider than the text, groups that are cut.

Each warning names the layers, the field and the value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minillm.config.layers import LayerSpec
from minillm.config.merge import EVERYWHERE, INTERVAL, NAME_KEYS, Plain, Setting, leaves


def idle_settings(
    given: Mapping[str, Plain], given_to: Mapping[Setting, Sequence[int]], used: set[Setting], base: Plain
) -> list[str]:
    """Values that were given, and replaced in every layer they were given to.

    Args:
        given: each source's fields, by its path.
        given_to: the layers that a setting was given to.
        used: the settings that some layer follows.
        base: what `model.attention` says when nobody set it.
    """
    values = {path: leaves(own) for path, own in given.items()}
    defaults = leaves(base)
    idle: dict[tuple[str, str], list[Setting]] = {}
    for setting in given_to:
        path, leaf = setting
        default = path == EVERYWHERE and leaf in defaults and values[path][leaf] == defaults[leaf]
        if setting not in used and not default:
            idle.setdefault((path, leaf[0]), []).append(setting)
    out = []
    for (path, name), settings in idle.items():
        if any(s.path == path and s.leaf[0] == name for s in used):
            # The field is used, some of its values are not. A name is no value: it says what the others belong to.
            reports = [(s.leaf, values[path][s.leaf]) for s in settings if s.leaf[-1] not in NAME_KEYS.values()]
        else:
            reports = [((name,), given[path][name])]
        for leaf, value in reports:
            what = path if path == INTERVAL else f"{path}.{'.'.join(leaf)} = {value!r}"
            if path == EVERYWHERE:
                out.append(f"{what} has no effect: every layer sets its own {name}.")
            else:
                out.append(f"{what} has no effect: a later source replaces it in {ranges(given_to[settings[0]])}.")
    return out


def plan(
    kinds: Mapping[str, Plain], pattern: Sequence[str], interval: int | None, specs: Sequence[LayerSpec]
) -> list[str]:
    """Kinds without a layer, a last group that the depth cuts, an interval above the depth."""
    out = []
    depth = len(specs)
    present = {spec.kind for spec in specs}
    for name, given in kinds.items():
        if name not in present:
            out.append(f"model.layers.kinds.{name} = {dict(given)!r} has no effect: it is used by no layer.")
    rest = depth % len(pattern)
    if rest and len(pattern) > 1:
        missing = ", ".join(pattern[rest:])
        last = ranges(range(depth - rest, depth))
        out.append(
            f"model.layers.pattern has {len(pattern)} entries and num_hidden_layers = {depth}: the last group "
            f"({last}) is cut before: {missing}."
        )
    if interval and interval > depth:
        out.append(f"{INTERVAL} = {interval} is above num_hidden_layers = {depth}: no layer drops its position.")
    return out


def layers(specs: Sequence[LayerSpec], seq_len: int) -> list[str]:
    """Windows and chunks that hide nothing, key biases that never learn."""
    wide: dict[tuple[str, int], list[int]] = {}
    dead_bias = []
    for spec in specs:
        for name in ("window", "chunk"):
            value = getattr(spec, name)
            if value is not None and value >= seq_len:
                wide.setdefault((name, value), []).append(spec.index)
        if spec.sink_tokens is not None and spec.window is not None and spec.sink_tokens + spec.window >= seq_len:
            wide.setdefault(("window + sink_tokens", spec.sink_tokens + spec.window), []).append(spec.index)
        if spec.key_bias_is_dead:
            dead_bias.append(spec.index)
    out = [
        f"{ranges(indices)}: {name} = {value} is not smaller than the training length {seq_len}, so it hides nothing."
        for (name, value), indices in wide.items()
    ]
    if dead_bias:
        out.append(
            f"{ranges(dead_bias)}: the key bias (of qkv_bias or shared_qk) cancels in the softmax and never learns: it "
            "takes a rotation, QK-norm, a soft-cap or sink logits to make it count."
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
