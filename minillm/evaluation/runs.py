"""Which runs an evaluation means: run folders, checkpoint files, patterns of them, and Hugging Face folders (`hf:DIR`);
and what is read of each.

for run in find_runs(["outputs/*", "other/checkpoints/step-100.ckpt"]):
    loaded = open_run(run)           # model in eval mode, tokenizer, configuration, step
"""

from __future__ import annotations

import dataclasses
import glob
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from minillm.checkpoint import checkpoint_file, restore
from minillm.config.parse import parse_config
from minillm.config.schema import Config
from minillm.errors import MinillmError
from minillm.evaluation import variants
from minillm.evaluation.store import weights_digest
from minillm.model.decoder import Decoder, build_model

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer


HUGGING_FACE = "hf:"
"""Stands before a folder that transformers wrote, or that was written for it."""


@dataclass(frozen=True)
class Run:
    """One model to evaluate."""

    name: str
    """How tables call it; no two runs of a comparison share it."""
    path: Path
    """The run folder, the checkpoint file, or the Hugging Face folder."""
    folder: Path | None
    """The run folder around it, for its metrics; None for a checkpoint that lies elsewhere."""
    variant: str | None = None
    """Its weights under another setting, by name; None is as trained."""

    @property
    def eval_folder(self) -> Path:
        """Where its results are kept: `eval/` of a run folder; of another checkpoint, a folder named after the file;
        of a variant, a folder below that."""
        own = self._own_eval_folder()
        return own if self.variant is None else own / "variants" / self.variant

    def _own_eval_folder(self) -> Path:
        if self.folder == self.path or self.path.is_dir():
            return self.path / "eval"
        if self.folder is not None:
            return self.folder / "eval" / self.path.stem
        return self.path.with_name(f"{self.path.stem}-eval")


@dataclass(frozen=True)
class OpenRun:
    """A run whose checkpoint has been read."""

    run: Run
    model: Decoder
    tokenizer: Tokenizer
    config: Config
    """As trained, with the real vocabulary size."""
    step: int
    digest: str
    """Of the weights."""
    decided: dict[str, Any]
    """Precision, attention backends, device and torch version of its training."""

    @property
    def train_length(self) -> int:
        return self.config.model.max_position_embeddings


def find_runs(patterns: Sequence[str], say: Callable[[str], None] = print) -> list[Run]:
    """The runs that `patterns` name, in that order, each once.

    A pattern's matches that are no run folder (the comparison itself lies in outputs/, for one) are left out, which
    is said; a path given by name must be one.

    Raises:
        MinillmError: a path is not there or is no run, or nothing is left.
    """
    paths: list[Path] = []
    for pattern in patterns:
        if pattern.startswith(HUGGING_FACE):
            paths.append(_hugging_face(pattern))
            continue
        if not glob.has_magic(pattern) or Path(pattern).exists():
            paths.append(_named(pattern))
            continue
        matches = sorted(Path(p) for p in glob.glob(pattern))
        good = [p for p in matches if _is_run(p)]
        if not good:
            raise MinillmError(f"runs: nothing that '{pattern}' matches is a run folder or a checkpoint.")
        if len(good) < len(matches):
            say(f"Left out, being no runs: {', '.join(str(p) for p in matches if p not in good)}.")
        paths += good
    unique = list({p.resolve(): p for p in paths}.values())
    return _name(unique)


def _hugging_face(pattern: str) -> Path:
    folder = Path(pattern.removeprefix(HUGGING_FACE)).expanduser()
    if not (folder / "config.json").is_file():
        raise MinillmError(f"runs: {pattern}: there is no config.json in {folder}, so it is no Hugging Face folder.")
    return folder


def _named(pattern: str) -> Path:
    path = Path(pattern)
    if not path.exists():
        raise MinillmError(f"runs: {pattern} does not exist. Allowed: run folders, checkpoint files, patterns of them.")
    if not _is_run(path):
        what = "holds no checkpoints/" if path.is_dir() else "is no checkpoint (.ckpt)"
        raise MinillmError(f"runs: {pattern} {what}, so there is no model to evaluate.")
    return path


