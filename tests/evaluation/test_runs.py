"""Which runs are meant, what they are called, and where their results go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minillm.errors import MinillmError
from minillm.evaluation.runs import find_runs, open_run, with_variants


@pytest.fixture
def outputs(tmp_path: Path) -> Path:
    """Two folders that look like runs, and two that do not."""
    for name in ("a", "b"):
        (tmp_path / "outputs" / name / "checkpoints").mkdir(parents=True)
        (tmp_path / "outputs" / name / "config.yaml").write_text("")
        (tmp_path / "outputs" / name / "checkpoints" / "step-5.ckpt").write_text("")
    (tmp_path / "outputs" / "comparison").mkdir()
    (tmp_path / "outputs" / "notes.txt").write_text("")
    return tmp_path / "outputs"


def test_a_pattern_takes_the_runs_and_says_what_it_leaves(outputs: Path) -> None:
    said: list[str] = []
    assert [r.name for r in find_runs([f"{outputs}/*"], said.append)] == ["a", "b"]
    assert len(said) == 1
    assert "comparison" in said[0]
    assert "notes.txt" in said[0]


def test_runs_keep_the_order_given_and_come_once(outputs: Path) -> None:
    assert [r.name for r in find_runs([f"{outputs}/b", f"{outputs}/*", f"{outputs}/a/"], lambda text: None)] == [
        "b",
        "a",
    ]


def test_results_lie_in_the_run_folder_and_those_of_a_checkpoint_apart(outputs: Path) -> None:
    checkpoint = outputs / "a" / "checkpoints" / "step-5.ckpt"
    alone = outputs / "alone.ckpt"
    alone.write_text("")
    runs = find_runs([str(outputs / "a"), str(checkpoint), str(alone)])
    assert [r.eval_folder for r in runs] == [
        outputs / "a" / "eval",
        outputs / "a" / "eval" / "step-5",
        outputs / "alone-eval",
    ]
    assert [r.name for r in runs] == ["a", "a@step-5", "outputs@alone"]


def test_runs_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    for parent in ("first", "second"):
        (tmp_path / parent / "run" / "checkpoints").mkdir(parents=True)
        (tmp_path / parent / "run" / "config.yaml").write_text("")
    assert [r.name for r in find_runs([f"{tmp_path}/*/run"])] == ["first/run", "second/run"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("nowhere", "nowhere does not exist"),
        ("nowhere/*", "nothing that '.*nowhere/\\*' matches"),
        ("comparison", "comparison holds no checkpoints/"),
        ("notes.txt", "notes.txt is no checkpoint"),
    ],
    ids=["a path that is not there", "a pattern without matches", "a folder that is no run", "a file of another kind"],
)
def test_what_is_no_run_is_refused_by_name(given: str, message: str, outputs: Path) -> None:
    with pytest.raises(MinillmError, match=message):
        find_runs([f"{outputs}/{given}"])


def test_a_folder_whose_name_has_pattern_characters_is_taken_as_it_is(tmp_path: Path) -> None:
    folder = tmp_path / "lr[1]"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.yaml").write_text("")
    assert [r.path for r in find_runs([str(folder)])] == [folder]


def test_an_open_run_is_the_saved_model_in_eval_mode(make_run: Callable[..., Path], tmp_path: Path) -> None:
    folder = make_run(tmp_path / "run", "model=rnope_swa", step=10)
    opened = open_run(find_runs([str(folder)])[0])
    assert (opened.step, opened.train_length, opened.model.training) == (10, 16, False)
    assert opened.config.model.vocab_size == opened.tokenizer.vocab_size
    other = open_run(find_runs([str(make_run(tmp_path / "other", "model=rnope_swa", weights_seed=1))])[0])
    assert opened.digest != other.digest
    with torch.no_grad():
        assert opened.model(torch.tensor([[1, 2, 3]])).shape == (1, 3, opened.tokenizer.vocab_size)


def test_a_hugging_face_folder_is_evaluated_as_the_run_it_came_from(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    from minillm import hub

    run, folder = make_run(tmp_path / "a", "model=rnope_swa", "block=cohere2"), tmp_path / "hf"
    hub.export(run, folder)
    (own,) = find_runs([f"hf:{folder}"])
    assert (own.name, own.folder, own.eval_folder) == ("hf", None, folder / "eval")
    opened, trained = open_run(own), open_run(find_runs([str(run)])[0])
    plans = [[(s.position.scheme, s.window) for s in o.model.layer_specs] for o in (opened, trained)]
    assert plans[0] == plans[1]
    assert opened.train_length == trained.train_length
    tokens = torch.arange(90)[None] % 50
    with torch.no_grad():
        assert (opened.model(tokens) - trained.model(tokens)).abs().max() < 1e-5
    text = "The President of the United States"
    assert opened.tokenizer.encode(text, bos=True) == trained.tokenizer.encode(text, bos=True)
    wide = open_run(with_variants([own], ["wide"])[1], {"local": {"window": 9}})
    assert {spec.window for spec in wide.model.layer_specs} == {9, None}


def test_a_folder_without_a_config_is_no_hugging_face_folder(tmp_path: Path) -> None:
    with pytest.raises(MinillmError, match=r"there is no config\.json"):
        find_runs([f"hf:{tmp_path}"])
