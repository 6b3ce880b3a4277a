"""docs/configuration.md, every key with type, default and meaning, from the dataclasses that read the YAML.

After adding or changing a field, run

    python -m tests.configuration_reference
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import types
import typing
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal

from minillm.config.compose import compose_plain
from minillm.config.expand import DEFAULTS
from minillm.config.layers import LayerSpec, QKNorm
from minillm.config.parse import SCALARS, SECTIONS
from minillm.config.schema import Backend, BlockConfig, Config, LengthProbeConfig
from minillm.evaluation.settings import EvalConfig, SuiteSettings
from minillm.position import SCHEMES, TEMPERATURES, EmbeddingScheme, PositionScheme, TemperatureScheme
from minillm.position.scaling import SCALINGS, Scaling

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "configuration.md"

Row = tuple[str, str, str, str]
"""Key, type, default, meaning."""
WORDS: dict[Any, str] = {
    int: "whole number", float: "number", str: "text", bool: "true or false", type(None): "null", Any: "anything",
    PositionScheme: "scheme", EmbeddingScheme: "scheme", TemperatureScheme: "temperature", QKNorm: "norm",
    Scaling: "scaling",
}  # fmt: skip

INTRO = """# Configuration

Every key of `python train.py` and `python eval.py`, with its type, its default and what it means. Written by
`python -m tests.configuration_reference` from the dataclasses that read the YAML, and the comments in `conf/`. Defaults
are those of the two programs, as the files in `conf/` give them (`size=micro`, `block=standard`, ...); *needed* fields
of a scheme have none. An unknown key is an error.

```bash
python train.py dry_run=true optim.lr=1e-3 model.attention.qk_norm=rms ++model.layers.kinds.local.softcap=50
```
"""

MODEL: list[Row] = [
    ("model.vocab_size", "whole number or null", "null", "Asked size; the tokenizer's real size replaces it."),
    ("model.backend", "", "auto", "Who computes attention ([backends](layer-plans.md#backends))."),
    ("model.embedding.position", "scheme or null", "null", "What is added to the token embeddings."),
    ("model.layers.kinds", "mapping", "*needed*", "Names of layer kinds, and the fields of each."),
    ("model.layers.pattern", "list of kinds", "the only kind", "Cycled over the layers and cut at their number."),
    ("model.layers.overrides", "mapping or null", "null", "Fields, or a kind, of single layers by number from 0."),
    ("model.layers.no_rope_layer_interval", "whole number or null", "null", "Every n-th layer has `position: nope`."),
    ("model.attention", "mapping", "", "Fields of every layer of which nothing else speaks."),
]


def page() -> str:
    """The text of docs/configuration.md."""
    train, evaluate = compose_plain([]), compose_plain([], config_name="eval")
    parts = [INTRO]
    parts.append(
        table("The run", "Top-level keys (`conf/train.yaml`).", rows(Config, train, SCALARS, comments("train.yaml")))
    )
    model = [(n, t or words(Backend), d, m) for n, t, d, m in MODEL]
    parts.append(table("`model`", "The layer plan (`conf/model/`); see [layer plans](layer-plans.md).", model))
    layer = rows(LayerSpec, DEFAULTS, DEFAULTS)
    parts.append(table("A layer's fields", "In a kind, an override or `model.attention`.", layer))
    parts.append(table("`qk_norm`", summary(QKNorm), rows(QKNorm)))
    parts.append("## Schemes of a layer: `position`\n\nExplained in [position schemes](schemes/README.md).\n")
    parts += [described(n, c) for n, c in sorted(SCHEMES.items()) if ours(c) and not issubclass(c, EmbeddingScheme)]
    parts.append("## Schemes of the embeddings: `model.embedding.position`\n")
    parts += [described(n, c) for n, c in sorted(SCHEMES.items()) if ours(c) and issubclass(c, EmbeddingScheme)]
    parts.append("## Scalings of `rope`: `position.scaling`\n")
    parts += [described(n, c) for n, c in sorted(SCALINGS.items())]
    parts.append("## Query temperatures: `temperature`\n")
    parts += [described(n, c) for n, c in sorted(TEMPERATURES.items())]
    for name, cls in {"block": BlockConfig, **SECTIONS}.items():
        files = sorted((ROOT / "conf" / name).glob("*.yaml"), key=lambda path: path.stem == train["choices"][name])
        said = {"name": f"chosen by `{name}=...`", "source": f"chosen by `{name}=...`"}
        for file in files:
            said |= comments(f"{name}/{file.name}")
        parts.append(table(f"`{name}`", summary(cls), rows(cls, train[name], None, said)))
    probe = compose_plain(["callbacks=length_probe"])["callbacks"]["length_probe"]
    parts.append(table("`callbacks.length_probe`", summary(LengthProbeConfig), rows(LengthProbeConfig, probe)))
    own = rows(EvalConfig, evaluate, set(evaluate) - {"suite"}, comments("eval.yaml"))
    parts.append(table("Evaluation: `python eval.py`", "Top-level keys (`conf/eval.yaml`).", own))
    for name, cls in typing.get_type_hints(SuiteSettings).items():
        own = rows(cls, evaluate["suite"][name], None, comments(f"suite/{name}.yaml"))
        parts.append(table(f"`suite.{name}`", summary(cls).partition(": ")[2], own))
    return "\n".join(parts)


def table(title: str, text: str, body: list[Row]) -> str:
    lines = [
        f"## {title}",
        "",
        *([text, ""] if text else []),
        "| key | type | default | meaning |",
        "|---|---|---|---|",
    ]
    lines += ["| " + " | ".join((f"`{name}`", *cells)).replace("|  |", "| |").rstrip() + " |" for name, *cells in body]
    return "\n".join(lines) + "\n"


def described(name: str, cls: type) -> str:
    """A scheme, scaling or temperature: a heading, what its docstring says first, and its fields."""
    body = [row for row in rows(cls) if row[0] != "type"]
    text = summary(cls) or summary(sys.modules[cls.__module__])
    if not body:
        return f"### `{name}`\n\n{text}\n"
    return table(f"`{name}`", text, body).replace("## ", "### ", 1)


def rows(
    cls: type,
    given: Mapping[str, Any] | None = None,
    only: Collection[str] | None = None,
    comments: Mapping[str, str] | None = None,
) -> list[Row]:
    """A dataclass's fields, or `only` some. `given` are the values that files give, which come before its defaults;
    their `comments` speak where the field itself has no docstring."""
    hints, docs = typing.get_type_hints(cls), docs_of_fields(cls)
    out = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        if only is None or field.name in only:
            default = yaml_word(given[field.name]) if given and field.name in given else default_of(field)
            kind = words(hints[field.name])
            kind = f"{kind} or null" if default == "null" and not kind.endswith("null") else kind
            meaning = docs.get(field.name) or sentence((comments or {}).get(field.name, ""), kind)
            out.append((field.name, kind, default, plain(meaning)))
    return out


def sentence(comment: str, kind: str) -> str:
    """A comment as a sentence; names of what may be chosen keep their small letters."""
    name = re.match(r"\w+:|\w*", comment)
    if not comment or (name and (name[0].endswith(":") or f"`{name[0]}`" in kind)):
        return comment and comment + "."
    return comment[0].upper() + comment[1:] + "."


def comments(file: str) -> dict[str, str]:
    """What a file of conf/ says beside its keys."""
    text = (ROOT / "conf" / file).read_text(encoding="utf-8")
    return dict(re.findall(r"^ *(\w+):.*?\s# *(.+?)\.?$", text, flags=re.MULTILINE))


def plain(text: str) -> str:
    """Markdown's own characters, outside of code, as they are."""
    parts = text.split("`")
    parts[::2] = [part.replace("*", "\\*").replace("<", "\\<") for part in parts[::2]]
    return "`".join(parts).replace("|", "\\|")


