"""docs/schemes/: every arm shown is built and run; every scheme, temperature, scaling and layer field is explained."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

from minillm.config.compose import compose_plain
from minillm.config.expand import DEFAULTS
from minillm.config.parse import parse_config
from minillm.config.schema import ModelConfig
from minillm.model.decoder import build_model
from minillm.position import SCHEMES, TEMPERATURES, EmbeddingScheme, LayerShape, scheme_class
from minillm.position.alibi import ALiBi
from minillm.position.deberta import DeBERTa
from minillm.position.rope import RoPE
from minillm.position.scaling import SCALINGS
from minillm.position.shaw import Shaw
from minillm.position.t5 import T5
from minillm.position.transformer_xl import TransformerXLTerms
from minillm.report.scheme_numbers import stand, table_row

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted((DOCS / "schemes").glob("*.md"))
LENGTH, WINDOW, WIDTH = 16, 5, 24
TOY = [
    f"size.hidden_size={WIDTH}",
    "size.intermediate_size=32",
    "size.num_hidden_layers=6",
    "size.num_attention_heads=4",
    "size.num_key_value_heads=2",
    "size.head_dim=8",
    f"size.seq_len={LENGTH}",
    f"size.window={WINDOW}",
]


class Section(NamedTuple):
    """From one heading to the next: the names in backticks that it has, and its text."""

    page: str
    title: str
    names: tuple[str, ...]
    text: str

    @property
    def arms(self) -> list[dict[str, Any]]:
        values = {"${size.window}": WINDOW, "${size.seq_len}": LENGTH}
        found = []
        for block in re.findall(r"^```yaml\n(.*?)^```$", self.text, flags=re.MULTILINE | re.DOTALL):
            for name, value in values.items():
                block = block.replace(f'"{name}"', str(value))
            assert "${" not in block, self.title
            found.append(yaml.safe_load(block))
        return found


@cache
def sections() -> list[Section]:
    out = []
    for page in PAGES:
        _, *parts = re.split(r"^#+ (?=\w)", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
        for part in parts:
            title, _, text = part.partition("\n")
            out.append(Section(page.stem, title, tuple(re.findall(r"`(\w+)`", title)), text))
    return out


ARMS = [(f"{section.page}, {section.title}", arm) for section in sections() for arm in section.arms]


@cache
def toy() -> dict[str, Any]:
    return compose_plain(["model=nope", *TOY])


def model_of(arm: dict[str, Any]) -> ModelConfig:
    """As if the block were conf/model/NAME.yaml."""
    assert set(arm) <= {"embedding", "layers", "attention"}
    model = dict(toy()["model"])
    model["embedding"] = {**model["embedding"], **arm.get("embedding", {})}
    model["layers"] = {"overrides": None, "no_rope_layer_interval": None, **arm["layers"]}
    model["attention"] = {**model["attention"], **arm.get("attention", {})}
    return parse_config({**toy(), "model": model}).model


@pytest.mark.parametrize("arm", [pytest.param(arm, id=f"{i} {where}") for i, (where, arm) in enumerate(ARMS)])
def test_every_arm_shown_is_built_and_learns_from_a_text(arm: dict[str, Any]) -> None:
    config = model_of(arm)
    model = build_model(config, seed=0)
    ids = torch.randint(config.vocab_size, (2, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    loss = model.loss(ids[:, :-1], ids[:, 1:], document_ids=torch.arange(LENGTH).ge(7).long().expand(2, -1))
    loss.backward()
    assert loss.isfinite()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("mask", [{"window": WINDOW}, {"chunk": WINDOW}], ids=["window", "chunk"])
@pytest.mark.parametrize("arm", [pytest.param(arm, id=f"{i} {where}") for i, (where, arm) in enumerate(ARMS)])
def test_every_arm_works_with_windows_chunks_packed_documents_and_a_cache(
    arm: dict[str, Any], mask: dict[str, int]
) -> None:
    kinds = {
        name: {
            **given,
            "window": None,
            "chunk": None,
            "sink_tokens": given.get("sink_tokens") if "window" in mask else None,
        }
        | mask
        for name, given in arm["layers"]["kinds"].items()
    }
    model = build_model(model_of({**arm, "layers": {**arm["layers"], "kinds": kinds}}), seed=0).eval()
    with torch.no_grad():  # weights large enough that attention is not uniform
        for parameter in model.layers.parameters():
            parameter.mul_(3)
    ids = torch.randint(50, (1, LENGTH), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        packed = model(ids, document_ids=torch.arange(LENGTH).ge(3).long()[None])[:, 3:]
        alone = model(ids[:, 3:])
        cache = model.new_cache(1)
        pieces = torch.cat([model(piece, cache=cache) for piece in ids[:, 3:].split([6, 1, 5, 1], dim=1)], dim=1)
    torch.testing.assert_close(packed, alone, atol=2e-4, rtol=0)
    torch.testing.assert_close(pieces, alone, atol=2e-4, rtol=0)


def declared(section: Section) -> Iterator[str]:
    """Names of the schemes, temperatures, scalings and fields that the section's arms set."""
    for arm in section.arms:
        config = model_of(arm)
        if config.embedding_position is not None:
            yield config.embedding_position.scheme
        for spec in config.layers:
            yield spec.position.scheme
            scaling = getattr(spec.position, "scaling", None)
            if scaling is not None:
                yield scaling.name
            if spec.temperature is not None:
                yield spec.temperature.type
        for kind in arm["layers"]["kinds"].values():
            yield from (field for field in kind if field in DEFAULTS)


