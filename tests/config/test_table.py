"""The printed layer table and layers.json show the plan as it was expanded."""

from __future__ import annotations

import json

import pytest

from minillm.config.compose import compose
from minillm.config.schema import ModelConfig
from minillm.config.table import COLUMNS, layer_table, layers_json, rows
from minillm.model.cost import cost


def config(*overrides: str) -> ModelConfig:
    return compose(["size.num_hidden_layers=4", "tokenizer.vocab_size=300", *overrides], warn=False).model


def column(model: ModelConfig, name: str) -> list[str]:
    return [row[COLUMNS.index(name)] for row in rows(model, 256)]


@pytest.mark.bug("B026")
def test_the_table_shows_which_layers_have_no_position() -> None:
    model = config("model=smollm3", "size.num_hidden_layers=12")
    assert column(model, "position") == ["rope", "rope", "rope", "nope"] * 3
    assert column(model, "theta") == ["5e+06", "5e+06", "5e+06", "-"] * 3


@pytest.mark.bug("B009")
def test_the_table_shows_which_layers_are_local() -> None:
    model = config("model=gemma3", "size.num_hidden_layers=12")
    assert column(model, "window") == (["32"] * 5 + ["full"]) * 2
    assert column(model, "kind") == (["local"] * 5 + ["global"]) * 2
    assert column(model, "qk_norm") == ["rms"] * 12


def test_a_chunk_a_temperature_and_a_layout_are_shown() -> None:
    model = config("model=llama4")
    assert column(model, "window") == ["chunk 32"] * 3 + ["full"]
    assert column(model, "temperature") == ["-"] * 3 + ["llama4(scale=0.1, floor=32)"]
    assert column(model, "position")[0] == "rope (interleaved)"
    assert column(model, "qk_norm") == ["l2 after rope"] * 3 + ["-"]


def test_scaling_and_key_value_heads_are_shown() -> None:
    model = config(
        "++model.layers.kinds.global.position={scheme:rope,scaling:{type:yarn,factor:8,original_max_position_embeddings:64}}",
        "model.layers.overrides={0:{num_key_value_heads:1}}",
    )
    assert column(model, "scaling") == ["-", "-", "-", "yarn x8"]
    assert column(model, "kv_heads") == ["1", "2", "2", "2"]
    assert column(model, "kv_B/token") == [str(2 * heads * 32 * 4) for heads in (1, 2, 2, 2)]


def test_shares_of_flops_leave_the_head_its_part() -> None:
    model = config()
    shares = [float(share.rstrip("%")) for share in column(model, "FLOPs")]
    assert shares[3] > shares[0] == shares[1] == shares[2]
    head = 100 * 2 * 300 * 128 / cost(model, 256).forward_flops_per_token
    assert sum(shares) == pytest.approx(100 - head, abs=0.3)


def test_columns_in_which_no_layer_has_anything_are_left_out() -> None:
    header, *body = layer_table(config("model=nope"), 256).splitlines()
    assert header.split() == ["layer", "kind", "position", "theta", "window", "kv_heads", "kv_B/token", "FLOPs"]
    assert [line.split()[:5] for line in body] == [[str(i), "full", "nope", "-", "full"] for i in range(4)]


def test_positions_in_the_embeddings_have_a_line_of_their_own() -> None:
    assert layer_table(config("model=learned"), 256).splitlines()[-1] == "token embeddings carry position: learned"
    assert layers_json(config("model=learned"), 256)["embedding_position"] == {"scheme": "learned"}
    assert layers_json(config("model=nope"), 256)["embedding_position"] is None


def test_the_saved_table_is_plain_and_holds_the_specs() -> None:
    model = config("model=olmo3")
    saved = layers_json(model, 256)
    assert saved == json.loads(json.dumps(saved))
    assert saved["seq_len"] == 256
    for spec, layer in zip(model.layers, saved["layers"], strict=True):
        assert {key: layer[key] for key in spec.to_dict()} == spec.to_dict()
        assert layer["kv_bytes_per_token"] == spec.kv_bytes_per_token(4)


def test_what_few_layers_have_is_a_column_only_where_some_layer_has_it() -> None:
    assert "also" not in layer_table(config("model=rope"), 256).splitlines()[0]
    rows = ["++model.attention.sink_logits=true", "++model.layers.kinds.local.sink_tokens=2", "block=gpt2"]
    lines = layer_table(config("model=rnope_swa", *rows), 256).splitlines()
    assert "also" in lines[0]
    assert "32 + first 2" in lines[1]
    assert "sink_logits, qkv_bias" in lines[1]
