"""A run begins with given weights, under the same plan or another, and says what became of every tensor."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import minillm
from minillm import hub
from minillm.config.schema import Config
from minillm.data import Tokenizer
from minillm.errors import ConfigError, MinillmError
from minillm.model.decoder import build_model
from minillm.training import identity, init_from, run
from minillm.training.init_from import Start
from minillm.training.run_folder import RunFolder

Compose = Callable[..., Config]
Points = Callable[[Path], list[dict[str, Any]]]
SHORT = ("trainer.max_steps=6", "trainer.val_every=3", "trainer.checkpoint_every=3", "eval_at_end=false")
ROPE = ("model=rope", "model.layers.kinds.full.position.theta=500")
LEARNED = ("model=learned", "model.attention.position=nope")
TWO = ("trainer.devices=2", "trainer.num_threads=1")


@pytest.fixture(scope="module")
def trained(tiny: Compose, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The run folder of the tiny run with these overrides, 6 steps long."""
    made: dict[tuple[str, ...], Path] = {}

    def train(*more: str) -> Path:
        if more not in made:
            made[more] = tmp_path_factory.mktemp("source") / "run"
            run.train(tiny(*SHORT, f"run_dir={made[more]}", *more).plain)
        return made[more]

    return train


@pytest.fixture
def source(trained: Callable[..., Path]) -> Path:
    """A trained RoPE model."""
    return trained(*ROPE)


