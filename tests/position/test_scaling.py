"""RoPE scaling: golden frequencies (float64, worked out by hand from the papers' formulas), and incomplete blocks."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from minillm.config.fields import build
from minillm.errors import ConfigError
from minillm.position import LayerShape, rope_frequencies
from minillm.position.rope import RoPE
from minillm.position.scaling import NTK, SCALINGS, Linear, Llama3, NTKByParts, Scaling, YaRN

PLAIN_8 = [1, 0.1, 0.01, 0.001]


def yarn(factor: float = 4.0, length: int = 256, **more: Any) -> YaRN:
    return YaRN(factor=factor, original_max_position_embeddings=length, **more)


@pytest.mark.parametrize(
    ("scaling", "head_dim", "expected"),
    [
        pytest.param(None, 8, PLAIN_8, id="none"),
        pytest.param(Linear(4.0), 8, [0.25, 0.025, 0.0025, 0.00025], id="linear"),
        pytest.param(NTK(4.0), 8, [1, 0.0629960525, 0.00396850263, 0.00025], id="ntk"),
        pytest.param(yarn(), 8, [1, 0.0625, 0.0025, 0.00025], id="yarn"),
        pytest.param(yarn(truncate=False), 8, [1, 0.0553986366, 0.0025, 0.00025], id="yarn untruncated"),
        pytest.param(NTKByParts(4.0, 256), 8, [1, 0.0324379836, 0.0025, 0.00025], id="ntk by parts"),
        pytest.param(
            yarn(length=512),
            16,
            [1, 0.25693506, 0.0625, 0.01383496, 0.0025, 7.90569e-4, 2.5e-4, 7.90569e-5],
            id="yarn, 16 channels",
        ),
        pytest.param(
            Llama3(8.0, 512, 1.0, 4.0),
            16,
            [1, 0.31622777, 0.1, 0.0184966754, 0.00125, 3.95284708e-4, 1.25e-4, 3.95284708e-5],
            id="llama3",
        ),
    ],
)
def test_frequencies_are_the_published_ones(scaling: Scaling | None, head_dim: int, expected: list[float]) -> None:
    frequencies, _ = rope_frequencies(RoPE(scaling=scaling), head_dim, 1024)
    torch.testing.assert_close(frequencies, torch.tensor(expected), rtol=1e-6, atol=0)


@pytest.mark.bug("B037")
@pytest.mark.parametrize(
    ("theta", "length", "head_dim", "exact", "rounded"),
    [
        pytest.param(150000.0, 4096, 64, (8.092779, 17.398024), (8, 18), id="gpt-oss"),
        pytest.param(1e4, 1024, 64, (5.656, 17.697), (5, 18), id="1024"),
        pytest.param(1e4, 2048, 64, (8.064, 20.105), (8, 21), id="2048"),
        pytest.param(1e4, 4096, 128, (20.94, 45.03), (20, 46), id="llama 2"),
        pytest.param(5e5, 8192, 128, (18.08, 34.98), (18, 35), id="olmo 3"),
        pytest.param(1e6, 32768, 128, (23.60, 39.65), (23, 40), id="qwen 3"),
    ],
)
def test_the_yarn_ramp_is_rounded_only_when_told(
    theta: float, length: int, head_dim: int, exact: tuple[float, float], rounded: tuple[int, int]
) -> None:
    assert yarn(length=length, truncate=False).ramp(theta, head_dim) == pytest.approx(exact, abs=6e-3)
    assert yarn(length=length).ramp(theta, head_dim) == rounded
    if theta == 150000:
        assert yarn(length=length, truncate=False).ramp(theta, head_dim) == pytest.approx(exact, abs=1e-6)


@pytest.mark.bug("B038")
def test_llama3_scaling_keeps_fast_pairs_and_divides_slow_ones_exactly() -> None:
    scaled, _ = rope_frequencies(RoPE(theta=5e5, scaling=Llama3(32.0, 8192, 1.0, 4.0)), 64, 1)
    plain, _ = rope_frequencies(RoPE(theta=5e5), 64, 1)
    assert torch.equal(scaled[:15], plain[:15])
    assert (scaled[15:18] < plain[15:18]).all()
    assert (scaled[15:18] > plain[15:18] / 32).all()
    assert torch.equal(scaled[18:], plain[18:] / 32)


@pytest.mark.parametrize(
    ("scaling", "expected"),
    [
        pytest.param(Linear(4.0), 1.0, id="linear has none"),
        pytest.param(yarn(1.0), 1.0, id="factor 1"),
        pytest.param(yarn(4.0), 1.1386294, id="4"),
        pytest.param(yarn(8.0), 1.2079442, id="8, as stored by olmo 3"),
        pytest.param(yarn(16.0), 1.2772589, id="16"),
        pytest.param(yarn(32.0), 1.3465736, id="32, as gpt-oss"),
        pytest.param(yarn(4.0, attention_factor=1.5), 1.5, id="given"),
        pytest.param(yarn(40.0, mscale=1.0, mscale_all_dim=1.0), 1.0, id="deepseek v3"),
        pytest.param(yarn(40.0, mscale=0.707, mscale_all_dim=0.5), 1.0644689, id="mscale over mscale_all_dim"),
    ],
)
def test_the_attention_factor_is_the_published_one(scaling: Scaling, expected: float) -> None:
    _, factor = rope_frequencies(RoPE(scaling=scaling), 64, 1)
    assert factor == pytest.approx(expected, abs=1e-6)


def test_scaling_and_the_proportional_rule_combine() -> None:
    scheme = RoPE(scaling=Linear(4.0), partial_rotary_factor=0.5, rule="proportional")
    frequencies, _ = rope_frequencies(scheme, 8, 1)
    torch.testing.assert_close(frequencies, torch.tensor([0.25, 0.025, 0, 0]))


COMPLETE: dict[str, dict[str, Any]] = {
    "linear": {"factor": 2},
    "ntk": {"factor": 2},
    "ntk_by_parts": {"factor": 2, "original_max_position_embeddings": 64},
    "yarn": {"factor": 2, "original_max_position_embeddings": 64},
    "llama3": {"factor": 2, "original_max_position_embeddings": 64, "low_freq_factor": 1, "high_freq_factor": 4},
    "dynamic_ntk": {"factor": 2, "original_max_position_embeddings": 64},
    "longrope": {
        "factor": 2, "original_max_position_embeddings": 64, "short_factor": 1, "long_factor": (1, 1, 1, 2, 2, 2, 2, 2),
    },
}  # fmt: skip


def from_yaml(scaling: Any) -> RoPE:
    scheme = build(RoPE, {"scaling": scaling}, "layer.position")
    scheme.validate(LayerShape(0, 2, 2, 16))
    return scheme


@pytest.mark.parametrize("name", SCALINGS)
def test_a_block_from_yaml_is_read_and_written_back_whole(name: str) -> None:
    plain = {"type": name, **COMPLETE[name]}
    scheme = from_yaml(plain)
    assert isinstance(scheme.scaling, SCALINGS[name])
    written = dataclasses.asdict(scheme)
    assert written["scaling"].items() >= plain.items()
    assert build(RoPE, written, "layer.position") == scheme


@pytest.mark.bug("B038")
@pytest.mark.parametrize("name", SCALINGS)
def test_a_block_that_lacks_a_key_is_refused(name: str) -> None:
    for key in COMPLETE[name]:
        rest = {k: v for k, v in COMPLETE[name].items() if k != key}
        with pytest.raises(ConfigError, match=rf"^layer\.position\.scaling\.{key}: missing"):
            from_yaml({"type": name, **rest})


@pytest.mark.bug("B037")
@pytest.mark.bug("B038")
@pytest.mark.parametrize(
    ("block", "message"),
    [
        pytest.param({"factor": 2}, r"scaling\.type: missing \(given: factor\).*linear, ntk", id="no type"),
        pytest.param({"rope_type": "yarn"}, r"scaling\.type: missing \(given: rope_type\)", id="the other spelling"),
        pytest.param({"type": "yarm", "factor": 2}, "unknown type 'yarm'. Did you mean 'yarn'", id="misspelt type"),
        pytest.param("yarn", "expected null or a mapping", id="bare name"),
        pytest.param(
            {"type": "linear", "factor": 2, "truncate": True},
            r"scaling\.truncate = True: unknown key",
            id="not its key",
        ),
        pytest.param({"type": "linear", "factor": 0.5}, "factor = 0.5: must be at least 1", id="factor below 1"),
        pytest.param({"type": "linear", "factor": "two"}, r"scaling\.factor: expected a number", id="text"),
        pytest.param(
            {"type": "yarn", **COMPLETE["yarn"], "beta_slow": 32},
            "beta_fast = 32.0: must be above beta_slow",
            id="betas",
        ),
        pytest.param(
            {"type": "yarn", **COMPLETE["yarn"], "beta_slow": 0}, "beta_slow = 0.0: must be above 0", id="beta 0"
        ),
        pytest.param({"type": "yarn", **COMPLETE["yarn"], "mscale": 1}, "only together", id="mscale alone"),
        pytest.param(
            {"type": "yarn", **COMPLETE["yarn"], "mscale": 1, "mscale_all_dim": 1, "attention_factor": 1},
            "exclude each other",
            id="mscale and attention_factor",
        ),
        pytest.param({"type": "yarn", **COMPLETE["yarn"], "attention_factor": 0}, "must be above 0", id="factor 0"),
        pytest.param(
            {"type": "yarn", "factor": 2, "original_max_position_embeddings": 1}, "ramp is empty", id="too short"
        ),
        pytest.param(
            {"type": "yarn", "factor": 2, "original_max_position_embeddings": 0}, "must be at least 1", id="no length"
        ),
        pytest.param(
            {"type": "llama3", **COMPLETE["llama3"], "high_freq_factor": 1},
            "must be above low_freq_factor",
            id="llama3",
        ),
    ],
)
def test_a_block_that_makes_no_sense_is_refused(block: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        from_yaml(block)


def test_ntk_needs_more_than_one_pair() -> None:
    with pytest.raises(ConfigError, match="at least 4 rotated channels, this layer has 2"):
        RoPE(scaling=NTK(2.0)).validate(LayerShape(0, 1, 1, 2))
