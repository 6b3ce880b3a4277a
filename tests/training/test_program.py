"""`python train.py`: what it makes, how it goes on, and the one paragraph that bad input gets.

`run("a=1")` calls the program in this process, as if typed in `tmp_path`, and returns its exit code and output.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import yaml

import minillm
from minillm.checkpoint import checkpoint_file
from minillm.config.parse import parse_config
from minillm.errors import Interrupted, MinillmError
from minillm.training.program import main
from minillm.training.run_folder import RunFolder


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Run = Callable[..., Outcome]
Points = Callable[[Path], list[dict[str, Any]]]


@pytest.fixture
def type_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Run:
    """The program with exactly these arguments."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # set by the program; given back after the test

    def run(*arguments: str) -> Outcome:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["train.py", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = int(end.code or 0)
        return Outcome(code, *capfd.readouterr())

    return run


@pytest.fixture
def run(type_it: Run, overrides: list[str]) -> Run:
    """The program on the tiny run, 6 steps, with these arguments added."""
    short = ["trainer.max_steps=6", "trainer.val_every=3", "trainer.checkpoint_every=2", "eval_at_end=false"]
    return lambda *more: type_it(*overrides, *short, *more)


def only_run(folder: Path) -> Path:
    (path,) = folder.iterdir()
    return path


def refused(outcome: Outcome, *words: str) -> None:
    """Exit code 2, one paragraph with these words, no traceback."""
    assert outcome.code == 2, outcome.err
    *progress, paragraph = outcome.err.strip().splitlines()
    assert all(line.startswith("data: ") for line in progress)
    assert paragraph.startswith("Error: ")
    assert "Traceback" not in outcome.out + outcome.err
    for word in words:
        assert word in paragraph, paragraph


def test_a_run_leaves_all_its_files_and_says_what_came_out(run: Run, tmp_path: Path, points: Points) -> None:
    done = run()
    assert done.code == 0, done.err
    folder = only_run(tmp_path / "outputs")
    assert folder.name.startswith("rnope_swa-micro-files-s1-")
    for name in (
        "config.yaml",
        "layers.json",
        "tokenizer.json",
        "metrics.jsonl",
        "samples.txt",
        "checkpoints/last.ckpt",
    ):
        assert (folder / name).is_file(), name
    assert [p["step"] for p in points(folder)] == [1, 2, 3, 4, 5, 6]
    final = points(folder)[-1]
    assert f"validation loss   {final['final/loss']:.4f}" in done.out
    assert f"bits per byte     {final['final/bits_per_byte']:.3f} (xz -9e on the same text: " in done.out
    assert f"run folder        outputs/{folder.name}" in done.out
    assert "local" in done.out
    assert [p.name for p in tmp_path.iterdir()] == ["outputs"], "Hydra writes nothing of its own"


@pytest.mark.bug("B047")
@pytest.mark.bug("B072")
def test_stop_go_on_and_the_same_command_again(run: Run, tmp_path: Path, points: Points) -> None:
    assert run("run_dir=straight").code == 0

    assert "goes on from here" in run("run_dir=parts", "trainer.stop_at_step=3").out
    stopped = {p: p.read_bytes() for p in (tmp_path / "parts" / "checkpoints").iterdir()}
    again = run("run_dir=parts", "trainer.stop_at_step=3")
    assert again.code == 0
    assert "trainer.stop_at_step=3 is reached: 3 steps are done." in again.out
    assert {p: p.read_bytes() for p in (tmp_path / "parts" / "checkpoints").iterdir()} == stopped

    gone_on = run("run_dir=parts", "trainer.val_every=2")
    assert "resuming     after step 3, from parts/checkpoints/step-3.ckpt" in gone_on.out
    assert "changed      trainer.val_every: 3 -> 2" in gone_on.out
    losses = [[p["train/loss"] for p in points(tmp_path / name)] for name in ("straight", "parts")]
    assert losses[0] == losses[1]
    assert yaml.safe_load((tmp_path / "parts" / "config.yaml").read_text())["trainer"]["val_every"] == 2
    starts = [json.loads(line) for line in (tmp_path / "parts" / "starts.jsonl").read_text().splitlines()]
    assert [start["step"] for start in starts] == [0, 3]

    complete = run("run_dir=parts")
    assert complete.code == 0
    assert "This run is complete: all 6 steps are done" in complete.out
    assert "xz -9e on the same text" in complete.out
    for path in (tmp_path / "parts" / "checkpoints").glob("step-*.ckpt"):
        assert torch.load(path, weights_only=True)["step"] == int(path.stem.removeprefix("step-"))


def test_another_model_in_the_folder_is_refused_and_nothing_changes(run: Run, tmp_path: Path) -> None:
    assert run("run_dir=mine", "trainer.stop_at_step=2").code == 0
    before = {p: p.read_bytes() for p in (tmp_path / "mine").rglob("*") if p.is_file() and p.name != ".lock"}
    refused(run("run_dir=mine", "model=rope"), "mine holds another run", "model.layers.kinds", "resume=force")
    refused(run("run_dir=mine", "resume=never"), "already holds a run")
    wider = run("run_dir=mine", "resume=force", "size.hidden_size=32")
    refused(wider, "resume=force cannot go on", "embed_tokens.weight: [300, 16] -> [300, 32]")
    refused(run("run_dir=yours", "resume=must"), "no run in yours")
    assert {p: p.read_bytes() for p in (tmp_path / "mine").rglob("*") if p.is_file() and p.name != ".lock"} == before
    assert not (tmp_path / "yours").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optim.lrr=1"], ["optim.lrr", "optim.lr"]),
        (["model=rop"], ["model=rop", "'rope'"]),
        (["optim.lr=fast"], ["optim.lr", "'fast'"]),
        (["optim.lr=-1"], ["optim.lr", "above 0"]),
        (["model.layers.kinds.local.window=0"], ["window", "0"]),
        (["model.layers.kinds.local.theta=5"], ["theta"]),
        (["trainer.strategy=dpp"], ["trainer.strategy", "'ddp'"]),
        (["trainer.devices=2"], ["trainer.devices", "trainer=ddp"]),
        (["trainer=ddp", "trainer.devices=3"], ["data.batch_size", "3"]),
        (["trainer=ddp", "trainer.devices=2", "trainer.num_nodes=2"], ["trainer.num_nodes = 2", "torchrun"]),
        (["trainer.accelerator=gpu"], ["trainer.accelerator", "no GPU"]),
        (["resume=perhaps"], ["resume", "'perhaps'", "auto"]),
        (["data.path=nowhere"], ["data.path", "nowhere"]),
        (["data.path=empty"], ["empty"]),
        (["data.path=latin.txt"], ["latin.txt", "UTF-8"]),
        (["data.path=short.txt", "data.held_out=0.1", "data.seq_len=4000"], ["short.txt", "4000"]),
        (["run_dir=taken"], ["taken", "holds no run"]),
        (["seed"], ["seed"]),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_gets_one_paragraph_and_leaves_nothing(
    run: Run, tmp_path: Path, arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "latin.txt").write_bytes("é".encode("latin-1") * 2000)
    (tmp_path / "short.txt").write_text("\n\n".join("a few words of text" for _ in range(20)))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").write_text("years")
    before = sorted(tmp_path.rglob("*"))
    refused(run(*arguments, "data.cache_dir=cache"), *words)
    left = [p for p in sorted(tmp_path.rglob("*")) if p not in before and p.parts[len(tmp_path.parts)] != "cache"]
    assert left == []


def test_help_lists_groups_keys_and_exit_codes(type_it: Run) -> None:
    shown = type_it("--help")
    assert shown.code == 0
    for part in ("rnope_swa", "size: ", "max_steps", "dry_run", "Exit codes", "python train.py -m"):
        assert part in shown.out


@pytest.mark.bug("B083")
def test_relative_paths_mean_the_folder_the_user_started_in(
    run: Run, tmp_path: Path, corpus: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts" / "words.jsonl").write_bytes((corpus / "words.jsonl").read_bytes())
    done = run("data.path=texts", "data.cache_dir=cache", "output_dir=here/runs", "trainer.stop_at_step=1")
    assert done.code == 0, done.err
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cache", "here", "texts"]
    assert Path.cwd() == tmp_path


@pytest.mark.bug("B085")
def test_experiment_wins_over_defaults_and_the_command_line_over_both(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    (tmp_path / "mine" / "experiment" / "study.yaml").write_text(
        "# @package _global_\n"
        "optim: {lr: 0.5, weight_decay: 0.25}\n"
        "model: {layers: {overrides: {1: {window: 3}}}}\n"
        "defaults: [{override /schedule: cosine}]\n"
    )
    arguments = ["experiment=study", "optim.beta1=0.8", "run_dir=x", "trainer.stop_at_step=1", "--config-dir", "mine"]
    dumped = run(*arguments, "--cfg", "job", "--resolve")
    assert dumped.code == 0, dumped.err
    assert run(*arguments).code == 0
    saved = torch.load(tmp_path / "x" / "checkpoints" / "last.ckpt", weights_only=True)["config"]
    assert saved["optim"]["lr"] == 0.01, "given on the command line too"
    assert saved["optim"]["weight_decay"] == 0.25
    assert saved["optim"]["beta1"] == 0.8
    assert saved["schedule"]["name"] == "cosine"
    assert parse_config(saved).model.layers[1].window == 3
    del saved["choices"]
    shown = yaml.safe_load(dumped.out)
    assert shown["model"].pop("vocab_size") == 300
    del saved["model"]["vocab_size"]
    assert shown == saved


@pytest.mark.bug("B064")
@pytest.mark.bug("B072")
def test_a_checkpoint_alone_gives_the_model_back(run: Run, tmp_path: Path) -> None:
    assert run("run_dir=x", "trainer.stop_at_step=2").code == 0
    model, tokenizer = minillm.load(tmp_path / "x")
    alone = tmp_path / "alone" / "model.ckpt"
    alone.parent.mkdir()
    checkpoint_file(tmp_path / "x").rename(alone)
    other, other_tokenizer = minillm.load(alone)
    assert not model.training
    tokens = torch.tensor([tokenizer.encode("the of and to", bos=True)])
    assert torch.equal(model(tokens), other(tokens))
    assert other_tokenizer.decode(tokens[0].tolist()) == tokenizer.decode(tokens[0].tolist())
    assert model.config.vocab_size == tokenizer.vocab_size


def test_loading_what_is_not_there_says_so(tmp_path: Path) -> None:
    with pytest.raises(MinillmError, match="no run folder or checkpoint file"):
        minillm.load(tmp_path / "nothing")
    with pytest.raises(MinillmError, match="holds no checkpoint"):
        minillm.load(tmp_path)
    (tmp_path / "x.ckpt").write_text("text")
    with pytest.raises(MinillmError, match="cannot be read"):
        minillm.load(tmp_path / "x.ckpt")


@pytest.mark.parametrize(("signum", "code"), [(2, 130), (15, 143)], ids=["Ctrl-C", "SIGTERM"])
def test_an_interrupted_run_ends_with_the_code_of_its_signal(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, signum: int, code: int
) -> None:
    def interrupted(*_: object) -> None:
        raise Interrupted(signum)

    monkeypatch.setattr("minillm.training.worker.train_rank", interrupted)
    ended = run("run_dir=x")
    assert ended.code == code
    assert "goes on from its last checkpoint" in ended.err
    with RunFolder(tmp_path / "x").lock():
        pass


def test_a_bug_keeps_its_traceback_and_exits_with_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr("minillm.training.worker.train_rank", broken)
    with pytest.raises(ZeroDivisionError, match="ours"):
        run("run_dir=x")
