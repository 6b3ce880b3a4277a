"""`init_from=PATH`: begin a run with trained weights, under the same layer plan or another one.

    plain, source = resolve(plain)                 # the settings with what the weights decide filled in
    start = check(source, parse_config(plain))     # refuses what cannot be; start.describe() says what will be

The run is named by what lies at PATH (`init_from_fingerprint`), not by PATH, so that the same weights elsewhere give
the same run, and others under the same path another. Weights mean nothing under another vocabulary: their tokenizer
comes with them. What the plan says of a layer may differ, for that is what such runs are about, and is listed; sizes
must agree, and so must the block's settings, which would change the function of every layer without any sign of it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from minillm.config import fields
from minillm.config.plan_warnings import ranges
from minillm.config.schema import BlockConfig, Config, ModelConfig, TokenizerConfig
from minillm.data.tokenizer import Tokenizer, load_from_config
from minillm.errors import ConfigError, MinillmError
from minillm.training import identity
from minillm.training.run_folder import RunFolder
from minillm.training.source import Source, open_source, tokenizer_fingerprint
from minillm.training.transfer import Transfer

ONLY_NEW = ("initializer_range", "depth_scaled_init")
"""Block settings that decide how new tensors begin, and nothing else."""
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers")
HEADS = ("num_attention_heads", "num_key_value_heads", "head_dim")
FILLED = ("init_from_fingerprint", "tokenizer")
"""Settings that the weights decide."""


class Start(NamedTuple):
    """How a run begins: checked, and ready to be said."""

    source: Source
    transfer: Transfer
    differences: list[str]
    """In which the layer plans differ, a line each."""
    warnings: list[str]

    def describe(self) -> str:
        """Lines for the screen."""
        lines = [f"init from    {self.source.describe()}"]
        if self.source.tokenizer is not None:
            fingerprint = tokenizer_fingerprint(self.source.tokenizer)
            lines.append(f"tokenizer    the weights' own ({fingerprint}); none is trained on this text")
        lines += self.transfer.describe()
        if self.differences:
            lines.append("warning: the layer plan is not the one these weights were trained under (there -> here):")
            lines += [f"  {text}" for text in self.differences]
        return "\n".join([*lines, *(f"warning: {text}" for text in self.warnings)])

    def to_dict(self) -> dict[str, Any]:
        """Plain values for init_from.json."""
        return {**self.source.facts(), "plan_differences": self.differences, **self.transfer.to_dict()}


def resolve(plain: Mapping[str, Any], sweep_dir: Path | None = None) -> tuple[dict[str, Any], Source | None]:
    """`plain` with the fingerprint, the tokenizer and the vocabulary of the weights, and the weights themselves.

    Where the weights are gone, but a run that began with them is there, its settings say what they were, and the
    source is None; as it is where no weights are given.

    Raises:
        MinillmError: there are no such weights, or they are not the ones that the settings insist on.
    """
    path = fields.convert(plain.get("init_from"), str | None, "init_from")
    if path is None:
        return dict(plain), None
    asked = fields.build(TokenizerConfig, plain["tokenizer"], "tokenizer")
    try:
        source = open_source(path, asked.bos_token)
    except MinillmError:
        known = _begun_before(plain, sweep_dir)
        if known is not None:
            return known, None
        raise
    expected = plain.get("init_from_fingerprint")
    if expected is not None and expected != source.fingerprint:
        raise ConfigError(
            f"init_from_fingerprint = {expected}: what lies at init_from = {path} is {source.fingerprint}. "
            "Give the weights that are meant, or leave the fingerprint out."
        )
    out = copy.deepcopy(dict(plain))
    out["init_from_fingerprint"] = source.fingerprint
    out["model"]["vocab_size"] = source.model.vocab_size
    out["tokenizer"] = _tokenizer(asked, source)
    return out, source


def check(source: Source, cfg: Config) -> Start:
    """Compare the model of the weights with the one asked for.

    Raises:
        ConfigError: sizes or block settings that differ, with the overrides that make them agree; tensors of other
            shapes; nothing that could be kept.
    """
    _check_sizes(source, cfg.model, "block" in cfg.init_from_allow)
    warnings = _check_block(source, cfg.model.block, "block" in cfg.init_from_allow)
    shapes = {name: tuple(weight.shape) for name, weight in source.weights.items()}
    transfer = Transfer.between(shapes, cfg.model, cfg.init_from_allow)
    fitted = {"interpolate" if shape[0] > shapes[name][0] else "crop" for name, shape in transfer.resized.items()}
    warnings += [
        f"init_from_allow: {word} has no effect: no position table needs it."
        for word in cfg.init_from_allow
        if word != "block" and word not in fitted
    ]
    warnings += _turned_layouts(source.model, cfg.model)
    return Start(source, transfer, plan_differences(source.model, cfg.model), warnings)


def check_vocabulary(cfg: Config, tokenizer: Tokenizer) -> None:
    """Refuse a tokenizer with ids beyond the embedding: possible where the weights came without their own."""
    if cfg.init_from is not None and tokenizer.vocab_size > cfg.model.vocab_size:
        raise ConfigError(
            f"tokenizer.path = {cfg.tokenizer.path}: it has {tokenizer.vocab_size} ids, and the embedding of "
            f"init_from = {cfg.init_from} has {cfg.model.vocab_size} rows. Give the tokenizer of these weights."
        )


def plan_differences(before: ModelConfig, after: ModelConfig) -> list[str]:
    """What differs between two layer plans of equal depth: ``layers 3, 7: position: rope -> nope``."""
    found: dict[str, list[int]] = {}
    for old, new in zip(before.layers, after.layers, strict=True):
        for text in _differences(_fields(old.to_dict()), _fields(new.to_dict())):
            found.setdefault(text, []).append(new.index)
    lines = [f"{ranges(indices)}: {text}" for text, indices in found.items()]
    schemes = [None if m.embedding_position is None else m.embedding_position.to_dict() for m in (before, after)]
    lines += [f"token embeddings: {text}" for text in _differences({"position": schemes[0]}, {"position": schemes[1]})]
    lengths = before.max_position_embeddings, after.max_position_embeddings
    if lengths[0] != lengths[1]:
        lines.append(f"training length: {lengths[0]} -> {lengths[1]} tokens")
    return lines


def _begun_before(plain: Mapping[str, Any], sweep_dir: Path | None) -> dict[str, Any] | None:
    """The settings as a run has them that began with these weights when they were still there; None without one."""
    if plain.get("run_dir"):
        places = [Path(str(plain["run_dir"]))]
    else:
        outer = identity.run_path(plain, sweep_dir).parent
        places = sorted(outer.iterdir()) if outer.is_dir() else []
    for place in places:
        folder = RunFolder(place)
        if not folder.init_from.is_file() or not folder.config.is_file():
            continue
        saved = folder.read_config()
        if saved.get("init_from") != plain["init_from"]:
            continue
        known = {**plain, **{name: saved[name] for name in FILLED}}
        known["model"] = {**plain["model"], "vocab_size": saved["model"]["vocab_size"]}
        if identity.run_path(known, sweep_dir) == place:
            return known
    return None


def _tokenizer(asked: TokenizerConfig, source: Source) -> dict[str, Any]:
    """The tokenizer section of the run."""
    own = source.tokenizer
    if own is None:
        if asked.source != "file":
            raise ConfigError(
                f"tokenizer.source = {asked.source}: {source.path} has no tokenizer.json, and its weights mean nothing "
                "under another vocabulary. Give the model's own: tokenizer=file tokenizer.path=..."
            )
        return dataclasses.asdict(asked)
    if asked.source == "file":
        other = load_from_config(asked)
        if other.to_json() != own.to_json():
            raise ConfigError(
                f"tokenizer.path = {asked.path}: its content ({tokenizer_fingerprint(other)}, {other.vocab_size} ids) "
                f"is not the tokenizer of init_from = {source.path} ({tokenizer_fingerprint(own)}, {own.vocab_size} "
                "ids), without which the weights mean nothing. Leave tokenizer= out."
            )
    if asked.bos_token not in (None, own.bos_token):
        raise ConfigError(
            f"tokenizer.bos_token = {asked.bos_token!r}: the weights of init_from = {source.path} were trained with "
            f"{own.bos_token!r} before each document. Leave it out."
        )
    return {"source": "init_from", "vocab_size": None, "path": None, "bos_token": own.bos_token}


def _check_sizes(source: Source, asked: ModelConfig, any_block: bool) -> None:
    there = {name: getattr(source.model, name) for name in SIZES}
    here = {name: getattr(asked, name) for name in SIZES}
    if there["num_hidden_layers"] == here["num_hidden_layers"]:
        pairs = [(a, b) for a, b in zip(source.model.layers, asked.layers, strict=True) if a.shape != b.shape]
        old, new = pairs[0] if pairs else (source.model.layers[0], asked.layers[0])
    else:
        old, new = source.model.layers[0], asked.layers[0]
    there |= {name: getattr(old, name) for name in HEADS}
    here |= {name: getattr(new, name) for name in HEADS}
    differing = [name for name in there if there[name] != here[name]]
    if not differing:
        return
    listed = ", ".join(f"{name} {there[name]} -> {here[name]}" for name in differing)
    mixed = len({spec.shape._replace(index=0) for model in (source.model, asked) for spec in model.layers}) > 2
    if mixed and all(name in HEADS for name in differing):
        there_heads, here_heads = ([s.num_key_value_heads for s in m.layers] for m in (source.model, asked))
        raise ConfigError(
            f"init_from: {source.path} has other heads in layer {new.index} than asked for (there -> here): {listed}. "
            f"They differ by layer, so the plan must say them: num_key_value_heads by layer there {there_heads}, here "
            f"{here_heads}. Set them in a kind, or in model.layers.overrides."
        )
    layer = f" (heads: those of layer {new.index})" if any(name in HEADS for name in differing) else ""
    block = [] if any_block else _block_overrides(source.model.block, asked.block)
    overrides = [*(f"size.{name}={there[name]}" for name in differing), *block]
    raise ConfigError(
        f"init_from: {source.path} has other sizes than those asked for (there -> here): {listed}{layer}. "
        f"To take over its sizes{' and block' if block else ''}: {' '.join(overrides)}"
    )


def _check_block(source: Source, asked: BlockConfig, allowed: bool) -> list[str]:
    """Block settings that differ: refused, or warned of where the user says that they may."""
    there, here = dataclasses.asdict(source.model.block), dataclasses.asdict(asked)
    differing = _differing_keys(source.model.block, asked)
    if not differing:
        return ["init_from_allow: block has no effect: the block's settings are the same."] if allowed else []
    listed = ", ".join(f"block.{name}: {_yaml(there[name])} -> {_yaml(here[name])}" for name in differing)
    if allowed:
        return [f"the block is not the one these weights were trained in (there -> here): {listed}."]
    raise ConfigError(
        f"init_from: {source.path} has other block settings than those asked for (there -> here): {listed}. "
        f"To take over its block: {' '.join(_block_overrides(source.model.block, asked))} "
        "To train on with other ones all the same: init_from_allow=[block]"
    )


def _differing_keys(there: BlockConfig, here: BlockConfig) -> list[str]:
    names = [field.name for field in dataclasses.fields(BlockConfig) if field.name not in ONLY_NEW]
    return [name for name in names if getattr(there, name) != getattr(here, name)]


def _block_overrides(there: BlockConfig, here: BlockConfig) -> list[str]:
    """The overrides that make `here` the block of the source."""
    return [f"block.{name}={_yaml(getattr(there, name))}" for name in _differing_keys(there, here)]


def _turned_layouts(before: ModelConfig, after: ModelConfig) -> list[str]:
    """Layers that are rotated in both plans and pair other channels, by which nobody's weights are meant."""
    turned = []
    for old, new in zip(before.layers, after.layers, strict=True):
        layouts = [getattr(spec.position, "layout", None) for spec in (old, new)]
        if None not in layouts and layouts[0] != layouts[1]:
            turned.append(new.index)
    if not turned:
        return []
    return [
        f"{ranges(turned)}: position.layout differs, so the rotation pairs other channels than the ones that these "
        "weights were trained for. Give the layout of the source, unless that is the experiment."
    ]


