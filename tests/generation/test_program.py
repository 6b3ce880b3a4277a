"""`python -m minillm.generate`: its keys, a text while it is made, files of prompts, and the function of that name."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import minillm
from minillm.attention.cache_settings import CacheSettings, Evict
from minillm.data.tokenizer import Tokenizer
from minillm.errors import ConfigError
from minillm.generate import HELP, program
from minillm.generation import prompt_file
from minillm.generation.settings import GenerateSettings, read

GIVEN = ["prompt=the sea", "max_new_tokens=12", "num_threads=1"]


def expected(run: Path, prompt: str, **settings: Any) -> str:
    """What the library makes of a prompt."""
    model, tokenizer = minillm.load(run)
    settings = {"temperature": 0.8, "seed": 0, "stop_ids": [tokenizer.bos_id], "max_new_tokens": 12, **settings}
    (new,) = minillm.generate(model, [tokenizer.encode(prompt, bos=True)], **settings)
    return tokenizer.decode(new)


# ---- one text -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "settings"),
    [
        ([], {}),
        (["temperature=0"], {"temperature": 0.0}),
        (["seed=5", "top_k=9", "top_p=0.9", "min_p=0.01"], {"seed": 5, "top_k": 9, "top_p": 0.9, "min_p": 0.01}),
        (["repetition_penalty=1.5"], {"repetition_penalty": 1.5}),
        (["cache=int4", "cache.group=2", "cache.residual=4"], {"cache": CacheSettings("int4", 2, 4)}),
        (["cache.evict={window: 3, sink_tokens: 1}"], {"cache": CacheSettings(evict=Evict(3, 1))}),
    ],
    ids=str,
)
def test_the_text_is_that_of_the_library(
    run: Path, capsys: pytest.CaptureFixture[str], given: list[str], settings: dict[str, Any]
) -> None:
    assert program([f"run={run}", *GIVEN, *given]) == 0
    assert capsys.readouterr().out == expected(run, "the sea", **settings) + "\n"


def test_it_is_written_piece_by_piece(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pieces: list[str] = []
    monkeypatch.setattr("minillm.generate._write", pieces.append)
    assert program([f"run={run}", *GIVEN]) == 0
    assert "".join(pieces) == expected(run, "the sea") + "\n"
    assert len([piece for piece in pieces if piece.strip()]) > 3


def test_a_prompt_may_come_from_stdin(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("the sea\n"))
    assert program([f"run={run}", "prompt=-", *GIVEN[1:]]) == 0
    assert capsys.readouterr().out == expected(run, "the sea") + "\n"


def test_it_ends_before_a_stop_string(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = expected(run, "the sea")
    stop = whole[5:7]
    assert program([f"run={run}", *GIVEN, f"stop=[{json.dumps(stop)}]"]) == 0
    captured = capsys.readouterr()
    assert captured.out == whole[: whole.index(stop)] + "\n"
    assert int(captured.err.split(" tokens read, ")[1].split(" made")[0]) < 12


def test_a_checkpoint_and_a_hugging_face_folder_give_the_same_text(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from minillm.hub import export

    export(run, tmp_path / "hf")
    for given in (run / "checkpoints" / "last.ckpt", f"hf:{tmp_path / 'hf'}"):
        assert program([f"run={given}", *GIVEN]) == 0
        assert capsys.readouterr().out == expected(run, "the sea") + "\n"


def test_a_text_ends_at_the_ids_that_a_hugging_face_folder_names(run: Path, tmp_path: Path) -> None:
    from minillm.checkpoint import end_ids

    _, tokenizer = minillm.load(run)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, tokenizer.bos_id, 10**6]}))
    assert end_ids(tmp_path, tokenizer) == [7, 5]
    assert end_ids(run, tokenizer) == []


# ---- a file of prompts --------------------------------------------------------------------------------------------


PROMPTS = ["the sea", "of the states, the rivers", "é", "and"]


def rows(out: Path) -> dict[int, dict[str, Any]]:
    lines = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    return {row["line"]: row for row in lines}


def answer(run: Path, prompts: Path, out: Path, *given: str) -> int:
    return program([f"run={run}", f"prompts={prompts}", f"out={out}", "max_new_tokens=6", "num_threads=1", *given])


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("\n".join([*PROMPTS[:2], "", *PROMPTS[2:]]) + "\n", encoding="utf-8")
    return file


def test_each_line_has_its_answer_whatever_the_batch_size(run: Path, prompts: Path, tmp_path: Path) -> None:
    got = []
    for size in (1, 3, 8):
        out = tmp_path / f"out-{size}.jsonl"
        assert answer(run, prompts, out, f"batch_size={size}") == 0
        got.append(rows(out))
    assert got[0] == got[1] == got[2]
    assert {line: row["prompt"] for line, row in got[0].items()} == dict(zip((1, 2, 4, 5), PROMPTS, strict=True))
    assert all(row["end"] in ("length", "marker") and row["tokens"] <= 6 for row in got[0].values())


def test_greedy_answers_are_those_of_each_prompt_alone(run: Path, prompts: Path, tmp_path: Path) -> None:
    assert answer(run, prompts, tmp_path / "out.jsonl", "temperature=0") == 0
    for row in rows(tmp_path / "out.jsonl").values():
        assert row["text"] == expected(run, row["prompt"], temperature=0.0, max_new_tokens=6)


def test_fields_of_a_prompt_stay_and_bad_lines_are_told_by_number(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    lines = ['{"prompt": "the", "id": 7}', "{", '{"text": "x"}', '{"prompt": "sea", "tokens": 1}', '{"prompt": "of"}']
    file.write_text("\n".join(lines))
    assert answer(run, file, out) == 2
    told = capsys.readouterr().err
    for line, why in ((2, "is no JSON"), (3, 'text under "prompt"'), (4, "'tokens', which answers use")):
        assert f"{file}, line {line}: " in told
        assert why in told
    assert "3 of 5 prompts have no answer" in told
    assert {line: row.get("id") for line, row in rows(out).items()} == {1: 7, 5: None}


def test_a_prompt_that_the_model_refuses_spoils_no_other(
    run: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = prompt_file.answers

    def refusing(*args: Any) -> list[dict[str, Any]]:
        if any(prompt.fields["prompt"] == "é" for prompt in args[-1]):
            raise ConfigError("too long")
        return make(*args)

    monkeypatch.setattr(prompt_file, "answers", refusing)
    assert answer(run, prompts, tmp_path / "out.jsonl") == 2
    assert f"{prompts}, line 4: too long" in capsys.readouterr().err
    assert sorted(rows(tmp_path / "out.jsonl")) == [1, 2, 5]
    monkeypatch.undo()
    assert answer(run, prompts, tmp_path / "out.jsonl") == 0
    assert sorted(rows(tmp_path / "out.jsonl")) == [1, 2, 4, 5]


def test_it_goes_on_where_it_was_cut_off(
    run: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert answer(run, prompts, out) == 0
    whole = out.read_bytes()
    lines = whole.splitlines(keepends=True)
    out.write_bytes(lines[0] + lines[1][:20])
    capsys.readouterr()
    assert answer(run, prompts, out) == 0
    assert out.read_bytes() == whole
    assert f"{out} has 1 of 4 answers already" in capsys.readouterr().err
    assert answer(run, prompts, out) == 0
    assert out.read_bytes() == whole


def test_answers_of_other_settings_prompts_or_programs_are_not_mixed(
    run: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert answer(run, prompts, out) == 0
    assert answer(run, prompts, out, "temperature=0.5") == 2
    assert "made under other settings" in capsys.readouterr().err
    other = tmp_path / "other.txt"
    other.write_text("states\n")
    assert answer(run, other, out) == 2
    assert "another file of prompts" in capsys.readouterr().err
    out.write_text('{"a": 1}\n')
    assert answer(run, prompts, out) == 2
    assert f"line 1 of {out} is no answer of this program" in capsys.readouterr().err


@pytest.mark.parametrize("content", ["my only notes", '{"prompt": "the sea"}', '{"line": 1, "settings": "x"}\nnotes'])
def test_no_file_of_others_loses_its_last_line(
    run: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    out = tmp_path / "notes.jsonl"
    out.write_text(content)
    assert answer(run, prompts, out) == 2
    assert answer(run, out, out) == 2  # not even the prompts themselves
    assert "Give another file" in capsys.readouterr().err
    assert out.read_text() == content


def test_an_answer_to_a_line_that_is_no_number_is_refused(
    run: Path, prompts: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.jsonl"
    assert answer(run, prompts, out) == 0
    out.write_text(out.read_text().replace('"line": 1', '"line": []'))
    assert answer(run, prompts, out) == 2
    assert "is no answer of this program" in capsys.readouterr().err


def test_half_a_surrogate_pair_is_told_by_line_and_a_byte_order_mark_is_no_text(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tmp_path / "p.jsonl", tmp_path / "out.jsonl"
    lines = [
        '\ufeff{"prompt": "the"}',
        '{"prompt": "a \\ud800"}',
        '{"prompt": "b", "id": "\\udfff"}',
        '{"prompt": "sea"}',
    ]
    file.write_text("\n".join(lines), encoding="utf-8")
    assert answer(run, file, out) == 2
    told = capsys.readouterr().err
    assert all(f"{file}, line {line}: holds half a surrogate pair" in told for line in (2, 3))
    assert {line: row["prompt"] for line, row in rows(out).items()} == {1: "the", 4: "sea"}
    assert program([f"run={run}", "prompt=a\udcff", *GIVEN[1:]]) == 2  # as a terminal gives bytes that are no UTF-8
    assert "cannot encode the text 'a\\udcff'" in capsys.readouterr().err


# ---- keys ---------------------------------------------------------------------------------------------------------


def test_every_key_is_in_the_help_with_its_default() -> None:
    for cls, above in ((GenerateSettings, ""), (CacheSettings, "cache."), (Evict, "cache.evict.")):
        for field in dataclasses.fields(cls):
            name = above + field.name
            if name in ("cache", "cache.kind"):
                assert "\n  cache=full " in HELP
            elif name != "cache.evict":
                (line,) = [row for row in HELP.splitlines() if row.strip().split("=")[0].split(" ")[0] == name]
                told = line.split()[0].partition("=")[2]
                if isinstance(field.default, (int, float, str)):
                    assert str(field.default).lower() == told or float(told) == field.default


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["run=a", "prompt=b", "temprature=1"], "generate.temprature = 1: unknown key. Did you mean 'temperature'?"),
        (["run=a", "prompt=b", "cache=int9"], "generate.cache.kind: 'int9' is not allowed. Did you mean 'int8'?"),
        (["run=a", "prompt=b", "cache.evict.windw=3"], "generate.cache.evict.windw = 3: unknown key."),
        (["prompt=b"], "generate.run: missing"),
        (["run=a"], "prompt, prompts: neither is given."),
        (["run=a", "prompt=b", "prompts=c.txt"], "prompt, prompts: both are given."),
        (["run=a", "prompts=c.txt"], "out: missing."),
        (["run=a", "prompt=b", "out=c.jsonl"], "out = c.jsonl: has no effect without prompts=FILE"),
        (["run=a", "prompt=b", "prompt=c"], "prompt: given twice."),
        (["run=a", "prompt=b", "top_p=2"], "top_p = 2.0: must be above 0 and at most 1."),
        (["run=a", "prompt=b", "max_new_tokens=0"], "max_new_tokens = 0: must be 1 or more."),
        (["run=a", "prompt=b", "stop=['']"], "stop: an empty string"),
        (["run=a", "prompt=b", "top_k=[1"], "top_k = [1: cannot be read as YAML"),
        (["run=a", "--prompt"], "--prompt: minillm.generate takes KEY=VALUE only"),
        (["run=nowhere", "prompt=b"], "There is no run folder or checkpoint file nowhere."),
        (["run=hf:nowhere", "prompt=b"], "run: there is no config.json in nowhere"),
    ],
    ids=str,
)
def test_what_cannot_be_honoured_is_told_by_name(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert program(given) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"Error: {message}")
    assert captured.out == ""


def test_a_prompt_is_taken_as_it_stands() -> None:
    text = "{a: [1, 'x=y'}, - # no comment"
    settings = read(["run=a", f"prompt={text}", "stop=\n\n"])
    assert (settings.prompt, settings.stop) == (text, ("\n\n",))
    assert read(["run=a", "prompt=2", r'stop=["\n", "b"]']).stop == ("\n", "b")
    assert read(["run=a", "prompt=2"]).prompt == "2"


def test_a_plan_in_which_a_cache_setting_does_nothing_is_told(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, _ = minillm.load(run)
    assert [spec.reach for spec in model.layer_specs] == [4, 4, 4, None]
    assert program([f"run={run}", *GIVEN, "cache.evict.window=0"]) == 2
    assert "cache.evict.window = 0: must be 1 or more." in capsys.readouterr().err


# ---- the name -----------------------------------------------------------------------------------------------------

NAME = """
import minillm
from tests.model.small import config, large
model = large(config({"position": "nope"}))
before = minillm.generate(model, [[1, 2, 3]], max_new_tokens=3)
import minillm.generate
from minillm.generate import program
from minillm.generation import generate
assert before == minillm.generate(model, [[1, 2, 3]], max_new_tokens=3)
assert before == generate(model, [[1, 2, 3]], max_new_tokens=3)
print(len(before[0]))
"""


def test_the_function_can_be_called_before_and_after_the_program_of_its_name_is_imported() -> None:
    """The other order, program first, is that of this file: `expected` calls the function."""
    assert type(minillm.generate).__name__ == "_Program"
    run = subprocess.run(
        [sys.executable, "-c", NAME], capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert (run.returncode, run.stdout.strip()) == (0, "3"), run.stderr


def test_the_program_runs_as_a_module_and_writes_utf8_under_any_locale(run: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "minillm.generate", f"run={run}", *GIVEN, "temperature=3"]
    environment = {"PATH": "", "LC_ALL": "C", "PYTHONIOENCODING": "ascii", "HOME": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, check=False, env=environment, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stderr
    assert done.stdout.decode("utf-8") == expected(run, "the sea", temperature=3.0) + "\n"
    assert any(byte > 127 for byte in done.stdout), "the text has a character that ASCII lacks"


def test_help_needs_no_torch() -> None:
    code = "import sys; from minillm.generate import program; program(['--help']); print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == HELP + "False\n"


def test_a_damaged_run_is_an_error_and_no_traceback(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], tokenizer: Tokenizer
) -> None:
    shutil.copytree(run, tmp_path / "run")
    for file in (tmp_path / "run" / "checkpoints").iterdir():
        file.write_bytes(b"")
    assert program([f"run={tmp_path / 'run'}", *GIVEN]) == 2
    assert "Error:" in capsys.readouterr().err
