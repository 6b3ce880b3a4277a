"""From samples to scores: RULER's rules, a reader that is always right, a guesser at chance, likelihoods by hand."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval.tasks.ruler import common_utils as harness

from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.errors import MinillmError, PositionUndefined
from minillm.evaluation.evaluate import evaluate
from minillm.evaluation.ruler.fit import Sample, Text, make
from minillm.evaluation.ruler.haystacks import Corpus
from minillm.evaluation.ruler.likelihood import Likelihood, choose
from minillm.evaluation.ruler.qa import read_hotpotqa, read_squad
from minillm.evaluation.ruler.scoring import exact, string_match_all, string_match_part, word_match
from minillm.evaluation.ruler.suite import TASKS, candidates, measure, rank_first, total_tokens
from minillm.evaluation.ruler.task import Materials
from minillm.evaluation.runs import find_runs
from minillm.evaluation.settings import RulerSettings, compose_eval
from minillm.model.decoder import Decoder, build_model
from minillm.position.nope import NoPE
from minillm.position.rope import RoPE
from minillm.position.scaling_by_length import DynamicNTK
from tests.evaluation.ruler_tools import (
    TEXT,
    Guesser,
    Reader,
    byte_level,
    hotpotqa_file,
    squad_file,
    with_spaces_as_marks,
)

Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def text() -> Text:
    return Text(byte_level())


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Materials:
    folder = tmp_path_factory.mktemp("questions")
    questions = {"qa_1": read_squad(str(squad_file(folder))), "qa_2": read_hotpotqa(str(hotpotqa_file(folder)))}
    return Materials(Corpus([TEXT]), questions)


def of(rows: Rows, metric: str, **where: Any) -> Rows:
    return [r for r in rows if r["metric"] == metric and all(r.get(k) == v for k, v in where.items())]


def one(rows: Rows, metric: str, **where: Any) -> dict[str, Any]:
    (row,) = of(rows, metric, **where)
    return row


@pytest.mark.parametrize(
    ("output", "references", "every", "some"),
    [
        ("It is 12 and 34.", ["12", "34"], 1.0, 1.0),
        ("It is 12.", ["12", "34"], 0.5, 1.0),
        ("nothing", ["12", "34"], 0.0, 0.0),
        ("the ABCDE one", ["abcde"], 1.0, 1.0),
        ("abcde", ["ABCDE", "FGHIJ", "KLMNO", "abc"], 0.5, 1.0),
        ("12\x00\x1f34", ["12", "34", "1234"], 2 / 3, 1.0),
        ("123456", ["345"], 1.0, 1.0),
    ],
)
def test_scores_are_those_that_ruler_publishes(output: str, references: list[str], every: float, some: float) -> None:
    assert string_match_all(output, references) == pytest.approx(every)
    assert string_match_part(output, references) == some


@pytest.mark.bug("B119")
def test_a_number_within_a_longer_one_is_found_by_ruler_but_is_no_word_of_the_answer() -> None:
    outputs = ["7421.", "It is 7421", "74210", "1", ""]
    assert [word_match(output, ["7421"]) for output in outputs] == [[True], [True], [False], [False], [False]]
    assert [string_match_all(output, ["7421"]) for output in outputs] == [1, 1, 1, 0, 0]
    assert word_match("b-a, A", ["a", "c", "b-a"]) == [True, False, True]


def test_the_harness_agrees_on_all_and_is_below_ruler_where_any_reference_will_do() -> None:
    shared = [
        ("12 and 34", ["12", "34"]),
        ("12", ["12", "34"]),
        ("x", ["12"]),
        ("ABC\x07def\n", ["abc", "c\nd", "f"]),
        (" 4821937. The hills", ["4821937"]),
    ]
    for output, references in shared:
        clean = harness.postprocess_pred([output])
        assert harness.string_match_all(clean, [references]) == string_match_all(output, references)
        # Its own `part` asks each sample alone, and is then the share that `all` is.
        assert harness.string_match_part(clean, [references]) == string_match_all(output, references)
    # Answers of one SQuAD question: RULER asks for any of them, the harness gives the share of them.
    output, references = "in 1705", ["1705", "in 1705", "the year 1705"]
    assert string_match_part(output, references) == 1
    assert harness.string_match_part([output], [references]) == pytest.approx(2 / 3)


@pytest.mark.parametrize(
    ("output", "references", "any_reference", "right"),
    [
        (" 4821937. The hills are", ["4821937"], False, True),
        (" 4821937\nand more", ["4821937"], False, True),
        (" 4821937 or 1234567.", ["4821937"], False, False),
        (" b, a and c.", ["a", "b", "c"], False, True),
        (" a, b, and c", ["a", "b", "c"], False, True),
        (" a, b, c, d", ["a", "b", "c"], False, False),
        (" a and a", ["a", "b"], False, False),
        (" In 1705.", ["1705", "in 1705"], True, True),
        (" 1705 or 1706.", ["1705", "in 1705"], True, False),
        ("", ["1705"], True, False),
    ],
)
def test_an_exact_answer_is_the_answer_and_nothing_else(
    output: str, references: list[str], any_reference: bool, right: bool
) -> None:
    assert exact(output, references, any_reference) is right


ALL = RulerSettings(lengths=(400, 1500), samples=3, forms=("generate", "likelihood"), seed=5)


def test_who_reads_the_prompt_is_right_in_every_task_and_form(materials: Materials, text: Text) -> None:
    told: list[int] = []
    rows = measure(Reader(text.tokenizer), materials, text, 200, ALL, told.append)
    assert sum(told) == total_tokens(ALL)
    for task in TASKS:
        for form in ALL.forms:
            measured = [r for r in of(rows, "score", task=task, form=form, depth=None) if r["value"] is not None]
            assert measured, task
            for r in measured:
                assert (r["value"], r["n"], r["high"]) == (1.0, 3, 1.0), (task, form, r["length"])
                assert r["low"] < 0.5, "three samples say little"
                assert [case["index"] for case in r["cases"]] == [0, 1, 2]
                assert all(row["chance"] == (0.1 if form == "likelihood" else 0) for row in measured)
                assert all(0.99 * r["length"] <= case["tokens"] <= r["length"] for case in r["cases"])
    assert {r["value"] for r in of(rows, "exact", task="vt")} == {1.0}
    assert {r["value"] for r in of(rows, "word_match")} == {1.0}
    assert {r["value"] for r in of(rows, "gold_nll", task="vt")} == {0.5}
    assert one(rows, "score", task="cwe", form="generate", length=400)["note"].startswith("not measured: the shortest")
    assert "too little to fill" in one(rows, "score", task="qa_1", form="generate", length=1500)["note"]
    mean = one(rows, "mean_score", form="generate", length=1500)
    assert (mean["value"], mean["tasks"], mean["n"]) == (1.0, 12, 36)
    assert set(TASKS) - set(mean["of"]) == {"qa_1"}
    effective = one(rows, "effective_length", form="likelihood")
    assert (effective["value"], effective["length"]) == (1500.0, None)


def test_who_reads_nothing_scores_chance(materials: Materials, text: Text) -> None:
    tasks: Any = ("niah_multikey_2", "niah_multiquery", "fwe")
    settings = RulerSettings(tasks=tasks, lengths=(420, 500), samples=25, forms=("generate", "likelihood"))
    rows = measure(Guesser(), materials, text, 200, settings)
    for length in settings.lengths:
        mean = one(rows, "mean_score", form="likelihood", length=length)
        assert mean["n"] == 75
        assert mean["low"] < 0.1 < mean["high"]
        assert one(rows, "mean_score", form="generate", length=length)["value"] == 0
    for form in settings.forms:
        effective = one(rows, "effective_length", form=form)
        assert effective["value"] is None
        assert effective["note"] == "not measured: at 420 tokens it is no better than chance"


def test_equals_share_the_first_place() -> None:
    assert rank_first([-1.0, -2.0, -3.0]) == 1
    assert rank_first([-2.0, -1.0, -3.0]) == 0
    assert rank_first([-1.0, -1.0, -3.0, -1.0]) == pytest.approx(1 / 3)


class UpTo(Reader):
    """Reads up to a length; then its answers are wrong, or it fails as `error`."""

    def __init__(self, text: Text, length: int, error: Exception | None = None) -> None:
        super().__init__(text.tokenizer)
        self.length, self.error = length, error

    def choose(self, sample: Sample) -> list[Likelihood]:
        if sample.length <= self.length:
            return super().choose(sample)
        if self.error is not None:
            raise self.error
        return [Likelihood(-9.0, 1), *[Likelihood(-1.0, 1)] * len(sample.wrong)]


@pytest.mark.parametrize(
    ("error", "note"),
    [
        (PositionUndefined("no"), "not defined"),
        (MemoryError(), "not measured: 600 tokens do not fit the memory"),
        (torch.OutOfMemoryError("no"), "not measured: 600 tokens do not fit the memory"),
        (RuntimeError("[enforce fail] DefaultCPUAllocator: no"), "not measured: 600 tokens do not fit the memory"),
    ],
)
def test_a_length_that_cannot_be_read_is_left_out_with_the_reason_and_others_stand(
    error: Exception, note: str, materials: Materials, text: Text
) -> None:
    settings = RulerSettings(tasks=("niah_single_1", "fwe"), lengths=(400, 600, 700), samples=8)
    rows = measure(UpTo(text, 400, error), materials, text, 200, settings)
    assert {r["value"] for r in of(rows, "score", length=400, depth=None)} == {1.0}
    for r in of(rows, "score", depth=None):
        assert r["note"] == (None if r["length"] == 400 else note)
    assert one(rows, "effective_length")["value"] == 400
    with pytest.raises(RuntimeError, match="a bug"):
        measure(UpTo(text, 400, RuntimeError("a bug")), materials, text, 200, settings)


def test_the_effective_length_is_the_longest_with_most_of_the_score_at_the_shortest(
    materials: Materials, text: Text
) -> None:
    settings = RulerSettings(tasks=("niah_single_1", "fwe"), lengths=(300, 600, 700), samples=8)
    assert one(measure(UpTo(text, 600), materials, text, 200, settings), "effective_length")["value"] == 600


def test_depths_are_those_of_the_needles(materials: Materials, text: Text) -> None:
    class Early(Reader):
        """Finds what lies in the first half."""

        def choose(self, sample: Sample) -> list[Likelihood]:
            depth = sample.depths[sample.gold]
            assert depth is not None
            return [Likelihood(0.0 if depth < 0.5 else -9.0, 1), *[Likelihood(-1.0, 1)] * 9]

    settings = RulerSettings(tasks=("niah_single_1",), lengths=(800,), samples=40, depths=2)
    rows = measure(Early(text.tokenizer), materials, text, 200, settings)
    early, late = of(rows, "score", depth=0.25)[0], of(rows, "score", depth=0.75)[0]
    assert (early["value"], late["value"], early["n"] + late["n"]) == (1.0, 0.0, 40)
    assert abs(early["n"] - 20) <= 2, "depths are spread evenly over the samples"


@pytest.mark.parametrize("make_tokenizer", [byte_level, with_spaces_as_marks])
def test_prompt_and_answer_are_tokenized_as_one_text(make_tokenizer: Callable[[], Any], materials: Materials) -> None:
    text = Text(make_tokenizer())
    for task in ("niah_single_1", "vt", "fwe", "niah_multikey_3"):
        sample = make(TASKS[task], materials, text, 600, 0, 0)
        context, continuations = candidates(sample, text)
        answers = (sample.references[sample.gold], *sample.wrong)
        for answer, ids in zip(answers, continuations, strict=True):
            assert ids
            assert [*context, *ids] == text.tokenizer.encode(f"{sample.text} {answer}", bos=True)
        assert len(context) <= len(sample.ids)


BY_LENGTH = DynamicNTK(factor=2.0, original_max_position_embeddings=16)
PLANS = {
    "windows": (
        LayerSpec(0, "local", RoPE(), 4, 2, 8, window=7, sink_tokens=2),
        LayerSpec(1, "global", NoPE(), 4, 2, 8),
    ),
    "no exact cache": (
        LayerSpec(0, "all", RoPE(scaling=DynamicNTK(factor=2.0, original_max_position_embeddings=16)), 4, 2, 8),
    ),
}


def model_of(*specs: LayerSpec, **fields: Any) -> Decoder:
    return build_model(ModelConfig(50, 24, 40, len(specs), 16, specs, **fields), seed=1).eval()


@pytest.mark.parametrize("batch_tokens", [1, 100, 10_000])
@pytest.mark.parametrize("plan", PLANS)
def test_likelihoods_are_those_of_each_whole_text(plan: str, batch_tokens: int) -> None:
    model = model_of(*PLANS[plan])
    draw = np.random.default_rng(0)
    context = draw.integers(1, 50, 33).tolist()
    continuations = [draw.integers(1, 50, n).tolist() for n in (1, 4, 2, 2, 7, 1, 3)]
    found = choose(model, context, continuations, batch_tokens)
    for one_found, ids in zip(found, continuations, strict=True):
        whole = torch.tensor([[*context, *ids]])
        with torch.no_grad():
            log_p = torch.log_softmax(model(whole[:, :-1]).double(), dim=-1)[0, len(context) - 1 :]
        expected = float(log_p.gather(1, torch.tensor(ids)[:, None]).sum())
        assert one_found.log_probability == pytest.approx(expected, abs=1e-4)
        assert one_found.tokens == len(ids)


def test_only_the_cache_of_one_text_can_be_repeated() -> None:
    cache = model_of(*PLANS["windows"]).new_cache(2)
    with pytest.raises(MinillmError, match="only that of one text"):
        cache.repeated(3)


def test_a_run_is_measured_and_what_was_measured_is_used_again(make_run: Callable[..., Path], tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", "model=rnope_swa")
    command = [f"runs={run}", "suites=[ruler]", "suite.ruler.lengths=[512]", "suite.ruler.samples=1", "device=cpu"]
    command += ["suite.ruler.tasks=[niah_single_1,niah_single_2,fwe,qa_1]", "suite.ruler.forms=[generate,likelihood]"]
    said: list[str] = []
    config = compose_eval(command)
    (found,) = find_runs(config.runs)
    rows = evaluate(found, config, said.append).results["ruler"]["rows"]
    saved = json.loads((run / "eval" / "ruler.json").read_text())
    assert saved["rows"] == rows
    assert saved["settings"]["sentences"] > 0
    for form in ("generate", "likelihood"):
        assert one(rows, "score", task="niah_single_2", form=form, depth=None)["n"] == 1
        assert "no file given" in one(rows, "score", task="qa_1", form=form)["note"]
    assert one(rows, "gold_nll", task="fwe")["value"] > 3
    evaluate(found, config, said.append)
    assert "as measured before" in said[-1]
    again = compose_eval([*command, f"suite.ruler.squad={squad_file(tmp_path)}"])
    rows = evaluate(found, again, said.append).results["ruler"]["rows"]
    assert "measured in" in said[-1]
    assert one(rows, "score", task="qa_1", form="generate", depth=None)["note"] is None


@pytest.mark.bug("B118")
def test_a_prompt_fits_a_table_of_positions_with_its_answer_and_longer_ones_are_not_defined(
    make_run: Callable[..., Path], tmp_path: Path
) -> None:
    run = make_run(tmp_path / "run", "model=learned", "size.seq_len=384", "data.held_out=2")
    command = [f"runs={run}", "suites=[ruler]", "suite.ruler.tasks=[niah_single_1]", "suite.ruler.samples=2"]
    command += ["suite.ruler.lengths=[384,400]", "suite.ruler.forms=[generate,likelihood]", "device=cpu"]
    config = compose_eval(command)
    (found,) = find_runs(config.runs)
    rows = evaluate(found, config, lambda line: None).results["ruler"]["rows"]
    for form in ("generate", "likelihood"):
        fits = one(rows, "score", form=form, length=384, depth=None)
        assert fits["note"] is None
        assert all(380 <= case["tokens"] <= 384 for case in fits["cases"])
        assert one(rows, "score", form=form, length=400)["note"] == "not defined"
