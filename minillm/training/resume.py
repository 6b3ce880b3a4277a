"""Whether a run starts, goes on, or is refused: the rules of `resume=auto|never|must|force`.

auto   go on from the newest checkpoint; start where there is none; refuse a folder that holds another run
must   as auto, but refuse to start anew
never  refuse a folder that already holds a run: nothing is overwritten
force  as auto, but take the changed settings that auto refuses, and say which
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from minillm.config.schema import ModelConfig
from minillm.errors import MinillmError
from minillm.training import identity
from minillm.training.identity import Change
from minillm.training.run_folder import RunFolder

Mode = Literal["auto", "never", "must", "force"]


class Decision(NamedTuple):
    """What to do with a run folder."""

    action: Literal["start", "resume", "stopped", "complete"]
    """start at step 0; resume from `checkpoint`; nothing to do: `stop_at_step` is reached, or the run is complete."""
    checkpoint: Path | None
    step: int
    """Updates done so far."""
    changed: list[Change]
    """Settings that differ from those of the run's earlier part, allowed ones and forced ones."""


def check(folder: RunFolder, plain: Mapping[str, Any], mode: Mode) -> list[Change]:
    """Refuse what can be refused by looking at the folder's name and configuration; writes and reads nothing more.

    Returns:
        The settings in which `plain` differs from the run that lies there.

    Raises:
        MinillmError: the rules refuse; the message names the folder, the keys and what would be accepted.
    """
    if not folder.holds_a_run():
        if mode == "must":
            raise MinillmError(f"resume=must, but there is no run in {folder.path}. resume=auto starts it.")
        return []
    if mode == "never":
        raise MinillmError(
            f"resume=never, but {folder.path} already holds a run. Give another name= or run_dir=, "
            "or resume=auto to go on with it."
        )
    saved = folder.read_config()
    changed = identity.changes(saved, plain)
    forbidden = identity.refused(changed)
    if forbidden and mode != "force":
        # The arm's name says more than the twenty keys in which two arms differ; all of them stand behind it.
        listed = "; ".join(map(str, [*identity.other_choices(saved, plain), *forbidden]))
        raise MinillmError(
            f"{folder.path} holds another run: these settings differ (saved -> asked): {listed}. "
            "Give another name= or run_dir= for a new run, or resume=force to go on with the changed settings."
        )
    return changed


def decide(
    folder: RunFolder,
    plain: Mapping[str, Any],
    mode: Mode,
    max_steps: int,
    stop_at_step: int | None,
    say: Callable[[str], None] = print,
) -> Decision:
    """`check`, then see how far the run is. Writes nothing; call it with the folder locked.

    Args:
        plain: the resolved configuration asked for now.
        say: told of damaged checkpoints that are passed over.

    Raises:
        MinillmError: as `check`, or no checkpoint of a run that has some can be read.
    """
    changed = check(folder, plain, mode)
    if not folder.holds_a_run():
        return Decision("start", None, 0, [])
    if folder.complete(max_steps):
        result = folder.read_result() or {}
        return Decision("complete", None, int(result["step"]), changed)
    newest = folder.newest_checkpoint(say)
    if newest is None:
        if mode == "must":
            raise MinillmError(f"resume=must, but {folder.path} holds no checkpoint yet. resume=auto starts at step 0.")
        return Decision("start", None, 0, changed)
    if stop_at_step is not None and stop_at_step <= newest.step < max_steps:
        return Decision("stopped", newest.path, newest.step, changed)
    return Decision("resume", newest.path, newest.step, changed)


def check_data(folder: RunFolder, fingerprint: str, mode: Mode) -> None:
    """Refuse to go on with other data under the same settings: a file that was edited since the run began.

    Raises:
        MinillmError: the data's fingerprint is not that of the last start, unless `mode` is force.
    """
    before = folder.last_start().get("data", fingerprint)
    if before != fingerprint and mode != "force":
        raise MinillmError(
            f"The data have changed since the run in {folder.path} began (fingerprint {before}, now {fingerprint}): "
            "its settings are the same, but the text or the tokenizer file is not. Give another name= or run_dir= for "
            "a new run, or resume=force to go on with the new data."
        )


def check_weights(checkpoint: Path, model: ModelConfig, train_only: Sequence[str] | None = None) -> None:
    """Refuse a forced change that leaves the weights no place to go: another width, depth, vocabulary, ...

    Raises:
        MinillmError: a weight is missing, unknown, or has another shape in the model that is asked for; or one is to be
            trained that was not, so that the optimiser knows nothing of it.
    """
    import torch

    from minillm.model.decoder import build_model
    from minillm.training.train_only import trained_sizes

    state = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    saved = {name: list(weight.shape) for name, weight in state["state_dict"].items()}
    asked = {name: list(weight.shape) for name, weight in build_model(model, device="meta").state_dict().items()}
    unlike = [Change(n, saved.get(n), asked.get(n)) for n in sorted(saved.keys() | asked.keys())]
    unlike = [change for change in unlike if change.saved != change.asked]
    if unlike:
        raise MinillmError(
            f"resume=force cannot go on from {checkpoint}: {len(unlike)} weights have no or another place in the model "
            f"asked for, such as (shapes, saved -> asked) {'; '.join(map(str, unlike[:3]))}. Start a new run for it."
        )
    fresh = [name for name in trained_sizes(model, train_only) if name not in state["optimizer"]]
    if fresh and state["step"] > 0:
        raise MinillmError(
            f"resume=force cannot go on from {checkpoint} with another train_only: {len(fresh)} parameters, such as "
            f"{fresh[0]}, were not trained so far. Start a new run from it: init_from={checkpoint}"
        )
