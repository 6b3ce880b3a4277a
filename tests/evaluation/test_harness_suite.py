"""The suite `harness`: our tasks as its YAML, rows with intervals, what is missing said, and nothing downloaded."""

from __future__ import annotations

import dataclasses
import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lm_eval.tasks
import pytest
import yaml
from lm_eval.tasks import TaskManager

from minillm.data.tokenizer import Tokenizer
from minillm.errors import ConfigError, MinillmError
from minillm.evaluation import evaluate as program
from minillm.evaluation.evaluate import evaluate
from minillm.evaluation.harness import TASKS, samples
from minillm.evaluation.harness.offline import offline, reason
from minillm.evaluation.harness.run import end_ids
from minillm.evaluation.harness.suite import CELL, Manager, Meter, our_group
from minillm.evaluation.intervals import wilson
from minillm.evaluation.runs import find_runs
from minillm.evaluation.settings import EvalConfig, HarnessSettings, compose_eval
from minillm.hub.runs import write_tokenizer
from tests.evaluation.ruler_tools import byte_level

Rows = list[dict[str, Any]]
NO_FILE = [name for name in samples.TASKS if not name.startswith("qa")]


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return byte_level(2000)


@pytest.fixture(scope="module")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tokenizer")
    write_tokenizer(tokenizer, out, 64)
    return out


# ---- our tasks as the harness reads them ------------------------------------------------------------------------


def test_each_task_that_needs_no_file_is_there_in_both_forms_and_the_groups_hold_them() -> None:
    for group, ending in (("minillm_ruler", ""), ("minillm_ruler_likelihood", "_likelihood")):
        assert our_group(group) == [f"minillm_{name}{ending}" for name in NO_FILE]
    assert len(NO_FILE) == 11
    index = TaskManager(include_path=str(TASKS), include_defaults=False).task_index
    assert set(index) == {file.stem for file in TASKS.glob("minillm_*.yaml")}
    for name in NO_FILE:
        values = yaml.safe_load((TASKS / f"minillm_{name}.yaml").read_text())
        assert values["dataset_kwargs"] == {
            "task": name,
            "max_gen_toks": values["generation_kwargs"]["max_gen_toks"],
        }


def test_the_harness_shows_a_model_the_prompt_and_the_ten_answers_as_they_are(
    folder: Path, tokenizer: Tokenizer
) -> None:
    settings = HarnessSettings(tasks=("minillm_ruler",), limit=2)
    with offline():
        manager = Manager(folder, settings, None)
        generated = manager.load("minillm_vt", 700)["tasks"]["minillm_vt"]
        chosen = manager.load("minillm_niah_multikey_1_likelihood", 600)["tasks"]["minillm_niah_multikey_1_likelihood"]
        for task in (generated, chosen):
            task.build_all_requests(limit=2)
    for request in generated.instances:
        context, how = request.args
        assert context == request.doc["input"]
        assert context.endswith("They are")
        assert how == {"do_sample": False, "temperature": 0.0, "until": [], "max_gen_toks": 64}
        # The start marker and all tokens that are generated included, to 1 % below.
        assert 693 <= len(tokenizer.encode(context, bos=True)) + 64 <= 700
    assert len(chosen.instances) == 20
    by_answer = {request.args[1]: request.doc for request in chosen.instances if request.doc["index"] == 0}
    assert len(by_answer) == 10
    assert all(answer.startswith(" ") for answer in by_answer)
    document = chosen.instances[0].doc
    assert document["choices"][document["gold"]] in document["outputs"]
    assert document["outputs"][0] in document["input"]


def test_the_right_answer_stands_anywhere_among_the_ten(folder: Path) -> None:
    made = samples.documents(task="niah_single_1", tokenizer=str(folder), max_seq_lengths=[300], num_samples=40)["test"]
    assert len(set(made["gold"])) > 5
    assert all(doc["choices"][doc["gold"]] == doc["outputs"][0] for doc in made)


def test_lengths_take_turns_so_that_a_limit_leaves_as_many_of_each(folder: Path) -> None:
    made = samples.documents(task="fwe", tokenizer=str(folder), max_seq_lengths=[300, 500], num_samples=3)["test"]
    assert made["max_length"] == [300, 500] * 3
    assert made["index"] == [0, 0, 1, 1, 2, 2]


def test_what_cannot_be_made_is_said(folder: Path) -> None:
    with pytest.raises(MinillmError, match=r"no tokenizer is named: .*--model_args pretrained=DIR"):
        samples.documents(task="vt")
    with pytest.raises(MinillmError, match=r"max_seq_lengths = \[100\]: must be 256 or more"):
        samples.documents(task="vt", tokenizer=str(folder), max_seq_lengths=[100])
    with pytest.raises(MinillmError, match=r"the answer takes [0-9]+ tokens, and 5 are generated"):
        samples.documents(task="vt", max_gen_toks=5, tokenizer=str(folder))


