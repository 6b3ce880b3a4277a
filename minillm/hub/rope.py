"""Rotary position as config.json spells it, into our `position` mapping and back.

Two spellings are read: `rope_parameters` of transformers 5 (flat, or one mapping per layer type), and `rope_theta` with
`rope_scaling` of transformers 4 (whose `rope_type` was once `type`). What wins over what is as in transformers 5.24,
modeling_rope_utils.py: a mapping's own value, then the key beside it, then the class's default.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.hub.reader import Reader
from minillm.position.rope import RoPE

Position = dict[str, Any]
LAYER_TYPES = ("full_attention", "sliding_attention")


def read_rope(
    config: Reader, default_theta: float, max_positions: int, layout: str = "half", partial: float | None = None
) -> Position:
    """The one rotary position of a family that has the same in every rotated layer.

    `partial` is the class's own default of `partial_rotary_factor`; None for a class whose code has no such thing.
    """
    theta = config.take("rope_theta", float, default_theta)
    share = config.take("partial_rotary_factor", float, partial)
    scaling = config.take("rope_scaling", dict | None, None)
    given = config.take("rope_parameters", dict | None, None)
    chosen, key = (scaling, "rope_scaling") if scaling else (given or {}, "rope_parameters")
    nested = [name for name in LAYER_TYPES if isinstance(chosen.get(name), Mapping)]
    if nested:
        if len({str(sorted(chosen[name].items())) for name in nested}) > 1 or set(chosen) - set(nested):
            raise config.error(key, "this family rotates all its layers alike, so it cannot differ by layer type")
        chosen = chosen[nested[0]]
    reader = Reader(chosen, f"{config.where}: {key}")
    return position(chosen, theta, share, max_positions, reader, layout, whole=partial is None)


def read_rope_by_type(
    config: Reader, default_theta: Mapping[str, float], max_positions: int, local_theta_key: str | None = None
) -> dict[str, Position]:
    """The rotary position of each layer type (OLMo 3, Gemma 3). `rope_scaling` changes full layers alone.

    `local_theta_key` names the base of sliding layers beside `rope_theta` in the older spelling. Without one,
    `rope_theta` stands for both types, as OLMo 3's files mean it; transformers 5 gives it to full layers alone, so
    another base than its default is told in a warning.
    """
    theta = config.take("rope_theta", float, None)
    local = theta if local_theta_key is None else config.take(local_theta_key, float, None)
    scaling = config.take("rope_scaling", dict | None, None)
    given = config.take("rope_parameters", dict | None, None) or {}
    if given and not set(given) <= set(LAYER_TYPES):
        raise config.error("rope_parameters", f"expected one mapping for each of {', '.join(LAYER_TYPES)}")
    out = {}
    for name, beside in zip(LAYER_TYPES, (theta, local), strict=True):
        where = f"{config.where}: rope_parameters.{name}"
        chosen = dict(config.mapping(given, name, "rope_parameters"))
        if name == "full_attention" and scaling:
            chosen, where = {**chosen, **scaling}, f"{config.where}: rope_scaling"
        fallback = default_theta[name] if beside is None else beside
        if name == "sliding_attention" and local_theta_key is None and "rope_theta" not in chosen:
            default = default_theta[name]
            if fallback != default:
                config.warnings.append(
                    f"{config.where}: rope_theta = {fallback:g} is taken for all layers, as older versions of "
                    f"transformers mean it; transformers 5.24 gives it to full layers alone and {default:g} to "
                    f"sliding ones, so its logits differ. rope_parameters by layer type say it beyond doubt."
                )
        reader = Reader(chosen, where)
        out[name] = position(chosen, fallback, None, max_positions, reader)
        if out[name].get("scaling", {}).get("truncate") is False:
            raise reader.error("truncate", "transformers does not read it in a mapping by layer type; write true")
    return out


def position(
    given: Mapping[str, Any],
    theta: float,
    partial: float | None,
    max_positions: int,
    reader: Reader,
    layout: str = "half",
    whole: bool = True,
) -> Position:
    """Our `position` mapping from one mapping of theirs; `whole`: its class has no code to rotate a part of a head."""
    kind = given.get("rope_type", given.get("type", "default"))
    reader.taken |= {"rope_type", "type"}
    if not isinstance(kind, str):
        raise reader.error("rope_type" if "rope_type" in given else "type", "expected a word")
    if kind == "su":
        kind = "longrope"  # its first name
    out: Position = {"scheme": "rope", "theta": reader.take("rope_theta", float, theta)}
    share = reader.take("partial_rotary_factor", float, 1.0 if partial is None else partial)
    if kind == "proportional":
        out |= {"partial_rotary_factor": share, "rule": "proportional"}
        factor = reader.take("factor", float, 1.0)
        if factor != 1:
            out["scaling"] = {"type": "linear", "factor": factor}
    elif share != 1 and whole:
        raise reader.error("partial_rotary_factor", f"{share:g} of each head, but this family rotates whole heads")
    elif share != 1:
        out["partial_rotary_factor"] = share
    if layout != "half":
        out["layout"] = layout
    if kind not in ("default", "proportional"):
        if kind not in _READERS:
            raise reader.error(
                "rope_type", f"not known here. Known: {', '.join(['default', *_READERS, 'proportional'])}"
            )
        out["scaling"] = _READERS[kind](reader, max_positions)
    reader.finish()
    return out


def _linear(given: Reader, max_positions: int) -> dict[str, Any]:
    return {"type": "linear", "factor": _needed(given, "factor")}


def _dynamic(given: Reader, max_positions: int) -> dict[str, Any]:
    # Theirs counts from max_position_embeddings, whatever else the mapping says.
    given.taken.add("original_max_position_embeddings")
    out = {"type": "dynamic_ntk", "factor": _needed(given, "factor")}
    return {**out, "original_max_position_embeddings": max_positions}


def _yarn(given: Reader, max_positions: int) -> dict[str, Any]:
    original = given.size("original_max_position_embeddings", max_positions)
    factor = given.take("factor", float, None)
    out: dict[str, Any] = {"type": "yarn", "factor": max_positions / original if factor is None else factor}
    out["original_max_position_embeddings"] = original
    for name, default in (("beta_fast", 32.0), ("beta_slow", 1.0)):
        value = given.take(name, float, None) or default  # 0 means the default, as theirs does
        if value != default:
            out[name] = value
    if not given.take("truncate", bool, True):
        out["truncate"] = False
    amplitude = given.take("attention_factor", float, None)
    scales = {name: given.take(name, float, None) for name in ("mscale", "mscale_all_dim")}
    if amplitude is not None:
        out["attention_factor"] = amplitude
    elif all(scales.values()):
        out |= scales
    return out


def _llama3(given: Reader, max_positions: int) -> dict[str, Any]:
    names = ("factor", "low_freq_factor", "high_freq_factor")
    out: dict[str, Any] = {"type": "llama3", **{name: _needed(given, name) for name in names}}
    return {
        **out,
        "original_max_position_embeddings": given.size("original_max_position_embeddings", max_positions),
    }


def _longrope(given: Reader, max_positions: int) -> dict[str, Any]:
    original = given.size("original_max_position_embeddings", max_positions)
    factor = given.take("factor", float, None)
    out: dict[str, Any] = {"type": "longrope", "factor": max_positions / original if factor is None else factor}
    out["original_max_position_embeddings"] = original
    for name in ("short_factor", "long_factor"):
        out[name] = given.take(name, tuple[float, ...], None)
        if out[name] is None:
            raise given.error(name, "missing")
        if len(set(out[name])) == 1:
            out[name] = out[name][0]
    amplitude = given.take("attention_factor", float, None)
    return out if amplitude is None else {**out, "attention_factor": amplitude}


_READERS = {"linear": _linear, "dynamic": _dynamic, "yarn": _yarn, "llama3": _llama3, "longrope": _longrope}
_WRITTEN = {"dynamic_ntk": "dynamic"}


def _needed(given: Reader, name: str) -> float:
    value = given.take(name, float, None)
    if value is None:
        raise given.error(name, "missing")
    return float(value)


def write_rope(spec: LayerSpec) -> dict[str, Any]:
    """`rope_parameters` for a layer's position; for one that is not RoPE, plain rotation with base 10000.

    Not every scheme can be said: the caller reads the result back and compares.
    """
    scheme = spec.position
    if not isinstance(scheme, RoPE):
        return {"rope_type": "default", "rope_theta": 10000.0}
    out: dict[str, Any] = {"rope_type": "default", "rope_theta": scheme.theta}
    if scheme.rule == "proportional":
        out |= {"rope_type": "proportional", "partial_rotary_factor": scheme.partial_rotary_factor}
        if scheme.scaling is not None and scheme.scaling.name == "linear":
            out["factor"] = scheme.scaling.factor
        return out
    if scheme.partial_rotary_factor != 1:
        out["partial_rotary_factor"] = scheme.partial_rotary_factor
    scaling = scheme.scaling
    if scaling is not None:
        values = {f.name: getattr(scaling, f.name) for f in dataclasses.fields(scaling) if f.name != "type"}
        defaults = {f.name: f.default for f in dataclasses.fields(scaling)}
        values = {name: value for name, value in values.items() if value != defaults[name]}
        kind = _WRITTEN.get(scaling.name, scaling.name)
        if kind == "dynamic":
            values.pop("original_max_position_embeddings", None)  # theirs is the model's max_position_embeddings
        if kind in _READERS:
            plain = {name: list(v) if isinstance(v, tuple) else v for name, v in values.items()}
            for name in {"short_factor", "long_factor"} & set(plain):
                if isinstance(plain[name], float):  # theirs knows lists only
                    plain[name] = [plain[name]] * (scheme.rotary_dim(spec.head_dim) // 2)
            out |= {"rope_type": kind, **plain}
    return out


def write_rope_by_type(model: ModelConfig) -> dict[str, Any]:
    """`rope_parameters` by layer type, each from the first rotated layer of that type; its own kind's where none is."""
    out = {}
    for name in LAYER_TYPES:
        chosen = [s for s in model.layers if (s.window is not None) == (name == "sliding_attention")]
        rotated = [s for s in chosen or model.layers if isinstance(s.position, RoPE)]
        out[name] = write_rope(rotated[0] if rotated else model.layers[0])
    return out
