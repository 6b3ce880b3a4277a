"""A trained model back from its run folder, from one checkpoint file alone, or from a Hugging Face folder.

model, tokenizer = minillm.load("outputs/rnope_swa-micro-embedded-s1-3f9c2a1b")
(ids,) = minillm.generate(model, [tokenizer.encode("The ", bos=True)], max_new_tokens=40, temperature=0.8, seed=0)
print(tokenizer.decode(ids))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.config.parse import parse_config
from minillm.errors import MinillmError
from minillm.model.decoder import Decoder, build_model

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer


def load(path: str | Path) -> tuple[Decoder, Tokenizer]:
    """The model, on the CPU and in eval mode, and the tokenizer it was trained with.

    Args:
        path: a run folder, of which the newest checkpoint that can be read is taken, a checkpoint file, or a Hugging
            Face folder (config.json, safetensors and tokenizer.json).

    Raises:
        MinillmError: there is nothing to load at `path`, or it is damaged; the message says what was looked for.
    """
    from minillm.training.checkpoint_io import read_checkpoint

    if (Path(path) / "config.json").is_file():
        from minillm.hub import load as load_folder

        return load_folder(path)
    file = checkpoint_file(path)
    return restore(read_checkpoint(file), file)


def end_ids(folder: Path, tokenizer: Tokenizer) -> list[int]:
    """Ids that end a text by the files of a Hugging Face folder; none for a run of ours, whose marker does."""
    found: list[int] = []
    for name in ("generation_config.json", "config.json"):
        try:
            values = json.loads((folder / name).read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            continue
        ids = values.get("eos_token_id") if isinstance(values, dict) else None
        found += [i for i in (ids if isinstance(ids, list) else [ids]) if isinstance(i, int)]
    return [i for i in dict.fromkeys(found) if 0 <= i < tokenizer.vocab_size and i != tokenizer.bos_id]


def restore(state: Mapping[str, Any], file: Path) -> tuple[Decoder, Tokenizer]:
    """`load` for a checkpoint's content that was read already; `file` is what errors name."""
    from minillm.data.tokenizer import Tokenizer

    cfg = parse_config(state["config"])
    model = build_model(cfg.model, device="meta")
    problems = model.load_state_dict(state["state_dict"], strict=False, assign=True)
    if problems.missing_keys or problems.unexpected_keys:
        raise MinillmError(
            f"{file} does not fit the model that it describes: missing {some(problems.missing_keys)}; unknown "
            f"{some(problems.unexpected_keys)}. Was it written by another version (it says {state['version']}), or has "
            "the code of its position scheme changed since?"
        )
    return model.eval(), Tokenizer.from_json(state["tokenizer"], cfg.tokenizer.bos_token, f"the tokenizer in {file}")


def some(names: Sequence[str]) -> str:
    """The first few of many names."""
    shown = ", ".join(names[:3]) or "none"
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def checkpoint_file(path: str | Path) -> Path:
    """The checkpoint that `path` stands for: itself, or the newest readable one of a run folder.

    Raises:
        MinillmError: there is none.
    """
    from minillm.training.run_folder import RunFolder

    path = Path(path)
    if path.is_file():
        return path
    if not path.exists():
        raise MinillmError(f"There is no run folder or checkpoint file {path}.")
    newest = RunFolder(path).newest_checkpoint()
    if newest is None:
        raise MinillmError(f"{path} holds no checkpoint: neither checkpoints/step-N.ckpt nor checkpoints/last.ckpt.")
    return newest.path