def _is_run(path: Path) -> bool:
    if path.is_file():
        return path.suffix == ".ckpt"
    return (path / "config.yaml").is_file() and (path / "checkpoints").is_dir()


def _name(paths: list[Path]) -> list[Run]:
    """Names are folder names; where two are alike, so much of the path before them as tells them apart."""
    runs = []
    for path in paths:
        folder = path if path.is_dir() else path.parent.parent if path.parent.name == "checkpoints" else None
        if (path / "config.json").is_file():
            folder = None  # of no run of ours: it has no metrics
        own = path.resolve().name if path.is_dir() else f"{(folder or path.parent).resolve().name}@{path.stem}"
        runs.append(Run(own, path, folder))
    depth = 1
    names = [run.name for run in runs]
    while max(Counter(names).values(), default=1) > 1 and depth < 20:
        alike = {name for name, count in Counter(names).items() if count > 1}
        depth += 1
        names = [
            "/".join([*_parents(run, depth - 1), run.name]) if name in alike else name
            for run, name in zip(runs, names, strict=True)
        ]
    return [Run(name, run.path, run.folder) for run, name in zip(runs, names, strict=True)]


def _parents(run: Run, count: int) -> tuple[str, ...]:
    outer = (run.folder or run.path.parent).resolve().parent
    return outer.parts[-count:]


def with_variants(runs: Sequence[Run], names: Sequence[str]) -> list[Run]:
    """Each run as trained, followed by its variants."""
    return [
        run if name is None else dataclasses.replace(run, name=f"{run.name} +{name}", variant=name)
        for run in runs
        for name in (None, *names)
    ]


def open_run(run: Run, changes: variants.Changes | None = None) -> OpenRun:
    """Read the run's newest readable checkpoint (or the file given), under `changes` if it is a variant.

    Raises MinillmError where there is none, or where its weights do not fit the variant.
    """
    from minillm.training.checkpoint_io import read_checkpoint

    if run.path.is_dir() and run.folder is None:
        return _open_hugging_face(run, changes)
    file = checkpoint_file(run.path)
    state: dict[str, Any] = read_checkpoint(file)
    config = parse_config(state["config"])
    if run.variant is not None and changes is not None:
        config = variants.apply(config, run.variant, changes)
    try:
        model, tokenizer = restore({**state, "config": config.plain}, file)
    except MinillmError as error:
        if run.variant is None:
            raise
        raise MinillmError(f"variants.{run.variant} asks for a model with other weights. {error}") from None
    return OpenRun(
        run=run,
        model=model,
        tokenizer=tokenizer,
        config=config,
        step=int(state["step"]),
        digest=weights_digest(state["state_dict"]),
        decided=dict(state["decided"]),
    )


def _open_hugging_face(run: Run, changes: variants.Changes | None) -> OpenRun:
    """A model that was trained elsewhere: what its folder does not say (data, optimiser) is as in a new run."""
    from minillm.hub.api import load
    from minillm.hub.runs import run_config

    model, tokenizer = load(run.path, dtype=torch.float32)  # `precision` says how it computes
    config = run_config(run.path, run.path / "tokenizer.json", tokenizer.bos_token)
    if run.variant is not None and changes is not None:
        config = variants.apply(config, run.variant, changes)
        changed = build_model(config.model, device="meta")
        try:
            changed.load_state_dict(model.state_dict(), assign=True)
        except RuntimeError as error:
            raise MinillmError(f"variants.{run.variant} asks for a model with other weights: {error}") from None
        model = changed.eval()
    return OpenRun(
        run=run,
        model=model,
        tokenizer=tokenizer,
        config=config,
        step=0,
        digest=weights_digest(model.state_dict()),
        decided={},
    )
