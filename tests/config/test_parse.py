"""A saved configuration builds the same `Config`; what is out of range or idle is refused with its key and value."""

from __future__ import annotations

import copy
import dataclasses
import json
from typing import Any

import pytest

from minillm.config.compose import compose
from minillm.config.parse import parse_config
from minillm.config.schema import Config
from minillm.errors import ConfigError


@pytest.fixture(scope="module")
def config() -> Config:
    return compose(["model=llama4", "model.layers.overrides={5:{window:4,chunk:null}}"], warn=False)


def refused(config: Config, key: str, value: Any) -> str:
    """The message for the configuration with one value changed."""
    plain = copy.deepcopy(config.plain)
    *path, last = key.split(".")
    node = plain
    for part in path:
        node = node[part]
    node[last] = value
    with pytest.raises(ConfigError) as error:
        parse_config(plain)
    return str(error.value)


def test_the_plain_mapping_builds_an_equal_config(config: Config) -> None:
    assert parse_config(config.plain) == config


@pytest.mark.bug("B088")
def test_it_still_does_after_a_trip_through_json(config: Config) -> None:
    again = parse_config(json.loads(json.dumps(config.plain)))
    assert dataclasses.replace(again, plain=config.plain) == config
    assert again.model.layers[5].window == 4


def test_a_config_cannot_be_changed(config: Config) -> None:
    for node, name in ((config, "seed"), (config.model, "layers"), (config.model.block, "norm"), (config.optim, "lr")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(node, name, 1)


def test_parsing_leaves_the_mapping_alone(config: Config) -> None:
    before = copy.deepcopy(config.plain)
    parse_config(config.plain)
    assert config.plain == before


def test_names_and_defaults_follow_the_chosen_groups(config: Config) -> None:
    assert config.model.max_position_embeddings == config.data.seq_len == config.size.seq_len == 256
    assert (config.model.hidden_size, config.model.num_hidden_layers) == (128, 12)
    assert config.model.vocab_size == config.tokenizer.vocab_size == 2048
    assert (config.seed, config.resume, config.run_dir, config.name) == (1, "auto", None, None)


def test_biases_of_a_block_are_the_layers_default_and_may_be_taken_back() -> None:
    assert all(spec.qkv_bias for spec in compose(["block=gpt2"], warn=False).model.layers)
    assert not any(
        spec.qkv_bias for spec in compose(["block=gpt2", "model.attention.qkv_bias=false"], warn=False).model.layers
    )


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("seed", -1, "seed = -1: must be from 0 to 4294967295."),
        ("seed", 2**32, "seed = 4294967296: must be from 0 to 4294967295."),
        ("optim.lr", 0, "optim.lr = 0.0: must be above 0."),
        ("optim.beta1", 1, "optim.beta1 = 1.0: must be at least 0 and below 1."),
        ("optim.beta2", -0.1, "optim.beta2 = -0.1: must be at least 0 and below 1."),
        ("optim.weight_decay", -1, "optim.weight_decay = -1.0: must not be negative."),
        ("optim.name", "adam", "optim.name: 'adam' is not allowed. Did you mean 'adamw'? Allowed: adamw."),
        ("schedule.warmup_steps", -1, "schedule.warmup_steps = -1: must not be negative."),
        ("schedule.min_lr_ratio", 1.5, "schedule.min_lr_ratio = 1.5: must be between 0 and 1."),
        ("trainer.max_steps", 0, "trainer.max_steps = 0: must be 1 or more."),
        ("trainer.stop_at_step", 0, "trainer.stop_at_step = 0: must be 1 or more."),
        (
            "trainer.precision",
            "fp16",
            "trainer.precision: 'fp16' is not allowed. Did you mean 'bf16'? Allowed: auto, fp32, bf16.",
        ),
        ("block.norm_eps", 0, "block.norm_eps = 0.0: must be above 0."),
        ("block.logit_scale", 0, "block.logit_scale = 0.0: must be above 0."),
        ("block.embedding_scale", 0, "block.embedding_scale = 0.0: must be above 0."),
        ("block.final_logit_softcapping", -3, "block.final_logit_softcapping = -3.0: must be above 0."),
        (
            "block.norm_bias",
            True,
            "block.norm_bias = True: rmsnorm has no bias. Allowed: false, or block.norm=layernorm.",
        ),
        ("block.norm", "rms", "block.norm: 'rms' is not allowed. Did you mean 'rmsnorm'? Allowed: rmsnorm, layernorm."),
        ("size.head_dim", 0, "size.head_dim = 0: must be 1 or more."),
        ("size.num_hidden_layers", 0, "size.num_hidden_layers = 0: must be 1 or more."),
        ("model.vocab_size", 0, "model.vocab_size = 0: must be 1 or more."),
        (
            "model.backends",
            "sdpa",
            "model.backends = 'sdpa': unknown key. Did you mean 'backend'? "
            "Allowed here: vocab_size, backend, embedding, layers, attention.",
        ),
        (
            "model.embedding",
            {"positon": "learned"},
            "model.embedding: expected a mapping with 'position' alone, got {'positon': 'learned'}.",
        ),
        ("model.layers", None, "model.layers: expected a mapping with kinds and pattern, got None."),
        ("optim", None, "optim: expected a mapping, got None."),
        ("resume", "mst", "resume: 'mst' is not allowed. Did you mean 'must'? Allowed: auto, never, must, force."),
        ("dry_run", 1, "dry_run: expected true or false, got 1."),
        (
            "sed",
            1,
            "sed = 1: unknown key. Did you mean 'seed'? Allowed here: model, block, size, data, tokenizer, optim, "
            "schedule, trainer, logger, callbacks, seed, name, run_dir, output_dir, resume, init_from, "
            "init_from_allow, init_from_fingerprint, train_only, dry_run, eval_at_end, choices.",
        ),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(config: Config, key: str, value: Any, message: str) -> None:
    assert refused(config, key, value) == message


def test_an_offset_of_layernorm_weights_is_refused() -> None:
    cohere = compose(["block=cohere2"], warn=False)
    message = "block.norm_unit_offset = True: is for rmsnorm. Allowed: false, or block.norm=rmsnorm."
    assert refused(cohere, "block.norm_unit_offset", True) == message


def test_a_batch_that_does_not_divide_is_refused_with_the_keys(config: Config) -> None:
    plain = copy.deepcopy(config.plain)
    plain["data"]["batch_size"], plain["trainer"]["accumulate"] = 5, 2
    expected = "data.batch_size = 5: must be divisible by trainer.devices * trainer.num_nodes * trainer.accumulate = 2."
    with pytest.raises(ConfigError) as error:
        parse_config(plain)
    assert str(error.value) == expected


def test_several_devices_need_a_strategy(config: Config) -> None:
    assert refused(config, "trainer.devices", 2).endswith("several processes need trainer=ddp or trainer=fsdp.")
