"""The registry: every file of the folder is known by name, and a name used in the wrong place is refused."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from minillm.errors import ConfigError
from minillm.position import SCHEMES, EmbeddingScheme, LayerShape, PositionScheme, register, scheme_class
from minillm.position.base import LayerPosition


def test_every_family_is_registered_without_being_listed() -> None:
    assert {"nope", "rope", "alibi", "t5", "shaw", "sinusoidal", "learned"} <= set(SCHEMES)
    assert {cls.place for cls in SCHEMES.values()} >= {"nowhere", "rotation", "bias", "relative", "embedding"}


@pytest.mark.parametrize("name", ["nope", "rope", "alibi", "t5", "shaw", "transformer_xl", "deberta"])
def test_a_layer_scheme_belongs_to_layers_only(name: str) -> None:
    assert scheme_class(name, "here") is SCHEMES[name]
    with pytest.raises(ConfigError, match=f"here: scheme '{name}' does not belong here; it goes in a layer's"):
        scheme_class(name, "here", embedding=True)


@pytest.mark.parametrize("name", ["sinusoidal", "learned"])
def test_an_embedding_scheme_belongs_to_the_embeddings_only(name: str) -> None:
    assert issubclass(scheme_class(name, "here", embedding=True), EmbeddingScheme)
    with pytest.raises(ConfigError, match=f"here: scheme '{name}' does not belong here; .*model.embedding.position"):
        scheme_class(name, "here")


def test_an_unknown_name_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(
        ConfigError, match=r"unknown position scheme 'ropee'. Did you mean 'rope'\? Known: alibi, .*nope"
    ):
        scheme_class("ropee", "here")


def test_two_schemes_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="'rope' is registered twice"):

        @register("rope")
        @dataclass(frozen=True)
        class Another(PositionScheme):
            pass


def test_nope_has_nothing_to_compute_and_no_field() -> None:
    scheme = scheme_class("nope", "here")()
    assert scheme.make(LayerShape(0, 2, 2, 8)) is None
    assert scheme.summary() == {}
    assert scheme.bias_key is None


def test_a_module_without_hooks_adds_nothing() -> None:
    module = LayerPosition()
    assert module.shift_invariant
    assert not list(module.parameters())
