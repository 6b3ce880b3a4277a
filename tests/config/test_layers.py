"""What a `LayerSpec` says of itself agrees with counting one by one."""

from __future__ import annotations

import json

import pytest

from minillm.config.layers import LayerSpec, QKNorm
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.scaling import YaRN
from minillm.position.temperature import Llama4


def spec(window: int | None = None, chunk: int | None = None, sink_tokens: int | None = None) -> LayerSpec:
    return LayerSpec(0, "a", NoPE(), 4, 2, 8, window=window, chunk=chunk, sink_tokens=sink_tokens)


def sees(window: int | None, chunk: int | None, q: int, k: int, sink_tokens: int = 0) -> bool:
    """The definition, word for word."""
    if k > q:
        return False
    if window is not None and not (q - window < k or k < sink_tokens):
        return False
    return chunk is None or q // chunk == k // chunk


MASKS = [(None, None), (1, None), (3, None), (7, None), (None, 1), (None, 4), (None, 9)]


@pytest.mark.parametrize(("window", "chunk"), MASKS, ids=str)
@pytest.mark.parametrize("length", [1, 3, 4, 8, 13])
def test_visible_pairs_are_the_pairs_that_the_mask_lets_through(
    window: int | None, chunk: int | None, length: int
) -> None:
    counted = sum(sees(window, chunk, q, k) for q in range(length) for k in range(length))
    assert spec(window, chunk).visible_pairs(length) == counted


@pytest.mark.parametrize("length", [1, 4, 8, 13])
@pytest.mark.parametrize(("window", "kept"), [(1, 1), (3, 2), (3, 5), (7, 20)], ids=str)
def test_kept_first_tokens_are_counted_once(window: int, kept: int, length: int) -> None:
    counted = sum(sees(window, None, q, k, kept) for q in range(length) for k in range(length))
    assert spec(window, None, kept).visible_pairs(length) == counted


@pytest.mark.parametrize(("window", "chunk"), MASKS, ids=str)
def test_the_reach_is_the_most_that_a_query_sees(window: int | None, chunk: int | None) -> None:
    most = max(sum(sees(window, chunk, q, k) for k in range(40)) for q in range(40))
    assert most == (spec(window, chunk).reach or 40)
    assert [spec(window, chunk).cached_tokens(n) for n in (1, 5, 40)] == [min(n, most) for n in (1, 5, 40)]


def test_a_cached_token_costs_a_key_and_a_value_of_each_key_value_head() -> None:
    assert spec().kv_bytes_per_token(4) == 2 * 2 * 8 * 4
    assert spec().kv_bytes_per_token(2) == 2 * 2 * 8 * 2


def test_scores_are_scaled_by_the_head_width_unless_the_plan_says_otherwise() -> None:
    assert spec().score_scale == pytest.approx(8**-0.5)
    assert LayerSpec(0, "a", NoPE(), 4, 2, 8, scale=0.3).score_scale == 0.3


def test_plain_values_hold_everything() -> None:
    full = LayerSpec(
        3, "g", RoPE(5e5, YaRN(8.0, 64), 0.5), 4, 1, 8, window=5, qk_norm=QKNorm("rms", "full", "after_rope"),
        temperature=Llama4(0.2, 16.0), softcap=30.0, scale=0.1, qkv_bias=True,
    )  # fmt: skip
    plain = full.to_dict()
    assert plain == json.loads(json.dumps(plain))
    scaling = plain["position"].pop("scaling")
    assert (scaling["type"], scaling["factor"], scaling["original_max_position_embeddings"]) == ("yarn", 8.0, 64)
    assert plain == {
        "index": 3,
        "kind": "g",
        "position": {
            "scheme": "rope", "theta": 5e5, "partial_rotary_factor": 0.5, "rule": "neox", "layout": "half",
        },
        "qk_norm": {"type": "rms", "over": "full", "order": "after_rope"},
        "temperature": {"type": "llama4", "scale": 0.2, "floor": 16.0},
        "window": 5,
        "chunk": None,
        "sink_tokens": None,
        "sink_logits": False,
        "softcap": 30.0,
        "scale": 0.1,
        "qkv_bias": True,
        "shared_qk": False,
        "gate": False,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 8,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("norm", "text"),
    [
        (QKNorm("rms"), "rms"),
        (QKNorm("l2", "full"), "l2 full"),
        (QKNorm("rms", "full", "after_rope"), "rms full after rope"),
    ],
)
def test_a_qk_norm_fits_a_cell_of_the_table(norm: QKNorm, text: str) -> None:
    assert norm.summary() == text