def test_scores_of_one_document() -> None:
    doc = {"outputs": ["12", "34"], "gold": 1}
    assert samples.score_generated(doc, [" 12 and 34. So"]) == {"score": 1, "word_match": 1, "exact": 1}
    assert samples.score_generated(doc, [" 123"]) == {"score": 0.5, "word_match": 0, "exact": 0}
    likelihoods = [(-3.0, False), (-2.0, False), (-2.5, False)]
    assert samples.score_likelihood(doc, likelihoods) == {"acc": 1.0, "gold_log_probability": -2.0}
    assert samples.score_likelihood(doc, [(-2.0, False)] * 4) == {"acc": 0.25, "gold_log_probability": -2.0}


# ---- the suite of a run -----------------------------------------------------------------------------------------


def settings_of(run: Path, *more: str) -> EvalConfig:
    return compose_eval([f"runs={run}", "suites=[harness,ruler]", *more])


def measured(run: Path, *more: str) -> dict[str, Any]:
    config = settings_of(run, *more)
    return evaluate(find_runs(config.runs)[0], config, say=lambda text: None).results


def of(rows: Rows, metric: str, **where: Any) -> Rows:
    return [r for r in rows if r["metric"] == metric and all(r.get(k) == v for k, v in where.items())]


def test_likelihoods_through_the_harness_are_those_of_the_suite_ruler(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", "model=rope")
    names = ("niah_single_1", "vt", "cwe")
    results = measured(
        run,
        f"suite.harness.tasks=[{','.join(f'minillm_{name}_likelihood' for name in names)}]",
        "suite.harness.lengths=[900,1000]",
        "suite.harness.limit=4",
        f"suite.ruler.tasks=[{','.join(names)}]",
        "suite.ruler.lengths=[900,1000]",
        "suite.ruler.samples=4",
    )
    rows, own = results["harness"]["rows"], results["ruler"]["rows"]
    for name in names[:2]:
        for length in (900, 1000):
            (found,) = of(rows, "acc", task=f"minillm_{name}_likelihood", length=length)
            (expected,) = of(own, "score", task=name, length=length, depth=None)
            assert {k: found[k] for k in ("value", "n", "low", "high")} == {
                k: expected[k] for k in ("value", "n", "low", "high")
            }
            assert found["multiple"] == length / 16
            (nats,) = of(rows, "gold_log_probability", task=f"minillm_{name}_likelihood", length=length)
            assert nats["value"] == pytest.approx(-sum(c["gold_nll"] for c in expected["cases"]) / 4, rel=1e-5)
            assert nats["low"] < nats["value"] < nats["high"]
    (missing,) = of(rows, "score", task="minillm_cwe_likelihood", length=900)
    assert missing["value"] is None
    assert missing["note"].startswith("not measured: the shortest prompt takes")
    # Measured once: what lies in the run's folder is taken, until it is asked another thing.
    saved = json.loads((run / "eval" / "harness.json").read_text())
    assert saved["settings"]["lm_eval"].startswith("0.")
    (run / "eval" / "harness.json").write_text(json.dumps({**saved, "rows": []}))
    more = ("suite.harness.tasks=[minillm_niah_single_1_likelihood]", "suite.harness.lengths=[900]", "suites=harness")
    assert measured(run, *more, "suite.harness.limit=1")["harness"]["rows"]
    assert (run / "eval" / "harness.json").read_text() != json.dumps({**saved, "rows": []})


def test_generated_answers_have_three_scores_and_a_table_that_ends_has_none(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", "model=learned", "size.seq_len=540", "data.held_out=2")
    rows = measured(
        run,
        "suites=harness",
        "suite.harness.tasks=[minillm_niah_single_1,minillm_fwe_likelihood]",
        "suite.harness.lengths=[512,600]",
        "suite.harness.limit=2",
    )["harness"]["rows"]
    for metric in ("score", "word_match", "exact"):
        (row,) = of(rows, metric, task="minillm_niah_single_1", length=512)
        assert 0 <= row["value"] <= 1
        assert (row["low"], row["high"]) == wilson(row["value"], 2)
    for name in ("minillm_niah_single_1", "minillm_fwe_likelihood"):
        (row,) = [r for r in rows if r["task"] == name and r["length"] == 600]
        assert (row["value"], row["note"]) == (None, "not defined")


def test_a_misspelt_task_is_refused_with_the_nearest_one(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "model=rope")
    with pytest.raises(
        ConfigError, match=r"suite\.harness\.tasks: unknown task 'minillm_vtt'. Did you mean 'minillm_vt'"
    ):
        measured(run, "suites=harness", "suite.harness.tasks=[minillm_vtt]")


def test_a_run_on_a_task_is_left_out_and_without_the_extra_it_is_named(
    make_run: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run", "model=rope")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MinillmError, match=r"pip install 'minillm\[harness\]'"):
        measured(run, "suites=harness")
    config = settings_of(run)
    opened = program.open_run(find_runs(config.runs)[0])
    data = dataclasses.replace(opened.config.data, source="task")
    on_task = dataclasses.replace(opened, config=dataclasses.replace(opened.config, data=data))
    with pytest.raises(program.NotApplicable, match="knows no text"):
        program.SUITES["harness"](on_task, config, "cpu")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("lengths=[100]", "must be rising numbers of tokens, from 256"),
        ("tasks=[]", "each once, at least one"),
        ("limit=0", "must be 1 or more"),
        ("num_fewshot=-1", "must be 0 or more"),
    ],
)
def test_settings_without_sense_are_refused(override: str, message: str) -> None:
    assert compose_eval(["runs=a"]).suite.harness == HarnessSettings()
    with pytest.raises(ConfigError, match=message):
        compose_eval(["runs=a", f"suite.harness.{override}"])


def test_a_hugging_face_folder_says_what_ends_a_text(tokenizer: Tokenizer, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"eos_token_id": [2, 7]}')
    (tmp_path / "generation_config.json").write_text(f'{{"eos_token_id": {tokenizer.bos_id}}}')
    assert end_ids(tmp_path, tokenizer) == [2, 7]
    assert end_ids(tmp_path / "none", tokenizer) == []


def test_the_bar_of_a_cell_ends_where_it_should_whatever_is_reported() -> None:
    said: list[int] = []
    meter = Meter(said.append)
    for share in (0.3, 0.4, 0.9, 0.2):
        meter.advance(share)
    meter.finish()
    assert sum(said) == CELL
    assert min(said) > 0


# ---- no download ------------------------------------------------------------------------------------------------


@pytest.fixture
def asked_for(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Hosts that anything looked for on the net."""
    hosts: list[str] = []

    def spy(host: Any, *rest: Any, **named: Any) -> Any:
        hosts.append(str(host))
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", spy)
    return hosts


def test_nothing_is_looked_for_on_the_net(asked_for: list[str], tmp_path: Path) -> None:
    import nltk
    import requests
    from datasets import load_dataset

    with offline():
        with pytest.raises(Exception, match="minillm/none") as missing:
            load_dataset("minillm/none", cache_dir=str(tmp_path))
        assert reason(missing.value).startswith("not cached: ")
        assert nltk.download("punkt_tab") is False
        with pytest.raises(requests.ConnectionError) as refused:
            requests.get("http://example.com/squad.json", timeout=5)
        assert reason(refused.value).startswith("not cached: ")
    assert asked_for == []
    with pytest.raises(OSError, match="no network in tests"):
        socket.create_connection(("example.com", 80))
    assert asked_for == ["example.com"], "all is as before"
    assert reason(ValueError("odd\nvery")) == "not measured: ValueError: odd"


def test_tasks_of_the_harness_run_where_their_data_is_and_say_so_where_it_is_not(
    make_run: Callable[..., Path], tmp_path: Path, asked_for: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import datasets

    real = datasets.load_dataset
    endings = [["walks on.", "flies off.", "sings.", "ends."], ["reads it.", "eats.", "melts away.", "is blue."]] * 2
    rows = [
        {"activity_label": "Walking", "ctx_a": "A man", "ctx_b": "then he", "endings": e, "label": "1"} for e in endings
    ]

    def from_cache(path: str, *rest: Any, **named: Any) -> Any:
        if path == "Rowan/hellaswag":
            cached = datasets.Dataset.from_list(rows)
            return datasets.DatasetDict({"train": cached, "validation": cached})
        return real(path, *rest, **named)

    def few(include_path: str, include_defaults: bool, metadata: Any) -> TaskManager:
        """Of its 15,000 files, those of the tasks asked for."""
        assert include_defaults
        home = Path(lm_eval.tasks.__file__).parent
        folders = [str(home / name) for name in ("hellaswag", "arc", "ruler", "humaneval")]
        return TaskManager(include_path=[include_path, *folders], include_defaults=False, metadata=metadata)

    monkeypatch.setattr("minillm.evaluation.harness.suite.TaskManager", few)
    monkeypatch.setattr(datasets, "load_dataset", from_cache)
    monkeypatch.setattr("minillm.evaluation.harness.suite.nltk_data", lambda: False)
    run = make_run(tmp_path / "run", "model=rope")
    names = ("hellaswag", "arc_easy", "niah_single_2", "ruler_vt", "humaneval")
    found = measured(
        run,
        "suites=harness",
        f"suite.harness.tasks=[{','.join(names)}]",
        "suite.harness.lengths=[512]",
        "suite.harness.limit=3",
    )["harness"]["rows"]
    by_task = {name: [r for r in found if r["task"] == name] for name in names}
    assert [(r["metric"], r["length"], r["n"]) for r in by_task["hellaswag"]] == [
        ("acc", None, 3),
        ("acc_norm", None, 3),
    ]
    assert [r["length"] for r in by_task["arc_easy"]] == [None]
    assert by_task["arc_easy"][0]["note"].startswith("not cached: ")
    assert all("wants nltk's tokenizers/punkt_tab" in r["note"] for r in by_task["niah_single_2"])
    (short,) = by_task["ruler_vt"]
    assert short["length"] == 512
    assert short["note"] == "not measured: the harness's ruler_vt may not end below 1024 tokens"
    assert by_task["humaneval"][0]["note"].split(":")[0] in ("not cached", "not measured")
    assert asked_for == []
