"""Plain values into typed ones: what is taken, what is refused, and how that is said."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from minillm.config.fields import build, convert
from minillm.errors import ConfigError, nearest


@dataclass(frozen=True)
class Inner:
    depth: int = 1


@dataclass(frozen=True)
class Outer:
    rate: float
    name: str = "x"
    mode: Literal["fast", "slow"] = "fast"
    sizes: tuple[int, ...] = ()
    inner: Inner = field(default_factory=Inner)
    share: int | float | None = None
    scale: float | Literal["sqrt_hidden"] | None = None
    flag: bool = False


@pytest.mark.bug("B088")
@pytest.mark.parametrize("given", [1e-4, "1e-4", "0.0001", "1.0E-4"], ids=repr)
def test_a_number_written_as_text_becomes_a_number(given: Any) -> None:
    built = build(Outer, {"rate": given}, "optim")
    assert built.rate == 1e-4
    assert type(built.rate) is float


def test_a_whole_number_is_a_float_where_a_float_is_wanted() -> None:
    assert type(build(Outer, {"rate": 3}, "o").rate) is float


@pytest.mark.parametrize(
    ("hint", "given", "made"),
    [
        pytest.param(int, "12", 12, id="digits"),
        pytest.param(int, 12.0, 12, id="a whole float"),
        pytest.param(int, "1e3", 1000, id="an exponent"),
        pytest.param(int, "9007199254740993", 9007199254740993, id="digits beyond a float's precision"),
        pytest.param(str, 5, "5", id="a number for a text"),
        pytest.param(int | float | None, 0.02, 0.02, id="a share where a count is possible too"),
        pytest.param(int | float | None, 3, 3, id="a count"),
        pytest.param(int | None, None, None, id="null"),
        pytest.param(tuple[int, ...], ["1", 2.0], (1, 2), id="a list"),
        pytest.param(float | Literal["sqrt_hidden"] | None, "sqrt_hidden", "sqrt_hidden", id="a word"),
        pytest.param(float | Literal["sqrt_hidden"] | None, "2", 2.0, id="a number beside a word"),
        pytest.param(dict, {"a": 1}, {"a": 1}, id="a mapping"),
    ],
)
def test_values_are_converted(hint: Any, given: Any, made: Any) -> None:
    out = convert(given, hint, "key")
    assert out == made
    assert type(out) is type(made)


@pytest.mark.parametrize(
    ("hint", "given", "message"),
    [
        pytest.param(int, 1.5, "key: expected a whole number, got 1.5.", id="a half"),
        pytest.param(int, True, "key: expected a whole number, got True.", id="a bool for an int"),
        pytest.param(int, "inf", "key: expected a whole number, got 'inf'.", id="infinity for an int"),
        pytest.param(int, None, "key: expected a whole number, got None.", id="null for an int"),
        pytest.param(float, "fast", "key: expected a number, got 'fast'.", id="a word for a number"),
        pytest.param(float, True, "key: expected a number, got True.", id="a bool for a float"),
        pytest.param(float, float("nan"), "key: expected a finite number, got nan.", id="nan"),
        pytest.param(float, "inf", "key: expected a finite number, got 'inf'.", id="infinity"),
        pytest.param(bool, 1, "key: expected true or false, got 1.", id="a number for a bool"),
        pytest.param(bool, "false", "key: expected true or false, got 'false'.", id="a text for a bool"),
        pytest.param(str, None, "key: expected text, got None.", id="null for a text"),
        pytest.param(str, True, "key: expected text, got True.", id="a bool for a text"),
        pytest.param(tuple[int, ...], "12", "key: expected a list, got '12'.", id="a text for a list"),
        pytest.param(tuple[int, ...], [1, "x"], "key[1]: expected a whole number, got 'x'.", id="a bad element"),
        pytest.param(
            Literal["fast", "slow"],
            "fats",
            "key: 'fats' is not allowed. Did you mean 'fast'? Allowed: fast, slow.",
            id="a misspelt choice",
        ),
        pytest.param(
            Literal["fast", "slow"],
            ["fast"],
            "key: ['fast'] is not allowed. Did you mean 'fast'? Allowed: fast, slow.",
            id="a list for a choice",
        ),
        pytest.param(
            float | Literal["sqrt_hidden"] | None,
            "sqrt_hiden",
            "key: expected a number or 'sqrt_hidden' or null, got 'sqrt_hiden'. Did you mean 'sqrt_hidden'?",
            id="a misspelt word beside a number",
        ),
        pytest.param(int | float | None, "x", "key: expected a whole number or a number or null, got 'x'.", id="union"),
        pytest.param(int | None, "x", "key: expected a whole number, got 'x'.", id="optional"),
        pytest.param(Inner, 3, "key: expected a mapping, got 3.", id="a number for a mapping"),
        pytest.param(dict, 3, "key: expected a mapping, got 3.", id="a number for a plain mapping"),
    ],
)
def test_what_cannot_be_converted_is_refused_with_key_value_and_what_is_expected(
    hint: Any, given: Any, message: str
) -> None:
    with pytest.raises(ConfigError) as error:
        convert(given, hint, "key")
    assert str(error.value) == message


def test_an_unknown_key_is_refused_with_the_nearest_one() -> None:
    with pytest.raises(ConfigError) as error:
        build(Outer, {"rat": 1}, "optim")
    assert str(error.value) == (
        "optim.rat = 1: unknown key. Did you mean 'rate'? "
        "Allowed here: flag, inner, mode, name, rate, scale, share, sizes."
    )


def test_a_nested_key_is_named_by_its_whole_path() -> None:
    with pytest.raises(ConfigError, match=r"^optim\.inner\.dept = 2: unknown key\. Did you mean 'depth'\?"):
        build(Outer, {"rate": 1, "inner": {"dept": 2}}, "optim")


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^optim\.rate: missing, and it has no default\.$"):
        build(Outer, {}, "optim")


def test_a_hint_is_given_only_where_something_is_near() -> None:
    assert nearest("windw", ["window", "chunk"]) == " Did you mean 'window'?"
    assert nearest("sink_tokens", ["position", "window", "chunk"]) == ""
