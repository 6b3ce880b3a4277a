"""`python -m minillm.hub`, runs written as folders and back, tokenizers, and what works without transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import minillm
from minillm.data.tokenizer import Tokenizer
from minillm.errors import MinillmError
from minillm.hub.__main__ import main
from tests.hub.models import MODELS, their_config
from tests.model.small import config, large

transformers = pytest.importorskip("transformers")

TEXTS = ["The union of states shall meet in council.", "States' rights, 1,000 rivers & <|endoftext|> spelt out\n\n\té"]
CORPUS = [
    " ".join(f"{word} {word}s" for word in ("union", "state", "council", "river", "sea")) * 3 + text for text in TEXTS
]
SIZE = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40}


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(CORPUS, vocab_size=300)


@pytest.fixture(scope="module")
def run(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run folder of an RNoPE-SWA model, as training leaves it at its first step."""
    from minillm.training.checkpoint_io import write_checkpoint
    from minillm.training.run_folder import RunFolder
    from minillm.training.state import beginning

    sizes = [f"size.{name}={value}" for name, value in {**SIZE, "num_hidden_layers": 5}.items()]
    vocab = f"tokenizer.vocab_size={tokenizer.vocab_size}"
    cfg = minillm.compose(["model=rnope_swa", "size.seq_len=32", "size.window=4", vocab, *sizes], warn=False)
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    folder.path.mkdir()
    folder.write(cfg, tokenizer)
    weights = large(cfg.model).state_dict()
    write_checkpoint(folder.checkpoints, beginning(cfg, weights, tokenizer.to_json()), keep=None)
    return folder.path