OURS = {name for name, cls in SCHEMES.items() if cls.__module__.startswith("minillm.")}
FIELDS = set(DEFAULTS) - {"position", "temperature"}


@pytest.mark.parametrize("name", [*sorted(OURS), *sorted(TEMPERATURES), *sorted(SCALINGS), *sorted(FIELDS)])
def test_each_scheme_temperature_scaling_and_field_has_a_section_that_declares_it(name: str) -> None:
    named = [section for section in sections() if name in section.names]
    assert len(named) == 1, f"docs/schemes: one heading with `{name}` in it, please"
    assert name in set(declared(named[0])), f"docs/schemes/{named[0].page}.md: no arm under '{named[0].title}' has it"


def rows() -> dict[str, dict[str, str]]:
    """The table of properties."""
    text = next(section.text for section in sections() if section.title == "Properties")
    lines = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")
    ]
    header, _, *body = lines
    return {line[0].strip("`"): dict(zip(header, line, strict=True)) for line in body}


def test_each_scheme_has_its_properties() -> None:
    assert set(rows()) == OURS


@pytest.mark.parametrize("name", sorted(name for name in OURS if issubclass(SCHEMES[name], EmbeddingScheme)))
def test_an_embedding_is_unique_and_linear_in_a_shift_where_the_table_says_so(name: str) -> None:
    positions = 64
    scheme = scheme_class(name, "test", embedding=True)()
    assert isinstance(scheme, EmbeddingScheme)
    module = scheme.make_embedding(16, positions)
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    table = module(torch.arange(positions)[None])[0].detach().double()
    row = rows()[name]
    if row["unique"].startswith("yes"):
        assert (torch.cdist(table, table) + torch.eye(positions)).min() > 1e-3
    for shift in (1, 5):
        before, after = table[:-shift], table[shift:]
        error = (before @ torch.linalg.lstsq(before, after, driver="gelsd").solution - after).abs().max()
        assert (error < 1e-4) == row["linear in a shift"].startswith("yes")


def codes(name: str, distance: torch.Tensor) -> torch.Tensor:
    """What a layer's scheme makes of each distance, a row each."""
    if name in ("t5", "shaw", "deberta"):
        scheme, size = {"t5": (T5(), 32), "shaw": (Shaw(), 17), "deberta": (DeBERTa(terms=("c2p",)), 128)}[name]
        return table_row(scheme, distance, size)[:, None].double()
    if name == "alibi":
        return ALiBi().make(LayerShape(0, 8, 8, 4)).bias(*stand(distance))[0, :, 0].t().double()  # type: ignore[index]
    if name == "transformer_xl":
        terms = scheme_class(name, "test")().make(LayerShape(0, 4, 4, 8))
        assert isinstance(terms, TransformerXLTerms)
        return terms.waves(len(distance), torch.zeros((), dtype=torch.float64))
    angle = distance.double()[:, None] * torch.tensor(RoPE().frequencies(32, 0), dtype=torch.float64)
    return torch.cat((angle.cos(), angle.sin()), dim=-1)


@pytest.mark.parametrize("name", sorted(name for name in OURS if not issubclass(SCHEMES[name], EmbeddingScheme)))
def test_a_scheme_tells_all_distances_apart_where_the_table_says_so(name: str) -> None:
    unique = rows()[name]["unique"]
    if name == "nope":
        assert unique == "no, nothing is given"
        return
    code = codes(name, torch.arange(400))
    nearest = torch.cdist(code, code).fill_diagonal_(torch.inf).min()
    assert (nearest > 1e-4) == unique.startswith("yes")


def test_every_figure_is_shown_and_every_link_leads_somewhere() -> None:
    shown = set()
    for page in [*PAGES, DOCS / "layer-plans.md"]:
        for target in re.findall(r"\]\(([^)#]+)", page.read_text(encoding="utf-8")):
            if not target.startswith("https://"):
                path = (page.parent / target).resolve()
                assert path.exists(), f"{page.name}: {target}"
                shown.add(path.name)
    assert {path.name for path in (DOCS / "figures").iterdir()} <= shown


def test_every_anchor_is_a_heading() -> None:
    def anchor(title: str) -> str:
        return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")

    anchors = {(section.page, anchor(section.title)) for section in sections()}
    for page in PAGES:
        for target, name in re.findall(r"\]\((\w+)\.md#([^)]+)\)", page.read_text(encoding="utf-8")):
            assert (target, name) in anchors, f"{page.name}: {target}.md#{name}"