def ours(cls: type) -> bool:
    return cls.__module__.startswith("minillm.")


def summary(thing: Any) -> str:
    """The first paragraph of a docstring that somebody wrote (a dataclass without one has its signature there)."""
    text = inspect.getdoc(thing) or ""
    if isinstance(thing, type) and text.startswith(f"{thing.__name__}("):
        return ""
    return plain(" ".join(text.split("\n\n")[0].split()))


@cache
def docs_of_fields(cls: type) -> dict[str, str]:
    """The string under each field, also of the classes it inherits from."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if dataclasses.is_dataclass(base):
            (tree,) = ast.parse(inspect.getsource(base)).body
            assert isinstance(tree, ast.ClassDef)
            found.update(_documented(tree))
    return found


def _documented(tree: ast.ClassDef) -> Iterator[tuple[str, str]]:
    for line, after in zip(tree.body, tree.body[1:], strict=False):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and isinstance(after, ast.Expr):
            text = ast.literal_eval(after.value)
            yield line.target.id, " ".join(text.split())


def default_of(field: dataclasses.Field[Any]) -> str:
    if field.default is not dataclasses.MISSING:
        return yaml_word(field.default)
    if field.default_factory is not dataclasses.MISSING:
        return yaml_word(field.default_factory())
    return "*needed*"


def yaml_word(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, (tuple, list)):
        return f"[{', '.join(yaml_word(v) for v in value)}]"
    if isinstance(value, dict):
        return "{}" if not value else str(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def words(hint: Any) -> str:
    """A type as people say it."""
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return ", ".join(f"`{word}`" for word in inside)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(words(option) for option in inside)
    if origin is tuple:
        return f"list ({words(inside[0])})"
    if origin is dict or hint is dict:
        return "mapping"
    return "mapping" if dataclasses.is_dataclass(hint) else WORDS[hint]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