def _fields(layer: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in layer.items() if name not in ("index", "kind")}


def _differences(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Lines ``field: old -> new``; fields of one scheme one by one, another scheme as a whole."""
    out = []
    for name in dict.fromkeys([*old, *new]):
        a, b = old.get(name), new.get(name)
        if a == b:
            continue
        if isinstance(a, Mapping) and isinstance(b, Mapping) and _same_scheme(a, b):
            out += _differences(a, b, f"{prefix}{name}.")
        else:
            out.append(f"{prefix}{name}: {_short(a)} -> {_short(b)}")
    return out


def _same_scheme(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    return all(a.get(key) == b.get(key) for key in ("scheme", "type"))


def _short(value: Any) -> str:
    """A scheme as its name and the fields that say something."""
    if not isinstance(value, Mapping):
        return _yaml(value)
    name = next((str(value[key]) for key in ("scheme", "type") if key in value), "")
    rest = {k: v for k, v in value.items() if k not in ("scheme", "type") and v is not None}
    inner = ", ".join(f"{key}: {_short(v)}" for key, v in rest.items())
    return f"{name}{{{inner}}}" if inner else name


def _yaml(value: Any) -> str:
    """A value as it is written in an override."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def missing(cfg: Config, folder: RunFolder) -> MinillmError:
    """The error for a run that has to begin while its weights are gone."""
    return MinillmError(
        f"init_from: there is no {cfg.init_from}, and the run in {folder.path} has no checkpoint yet to go on from."
    )