@pytest.fixture
def begin(tiny: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Train with these overrides, and give the run's folder: `outputs/` in tmp_path holds no other."""
    monkeypatch.chdir(tmp_path)

    def train(*more: str) -> Path:
        run.train(tiny(*SHORT, *more).plain)
        (folder,) = Path("outputs").iterdir()
        return folder

    return train


def look(cfg: Config) -> Start:
    """How a run of `cfg` would begin."""
    started = run._begin(cfg, None)[1]
    assert started is not None
    return started


def weights(run_dir: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return torch.load(run_dir / f"checkpoints/{name}.ckpt", weights_only=True)["state_dict"]


def assert_same_run(timeless: Points, ours: Path, theirs: Path) -> None:
    """Same losses at every step, same weights and moments at the last."""
    assert timeless(ours) == timeless(theirs)
    one, two = (torch.load(folder / "checkpoints/last.ckpt", weights_only=True) for folder in (ours, theirs))
    assert one["optimizer"].keys() == two["optimizer"].keys()
    for name, weight in two["state_dict"].items():
        assert torch.equal(one["state_dict"][name], weight), name
    for name, moments in two["optimizer"].items():
        for kind, value in moments.items():
            assert torch.equal(one["optimizer"][name][kind], value), (name, kind)


def test_under_the_same_plan_the_first_point_is_where_the_source_ended(
    source: Path, begin: Callable[..., Path], points: Points, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = begin(*ROPE, f"init_from={source}")
    ended, (first, second, *_) = points(source)[-1], points(folder)
    assert (first["step"], first["tokens"], second["step"]) == (0, 0, 1)
    assert first["val/loss"] == ended["val/loss"]
    assert points(folder)[-1]["val/loss"] < ended["val/loss"], "and training goes on from there"
    record = json.loads((folder / "init_from.json").read_text())
    assert list(record["kept"]) == list(weights(source))
    assert record["new"] == record["dropped"] == record["resized"] == {}
    assert record["plan_differences"] == []
    assert record["step"] == 6
    out = capsys.readouterr().out
    assert f"{source} (step 6, {record['fingerprint']})" in out
    assert "layers 0-3: attention.qkv_proj.weight" in out
    assert f"{len(weights(source))} tensors kept" in out
    assert "none new, none dropped" in out


def test_the_first_update_is_that_of_a_fresh_optimiser(source: Path, begin: Callable[..., Path], tiny: Compose) -> None:
    """Adam's first step moves every number that has a gradient by the learning rate, whatever the gradient's size."""
    alone = ("optim.weight_decay=0", "optim.eps=1e-20", "trainer.stop_at_step=1", "schedule=constant")
    folder = begin(*ROPE, f"init_from={source}", *alone, "schedule.warmup_steps=0", "optim.lr=0.01")
    before, after = weights(source), weights(folder)
    moved = torch.cat([(after[name] - before[name]).abs().flatten() for name in before if "layers" in name])
    torch.testing.assert_close(moved, torch.full_like(moved, 0.01), rtol=1e-3, atol=0)


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (["model=nope"], ["layers 0-3: position: rope{theta: 500.0, ", "} -> nope"]),
        (["model=rnope_swa"], ["layers 0-2: position.theta: 500.0 -> 10000.0", "layers 0-2: window: null -> 4"]),
        (["model=rope"], ["layers 0-3: position.theta: 500.0 -> 10000.0"]),
        ([*ROPE, "size.seq_len=16"], ["training length: 32 -> 16 tokens"]),
        ([*ROPE, "model.layers.overrides={2:{window:3,softcap:5}}"], ["layer 2: window: null -> 3", "2: softcap: "]),
        (
            [*ROPE, "model.layers.kinds.full.position.scaling={type:linear,factor:2}"],
            ["layers 0-3: position.scaling: null -> linear{factor: 2.0}"],
        ),
        (
            [*ROPE, "model.layers.overrides={1:{position:{layout:interleaved}}}"],
            ["layer 1: position.layout: half -> interleaved", "warning: layer 1: position.layout differs"],
        ),
        (["model=sinusoidal"], ["token embeddings: position: null -> sinusoidal"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_another_plan_keeps_every_tensor_and_says_what_differs(
    source: Path, tiny: Compose, plan: list[str], said: list[str]
) -> None:
    start = look(tiny(*plan, f"init_from={source}"))
    assert list(start.transfer.kept) == list(weights(source))
    assert not start.transfer.new
    assert not start.transfer.dropped
    for words in said:
        assert words in start.describe()


def test_tensors_of_one_plan_only_are_listed_as_new_or_dropped(
    trained: Callable[..., Path], begin: Callable[..., Path]
) -> None:
    source = trained(*ROPE, "model.attention.qk_norm=rms")
    per_head = "++model.layers.kinds.local.temperature={type:per_head,init:1.5}"
    folder = begin(
        "model=rnope_swa", per_head, f"init_from={source}", "trainer.stop_at_step=1", "trainer.keep_checkpoints=9"
    )
    record = json.loads((folder / "init_from.json").read_text())
    assert record["new"] == {f"layers.{i}.attention.temperature.scale": [2] for i in (0, 1, 2)}
    assert set(record["dropped"]) == {f"layers.{i}.attention.{p}_norm.norm.weight" for i in range(4) for p in "qk"}
    assert len(record["kept"]) + 8 == len(weights(source))
    at_start = weights(folder, "step-0")
    for name in record["kept"]:
        assert torch.equal(at_start[name], weights(source)[name]), name
    assert all(torch.equal(at_start[name], torch.full((2,), 1.5)) for name in record["new"])


def test_a_new_tensor_begins_as_in_a_run_without_given_weights(source: Path, tiny: Compose) -> None:
    cfg = tiny(*ROPE, "block.tie_word_embeddings=false", f"init_from={source}", "init_from_allow=[block]", "seed=7")
    cfg, start = run._begin(cfg, None)
    assert start is not None
    assert list(start.transfer.new) == ["lm_head.weight"]
    assert "block.tie_word_embeddings: true -> false" in start.describe()
    begun = start.transfer.weights(start.source.weights, cfg.model, cfg.seed)
    assert torch.equal(begun["lm_head.weight"], build_model(cfg.model, seed=7).state_dict()["lm_head.weight"])


def test_a_hugging_face_folder_is_the_run_it_was_made_from(
    source: Path, begin: Callable[..., Path], points: Points, tmp_path: Path
) -> None:
    model, tokenizer = minillm.load(source)
    hub.save(model, tmp_path / "hf", tokenizer)
    folder = begin(*ROPE, f"init_from={tmp_path / 'hf'}", "tokenizer.vocab_size=290", "block.norm_eps=1e-6")
    assert points(folder)[0]["val/loss"] == points(source)[-1]["val/loss"]
    same, _ = init_from.resolve({**RunFolder(folder).read_config(), "init_from": str(source)})
    record = json.loads((folder / "init_from.json").read_text())
    assert record["fingerprint"] == same["init_from_fingerprint"]
    assert minillm.load(folder)[1].to_json() == tokenizer.to_json()


def test_a_hugging_face_folder_without_a_tokenizer_needs_one(source: Path, tiny: Compose, tmp_path: Path) -> None:
    model, tokenizer = minillm.load(source)
    hub.save(model, tmp_path / "hf")
    with pytest.raises(ConfigError, match=r"has no tokenizer\.json.*tokenizer=file tokenizer\.path"):
        look(tiny(*ROPE, f"init_from={tmp_path / 'hf'}"))
    tokenizer.save(tmp_path / "own.json")
    file = ("tokenizer=file", "tokenizer.vocab_size=null")
    cfg, start = run._begin(
        tiny(*ROPE, f"init_from={tmp_path / 'hf'}", *file, f"tokenizer.path={tmp_path / 'own.json'}"), None
    )
    assert start is not None
    assert cfg.tokenizer.source == "file"
    Tokenizer.train(["a b c d e f g"] * 9 + [chr(i) * 3 for i in range(1000, 1400)], 900).save(tmp_path / "big.json")
    with pytest.raises(ConfigError, match=r"has \d+ ids, and the embedding of init_from .* has 300 rows"):
        run.train(tiny(*ROPE, f"init_from={tmp_path / 'hf'}", *file, f"tokenizer.path={tmp_path / 'big.json'}").plain)


def test_an_embedding_with_more_rows_than_the_tokenizer_has_ids_keeps_them(
    source: Path, tiny: Compose, begin: Callable[..., Path], tmp_path: Path
) -> None:
    cfg, tokenizer = tiny(*ROPE), minillm.load(source)[1]
    hub.save(build_model(dataclasses.replace(cfg.model, vocab_size=304)).to(torch.bfloat16), tmp_path / "hf", tokenizer)
    folder = begin(*ROPE, f"init_from={tmp_path / 'hf'}", "trainer.stop_at_step=1", "trainer.keep_checkpoints=2")
    weight = weights(folder, "step-0")["embed_tokens.weight"]
    assert (weight.dtype, weight.shape) == (torch.float32, (304, 16))
    assert torch.equal(weight, weight.bfloat16().float())


def test_the_tokenizer_is_the_sources_and_no_other(source: Path, tiny: Compose, tmp_path: Path) -> None:
    cfg, _ = run._begin(tiny(*ROPE, "tokenizer.vocab_size=280", f"init_from={source}"), None)
    assert (cfg.tokenizer.source, cfg.model.vocab_size) == ("init_from", 300)
    file = ("tokenizer=file", "tokenizer.vocab_size=null")
    equal, _ = run._begin(
        tiny(*ROPE, *file, f"tokenizer.path={source / 'tokenizer.json'}", f"init_from={source}"), None
    )
    assert identity.run_name(equal.plain) == identity.run_name(cfg.plain)
    Tokenizer.train(["another text"], vocab_size=257).save(tmp_path / "other.json")
    with pytest.raises(
        ConfigError, match=r"\([0-9a-f]{16}, 257 ids\) is not the tokenizer .* \([0-9a-f]{16}, 300 ids\)"
    ):
        look(tiny(*ROPE, *file, f"tokenizer.path={tmp_path / 'other.json'}", f"init_from={source}"))
    with pytest.raises(ConfigError, match=r"tokenizer\.bos_token = 'begin'.*'<\|endoftext\|>' before each document"):
        look(tiny(*ROPE, "tokenizer.bos_token=begin", f"init_from={source}"))


def test_other_sizes_are_refused_with_the_overrides_that_mend_them(source: Path, tiny: Compose) -> None:
    other = ["size.hidden_size=24", "size.num_attention_heads=4", "size.num_hidden_layers=3"]
    with pytest.raises(
        ConfigError, match=r"hidden_size 16 -> 24, num_hidden_layers 4 -> 3, num_attention_heads 2 -> 4"
    ) as e:
        look(tiny(*ROPE, *other, f"init_from={source}"))
    mended = str(e.value).partition("To take over its sizes: ")[2].split()
    assert look(tiny(*ROPE, *other, *mended, f"init_from={source}")).differences == []


def test_another_block_is_refused_with_the_overrides_that_mend_it(trained: Callable[..., Path], tiny: Compose) -> None:
    source = trained(*ROPE, "block.norm_eps=1e-5", "block.mlp=geglu", "block.embedding_scale=sqrt_hidden")
    with pytest.raises(ConfigError, match=r"block\.norm_eps: 1e-05 -> 1e-06, block\.mlp: geglu -> swiglu") as e:
        look(tiny(*ROPE, "block.depth_scaled_init=false", f"init_from={source}"))
    mended = str(e.value).partition("To take over its block: ")[2].partition(" To train on")[0].split()
    assert look(tiny(*ROPE, *mended, f"init_from={source}")).warnings == []
    with pytest.raises(ConfigError, match=r"sizes and block: size\.head_dim=8 block\.norm_eps=1e-05 block\.mlp=geglu"):
        look(tiny(*ROPE, "size.head_dim=4", f"init_from={source}"))
    allowed = look(tiny(*ROPE, "init_from_allow=[block]", f"init_from={source}"))
    assert "warning: the block is not the one these weights were trained in" in allowed.describe()


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["init_from=nowhere"], "there is no nowhere"),
        (["init_from=."], "neither a run folder .* nor a Hugging Face folder"),
        (["init_from=words.txt"], "cannot be read"),
        (["init_from={source}", "init_from_fingerprint=sha256-00"], "init_from_fingerprint = sha256-00: what lies at"),
        (["init_from_fingerprint=sha256-00"], "has no effect without init_from"),
        (["init_from_allow=[block]"], "has no effect without init_from"),
        (["init_from_allow=[blok]", "init_from={source}"], r"'blok' is not allowed.*Did you mean 'block'"),
        (["tokenizer.source=init_from", "tokenizer.vocab_size=null"], "is for runs with init_from"),
        (
            ["init_from={source}", "model.layers.overrides={1:{num_key_value_heads:2}}"],
            r"num_key_value_heads 1 -> 2 \(heads: those of layer 1\)",
        ),
    ],
)
def test_what_cannot_be_is_refused_and_leaves_nothing(
    source: Path, begin: Callable[..., Path], tmp_path: Path, more: list[str], words: str
) -> None:
    (tmp_path / "words.txt").write_text("the of and")
    with pytest.raises(MinillmError, match=words):
        begin(*ROPE, *(text.format(source=source) if "{source}" in text else text for text in more))
    assert [path.name for path in tmp_path.iterdir()] == ["words.txt"]


def test_a_tensor_of_another_shape_is_named_with_both_shapes(source: Path, tiny: Compose) -> None:
    with pytest.raises(ConfigError, match=r"mlp\.up_proj\.weight has the shape \[64, 16\] there and \[32, 16\]"):
        look(tiny(*ROPE, "block.mlp=gelu", f"init_from={source}", "init_from_allow=[block]"))


def test_a_model_that_shares_nothing_is_refused(source: Path, tiny: Compose) -> None:
    start = look(tiny(*ROPE, f"init_from={source}"))
    renamed = {f"model.{name}": shape for name, shape in start.transfer.kept.items()}
    with pytest.raises(ConfigError, match=r"nothing is kept\. None of its 26 tensors \(model\.embed_tokens\.weight, "):
        type(start.transfer).between(renamed, tiny(*ROPE).model)


@pytest.mark.parametrize(("length", "word"), [(48, "interpolate"), (16, "crop")])
def test_a_position_table_of_another_length_is_fitted_if_the_user_says_how(
    trained: Callable[..., Path], tiny: Compose, length: int, word: str
) -> None:
    source = trained(*LEARNED)
    asked = (*LEARNED, f"init_from={source}", f"size.seq_len={length}")
    with pytest.raises(ConfigError, match=rf"has 32 rows there and {length} .* init_from_allow=\[{word}\]"):
        look(tiny(*asked))
    cfg, start = run._begin(tiny(*asked, "init_from_allow=[interpolate,crop]"), None)
    assert start is not None
    assert start.warnings == [
        f"init_from_allow: {'crop' if word == 'interpolate' else 'interpolate'} has no effect: "
        "no position table needs it."
    ]
    old = start.source.weights["embed_positions.table.weight"]
    new = start.transfer.weights(start.source.weights, cfg.model, cfg.seed)["embed_positions.table.weight"]
    assert new.shape == (length, 16)
    assert torch.equal(new[0], old[0])
    torch.testing.assert_close(new[-1], old[-1] if word == "interpolate" else old[length - 1])
    assert "resized  embed_positions.table.weight" in start.describe()


def test_a_run_is_named_by_the_weights_and_not_by_their_path(
    source: Path, trained: Callable[..., Path], tiny: Compose, tmp_path: Path
) -> None:
    def name(path: Path) -> str:
        return identity.run_name(run._begin(tiny(*ROPE, f"init_from={path}"), None)[0].plain)

    shutil.copytree(source, tmp_path / "moved")
    assert name(tmp_path / "moved") == name(source) == name(source / "checkpoints" / "last.ckpt")
    assert name(source / "checkpoints" / "step-3.ckpt") != name(source)
    assert name(source) != identity.run_name(tiny(*ROPE).plain)
    shutil.rmtree(tmp_path / "moved")
    shutil.copytree(trained(*ROPE, "seed=2"), tmp_path / "moved")
    assert name(tmp_path / "moved") != name(source)


@pytest.mark.parametrize("stop_at", [1, 4])
def test_a_run_goes_on_bit_for_bit_when_the_source_is_gone(
    source: Path, tiny: Compose, begin: Callable[..., Path], timeless: Points, tmp_path: Path, stop_at: int
) -> None:
    shutil.copytree(source, tmp_path / "source")
    asked = ("model=rnope_swa", "init_from=source")
    run.train(tiny(*SHORT, *asked, "run_dir=straight").plain)
    stopped = begin(*asked, f"trainer.stop_at_step={stop_at}")
    shutil.rmtree(tmp_path / "source")
    assert begin(*asked) == stopped, "the same command finds its run"
    assert_same_run(timeless, stopped, Path("straight"))
    with pytest.raises(MinillmError, match="there is no source"):
        begin(*asked, "optim.lr=0.5")


def test_a_run_that_was_killed_before_its_first_checkpoint_starts_from_the_weights_it_laid_down(
    source: Path, tiny: Compose, begin: Callable[..., Path], timeless: Points, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    shutil.copytree(source, tmp_path / "source")
    run.train(tiny(*SHORT, *ROPE, "init_from=source", "run_dir=straight").plain)

    def killed(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("minillm.training.worker.train_rank", killed)
        with pytest.raises(KeyboardInterrupt):
            begin(*ROPE, "init_from=source")
    shutil.rmtree(tmp_path / "source")
    assert_same_run(timeless, begin(*ROPE, "init_from=source"), Path("straight"))


def test_a_dry_run_lists_the_tensors_and_writes_nothing(
    source: Path, tiny: Compose, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run.train(tiny("model=nope", f"init_from={source}", "dry_run=true").plain)
    out = capsys.readouterr().out
    assert "26 tensors kept" in out
    assert "vocabulary 300" in out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_begin_and_freeze_as_one(
    source: Path, tiny: Compose, tmp_path: Path, points: Points, strategy: str
) -> None:
    only = "train_only=['*.temperature.*','layers.1.*']"
    asked = (*SHORT, *ROPE, "model.attention.temperature=per_head", f"init_from={source}", only)
    one, two = tmp_path / "one", tmp_path / "two"
    run.train(tiny(*asked, f"run_dir={one}").plain)
    run.train(tiny(*asked, f"run_dir={two}", *TWO, f"trainer.strategy={strategy}").plain)
    for key in ("train/loss", "train/grad_norm"):
        ours, theirs = ([p[key] for p in points(folder) if key in p] for folder in (two, one))
        assert ours == pytest.approx(theirs, abs=1e-5)
    assert [p["step"] for p in points(two)] == list(range(7))
    assert points(two)[0]["val/loss"] == pytest.approx(points(source)[-1]["val/loss"], abs=1e-6)
    state = torch.load(two / "checkpoints/last.ckpt", weights_only=True)
    assert set(state["optimizer"]) == set(torch.load(one / "checkpoints/last.ckpt", weights_only=True)["optimizer"])
    for name, weight in weights(source).items():
        assert torch.equal(state["state_dict"][name], weight) == (not name.startswith("layers.1.")), name