@pytest.fixture(scope="module")
def exported(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("hub") / "out"
    assert main(["export", str(run), str(out)]) == 0
    return out


# ---- show ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", MODELS)
def test_show_prints_the_plan_of_config_json_alone(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    their_config(name).save_pretrained(tmp_path)
    assert main(["show", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    table = [line.split() for line in out.splitlines()]
    start = next(i for i, cells in enumerate(table) if cells[:1] == ["layer"])
    rows = table[start + 1 : start + 6]
    _, model, _ = minillm.hub.read_plan(tmp_path)
    assert [row[0] for row in rows] == ["0", "1", "2", "3", "4"]
    assert [row[2] for row in rows] == [spec.position.scheme for spec in model.layers]
    for spec, row in zip(model.layers, rows, strict=True):
        assert ("full" if spec.window is None else str(spec.window)) in row
    assert f"{minillm.cost(model, 32).parameters:,} parameters" in out


@pytest.mark.bug("B009")
def test_show_reads_the_older_spelling(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = {
        "model_type": "gemma3_text", **SIZE, "num_hidden_layers": 12, "vocab_size": 41, "sliding_window": 7,
        "max_position_embeddings": 32, "rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert main(["show", str(tmp_path / "config.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    full = [int(line.split()[0]) for line in lines if line[:1].isdigit() and " full " in line]
    assert full == [5, 11]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"model_type": "mixtral"}, "it is a mixture of experts"),
        ({"model_type": "gemma3", "text_config": {}, "vision_config": {}}, "--text-only"),
        ({"model_type": "llama", "num_local_experts": 8}, "num_local_experts = 8"),
    ],
)
def test_show_refuses_in_one_line(
    values: dict[str, Any], words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert main(["show", str(tmp_path)]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("Error: ")
    assert words in printed.err
    assert printed.err.count("\n") == 1


def test_families_are_listed_the_plainest_first(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()]
    assert names[0] == "llama"
    assert {"qwen2", "qwen3", "olmo2", "olmo3", "smollm3", "exaone4", "gemma2", "gemma3_text", "cohere2"} < set(names)


# ---- out and in ------------------------------------------------------------------------------------------------------


@torch.no_grad()
def test_a_run_goes_out_and_transformers_computes_the_same(run: Path, exported: Path) -> None:
    model, tokenizer = minillm.load(run)
    theirs, report = transformers.AutoModelForCausalLM.from_pretrained(exported, output_loading_info=True)
    assert not any(report.values())
    assert theirs.config.model_type == "smollm3"
    tokens = torch.tensor([tokenizer.encode(TEXTS[1] * 4, bos=True)])
    assert tokens.shape[1] > 64
    assert (theirs(tokens).logits - model(tokens)).abs().max() < 1e-4
    assert theirs.generation_config.eos_token_id == tokenizer.bos_id


@pytest.mark.parametrize("text", [*TEXTS, "", "new words zwölf"])
def test_autotokenizer_encodes_and_decodes_as_ours(text: str, exported: Path, tokenizer: Tokenizer) -> None:
    theirs = transformers.AutoTokenizer.from_pretrained(exported)
    assert theirs(text)["input_ids"] == tokenizer.encode(text, bos=True)
    assert theirs(text, add_special_tokens=False)["input_ids"] == tokenizer.encode(text)
    assert theirs.decode(tokenizer.encode(text)) == text
    assert theirs.bos_token_id == theirs.eos_token_id == tokenizer.bos_id


@torch.no_grad()
def test_an_exported_run_loads_as_the_run_does(run: Path, exported: Path) -> None:
    model, tokenizer = minillm.load(run)
    back, same_tokenizer = minillm.load(exported)
    assert back.layer_specs == model.layer_specs
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert same_tokenizer.encode(TEXTS[1], bos=True) == tokenizer.encode(TEXTS[1], bos=True)


@torch.no_grad()
def test_a_folder_comes_in_as_a_run(run: Path, exported: Path, tmp_path: Path) -> None:
    assert main(["import", str(exported), str(tmp_path / "again")]) == 0
    model, tokenizer = minillm.load(run)
    back, same_tokenizer = minillm.load(tmp_path / "again")
    assert back.layer_specs == model.layer_specs
    assert all(torch.equal(back.state_dict()[name], tensor) for name, tensor in model.state_dict().items())
    assert same_tokenizer.encode(TEXTS[0]) == tokenizer.encode(TEXTS[0])
    assert main(["import", str(exported), str(tmp_path / "again")]) == 2


def test_export_by_a_family_that_does_not_fit_leaves_no_folder(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["export", str(run), str(tmp_path / "out"), "--family", "llama"]) == 2
    assert "llama does not express this model: layers 0-2, 4: window is 4" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("settings", "marker"),
    [
        ({"bos_token": "<s>", "eos_token": "</s>"}, "<s>"),
        ({"bos_token": None, "eos_token": {"content": "</s>"}}, "</s>"),
    ],
)
def test_a_tokenizer_s_marker_is_found_beside_it(settings: dict[str, Any], marker: str, tmp_path: Path) -> None:
    from tokenizers import Tokenizer as RawTokenizer
    from tokenizers import models

    raw = RawTokenizer(models.WordLevel({"a": 0, "b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    raw.add_special_tokens(["<s>", "</s>"])
    raw.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(MinillmError, match="bos_token"):
        minillm.hub.load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert minillm.hub.load_tokenizer(tmp_path).bos_token == marker


def test_a_folder_without_tokenizer_json_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(MinillmError, match=r"holds no tokenizer.json"):
        minillm.hub.load_tokenizer(tmp_path)


# ---- without transformers --------------------------------------------------------------------------------------------

WITHOUT = """
import sys

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"transformers", "hydra", "lightning", "tokenizers", "datasets", "huggingface_hub"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())
import torch
import minillm, minillm.hub

folder, out = sys.argv[1:]
model = minillm.hub.from_transformers(folder)
minillm.hub.save(model, out)
again = minillm.hub.from_transformers(out)
tokens = torch.arange(20)[None]
print(torch.equal(model(tokens), again(tokens)))
try:
    minillm.hub.to_transformers(model)
except minillm.MinillmError as error:
    print(error)
"""


def test_folders_are_read_and_written_without_transformers(tmp_path: Path) -> None:
    minillm.hub.save(large(config({"position": {"theta": 500.0}})), tmp_path / "in")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", WITHOUT, str(tmp_path / "in"), str(tmp_path / "out")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    same, error = done.stdout.splitlines()
    assert same == "True"
    assert "pip install 'minillm[hf]'" in error


@pytest.mark.parametrize("command", ["export", "import"])
def test_a_place_that_cannot_be_written_is_an_error_by_name(
    command: str, run: Path, exported: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    out = tmp_path / "file" / "out"
    assert main([command, str(run if command == "export" else exported), str(out)]) == 2
    assert f"{out} cannot be written" in capsys.readouterr().err
