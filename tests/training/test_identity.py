"""A run is its settings: what they are is in the folder's name, however they are written and wherever they are run."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from minillm.config.schema import Config
from minillm.training import identity

Compose = Callable[..., Config]


@pytest.mark.parametrize(
    "override",
    [
        "logger=csv",
        "data.num_workers=2",
        "data.cache_dir=elsewhere",
        "trainer.strategy=ddp trainer.devices=2",
        "trainer.strategy=ddp trainer.num_nodes=2",
        "trainer.strategy=fsdp",
        "trainer.accelerator=auto",
        "trainer.accumulate=2",
        "trainer.num_threads=2",
        "trainer.stop_at_step=2",
        "trainer.val_every=2",
        "trainer.checkpoint_every=2",
        "trainer.keep_checkpoints=7",
        "trainer.log_every=2",
        "trainer.sample_every=2",
        "trainer.sample_prompt=Once",
        "trainer.sample_tokens=2",
        "trainer.loss_spike=2",
        "trainer.progress_bar=true",
        "output_dir=elsewhere",
        "resume=must",
        "dry_run=true",
        "eval_at_end=false",
    ],
)
def test_how_a_run_is_carried_out_does_not_change_its_name(tiny: Compose, override: str) -> None:
    assert identity.run_name(tiny(*override.split()).plain) == identity.run_name(tiny().plain)


@pytest.mark.parametrize(
    "override",
    [
        "model=rope",
        "model.layers.kinds.local.window=5",
        "model.layers.overrides={2:{window:3}}",
        "model.attention.qk_norm=rms",
        "block.norm_eps=1e-5",
        "size.hidden_size=32",
        "size.window=5",
        "data.batch_size=16",
        "data.seq_len=16",
        "data.document_mask=false",
        "tokenizer.vocab_size=290",
        "optim.lr=0.02",
        "schedule.warmup_steps=4",
        "trainer.max_steps=21",
        "trainer.precision=bf16",
        "seed=2",
    ],
)
def test_what_shapes_the_result_is_in_the_name(tiny: Compose, override: str) -> None:
    assert identity.run_name(tiny(override).plain) != identity.run_name(tiny().plain)


@pytest.mark.bug("B088")
@pytest.mark.parametrize("spelling", ["0.0001", "1e-4", "1.0e-04", '"1e-4"'])
def test_a_number_is_the_same_run_however_it_is_spelt(tiny: Compose, spelling: str) -> None:
    cfg = tiny(f"optim.lr={spelling}")
    assert cfg.optim.lr == 1e-4
    assert identity.run_name(cfg.plain) == identity.run_name(tiny("optim.lr=0.0001").plain)


def test_keys_that_are_named_here_exist(tiny: Compose) -> None:
    flat = identity.flatten(tiny().plain)
    for key in (*identity.FREE, *identity.OUTSIDE):
        assert any(k == key or k.startswith(f"{key}.") for k in flat), key


@pytest.mark.bug("B081")
@pytest.mark.parametrize(
    "asked",
    [
        [f"model.layers.overrides={{{','.join(f'{i}:{{window:{i + 1}}}' for i in range(4))}}}"],
        ["name='a/b, c=d [e] {f}'"],
        [f"name={'x' * 400}"],
        ["name=..hidden.."],
        ["name='été'"],
        ["data.path='/some/where, far=away'"],
    ],
    ids=["a list of windows", "separators and brackets", "400 letters", "dots around", "accents", "a path"],
)
def test_folder_names_are_short_and_hold_nothing_that_shells_or_hydra_read(tiny: Compose, asked: list[str]) -> None:
    name = identity.run_name(tiny(*asked).plain)
    assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*-s1-[0-9a-f]{8}", name)
    assert len(name.encode()) <= 255
    assert len(Path(name).parts) == 1


@pytest.mark.bug("B082")
def test_runs_that_differ_only_in_their_seed_have_folders_of_their_own_whenever_they_start(tiny: Compose) -> None:
    paths = {identity.run_path(tiny(f"seed={seed}").plain) for seed in (1, 2, 3, 4)}
    assert len(paths) == 4
    assert paths == {identity.run_path(tiny(f"seed={seed}").plain) for seed in (1, 2, 3, 4)}, "the path does not move"


def test_the_name_says_model_size_and_data_or_what_the_user_says(tiny: Compose) -> None:
    assert identity.run_name(tiny().plain).startswith("rnope_swa-micro-files-s1-")
    assert identity.run_name(tiny("name=mine", "seed=3").plain).startswith("mine-s3-")


def test_the_folder_is_run_dir_or_lies_under_output_dir_or_the_sweep(tiny: Compose) -> None:
    plain = tiny("output_dir=there").plain
    assert identity.run_path(plain) == Path("there") / identity.run_name(plain)
    assert identity.run_path(plain, "sweep") == Path("sweep") / identity.run_name(plain)
    assert identity.run_path(tiny("run_dir=here/x").plain, "sweep") == Path("here/x")


def test_changes_name_every_key_and_only_shaping_ones_are_refused(tiny: Compose) -> None:
    saved = tiny().plain
    asked = tiny("optim.lr=0.02", "model.layers.kinds.local.window=7", "trainer.val_every=3", "name=other").plain
    found = identity.changes(saved, asked)
    assert [c.key for c in found] == ["model.layers.kinds.local.window", "optim.lr", "trainer.val_every"]
    assert [str(c) for c in identity.refused(found)] == [
        "model.layers.kinds.local.window: 4 -> 7",
        "optim.lr: 0.01 -> 0.02",
    ]


def test_a_key_that_is_not_there_differs_from_null(tiny: Compose) -> None:
    asked = tiny("++model.layers.kinds.local.softcap=null").plain
    assert [str(c) for c in identity.changes(tiny().plain, asked)] == [
        "model.layers.kinds.local.softcap: absent -> null"
    ]


@pytest.mark.bug("B089")
def test_the_configuration_holds_plain_values_only(tiny: Compose) -> None:
    cfg = tiny("model.layers.overrides={2:{window:3}}")
    assert json.loads(json.dumps(cfg.plain))["model"]["layers"]["pattern"] == ["local", "local", "local", "global"]
    assert isinstance(cfg.plain["model"]["layers"]["pattern"], list)
    assert pickle.loads(pickle.dumps(cfg)) == cfg
