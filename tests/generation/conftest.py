"""A tokenizer whose characters are often several tokens, and a run folder with random weights."""

from __future__ import annotations

from pathlib import Path

import pytest

import minillm
from minillm.data.tokenizer import Tokenizer
from tests.model.small import large

SIZE = {"hidden_size": 24, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "intermediate_size": 40}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(["the union of the states, the rivers and the sea " * 5], vocab_size=270)


@pytest.fixture(scope="session")
def run(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An RNoPE-SWA model, as training leaves it at its first step."""
    from minillm.training.checkpoint_io import write_checkpoint
    from minillm.training.run_folder import RunFolder
    from minillm.training.state import beginning

    sizes = [f"size.{name}={value}" for name, value in {**SIZE, "num_hidden_layers": 4}.items()]
    vocab = f"tokenizer.vocab_size={tokenizer.vocab_size}"
    cfg = minillm.compose(["model=rnope_swa", "size.seq_len=32", "size.window=4", vocab, *sizes], warn=False)
    folder = RunFolder(tmp_path_factory.mktemp("runs") / "run")
    folder.path.mkdir()
    folder.write(cfg, tokenizer)
    write_checkpoint(folder.checkpoints, beginning(cfg, large(cfg.model).state_dict(), tokenizer.to_json()), keep=None)
    return folder.path
