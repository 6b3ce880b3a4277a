"""resume=auto, must, never, force: what each does with a new folder, a begun run, a done one, another run's folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from minillm.config.schema import Config
from minillm.errors import MinillmError
from minillm.training import resume
from minillm.training.resume import Decision, Mode
from minillm.training.run_folder import RunFolder

Compose = Callable[..., Config]
MODES: tuple[Mode, ...] = ("auto", "must", "never", "force")


class FakeTokenizer:
    def save(self, path: Path) -> None:
        path.write_text("{}")


@pytest.fixture
def begun(tiny: Compose, tmp_path: Path) -> RunFolder:
    """A run of 20 steps that was stopped at step 7."""
    folder = RunFolder(tmp_path / "run")
    with folder.lock():
        folder.write(tiny(), FakeTokenizer())
        folder.checkpoints.mkdir()
        torch.save({"step": 7}, folder.checkpoints / "step-7.ckpt")
        folder.note_start(data="abc")
    return folder


def decide(folder: RunFolder, cfg: Config, mode: Mode = "auto") -> Decision:
    return resume.decide(folder, cfg.plain, mode, cfg.trainer.max_steps, cfg.trainer.stop_at_step)


@pytest.mark.parametrize("mode", ["auto", "never", "force"])
def test_a_new_folder_starts_a_run(tiny: Compose, tmp_path: Path, mode: Mode) -> None:
    assert decide(RunFolder(tmp_path / "new"), tiny(), mode) == Decision("start", None, 0, [])
    assert not (tmp_path / "new").exists(), "deciding writes nothing"


def test_must_refuses_a_new_folder(tiny: Compose, tmp_path: Path) -> None:
    with pytest.raises(MinillmError, match="resume=must, but there is no run"):
        decide(RunFolder(tmp_path / "new"), tiny(), "must")


@pytest.mark.parametrize("mode", ["auto", "must", "force"])
def test_a_begun_run_goes_on_from_its_newest_checkpoint(tiny: Compose, begun: RunFolder, mode: Mode) -> None:
    assert decide(begun, tiny(), mode) == Decision("resume", begun.checkpoints / "step-7.ckpt", 7, [])


def test_never_refuses_a_begun_run(tiny: Compose, begun: RunFolder) -> None:
    with pytest.raises(MinillmError, match=r"resume=never, but .* already holds a run"):
        decide(begun, tiny(), "never")


def test_a_run_that_was_stopped_before_its_first_checkpoint_starts_again(tiny: Compose, begun: RunFolder) -> None:
    (begun.checkpoints / "step-7.ckpt").unlink()
    assert decide(begun, tiny()) == Decision("start", None, 0, [])
    with pytest.raises(MinillmError, match="holds no checkpoint yet"):
        decide(begun, tiny(), "must")


@pytest.mark.parametrize("mode", ["auto", "must"])
def test_another_run_is_refused_by_naming_every_key_and_both_values(
    tiny: Compose, begun: RunFolder, mode: Mode
) -> None:
    before = sorted(begun.path.rglob("*"))
    with pytest.raises(MinillmError) as refusal:
        decide(begun, tiny("model=rope", "optim.lr=0.5", "trainer.val_every=2"), mode)
    message = str(refusal.value)
    assert "optim.lr: 0.01 -> 0.5" in message
    assert 'model: "rnope_swa" -> "rope"' in message
    assert "model.layers.kinds.full.window: absent -> null" in message
    assert "val_every" not in message, "this one may differ"
    assert "resume=force" in message
    assert sorted(begun.path.rglob("*")) == before


def test_force_takes_the_other_settings_and_says_which(tiny: Compose, begun: RunFolder) -> None:
    decision = decide(begun, tiny("optim.lr=0.5"), "force")
    assert decision.action == "resume"
    assert [str(c) for c in decision.changed] == ["optim.lr: 0.01 -> 0.5"]


@pytest.mark.parametrize(
    "override",
    [
        "trainer=ddp",
        "trainer.accumulate=2",
        "data.num_workers=1",
        "logger=csv",
        "trainer.val_every=2",
        "trainer.checkpoint_every=2",
        "trainer.stop_at_step=9",
        "trainer.loss_spike=null",
        "name=other",
        "resume=must",
    ],
)
def test_how_a_run_is_carried_out_may_differ_between_its_parts(tiny: Compose, begun: RunFolder, override: str) -> None:
    extra = ["trainer.max_steps=20", "trainer.precision=fp32"] if override == "trainer=ddp" else []
    assert decide(begun, tiny(override, *extra)).action == "resume"


@pytest.mark.bug("B047")
@pytest.mark.parametrize(
    ("stop_at", "action"), [(3, "stopped"), (7, "stopped"), (8, "resume"), (20, "resume"), (None, "resume")]
)
def test_a_run_that_has_reached_its_stop_is_left_as_it_is(
    tiny: Compose, begun: RunFolder, stop_at: int | None, action: str
) -> None:
    override = f"trainer.stop_at_step={'null' if stop_at is None else stop_at}"
    assert decide(begun, tiny(override)).action == action


@pytest.mark.bug("B047")
def test_a_complete_run_is_not_touched_and_a_longer_horizon_needs_force(tiny: Compose, begun: RunFolder) -> None:
    torch.save({"step": 20}, begun.checkpoints / "step-20.ckpt")
    assert decide(begun, tiny()).action == "resume", "the last steps are saved, the end is not measured"
    begun.write_result({"step": 20}, 20, xz_bits_per_byte=2.0)
    for mode in ("auto", "must", "force"):
        assert decide(begun, tiny(), mode).action == "complete"
    with pytest.raises(MinillmError, match=r"trainer\.max_steps: 20 -> 40"):
        decide(begun, tiny("trainer.max_steps=40"))
    assert decide(begun, tiny("trainer.max_steps=40"), "force").action == "resume"


def test_data_that_changed_under_the_same_path_are_refused_unless_forced(begun: RunFolder) -> None:
    resume.check_data(begun, "abc", "auto")
    with pytest.raises(MinillmError, match="data have changed"):
        resume.check_data(begun, "xyz", "auto")
    resume.check_data(begun, "xyz", "force")


def test_the_data_are_compared_with_those_of_the_last_start(begun: RunFolder) -> None:
    begun.note_start(data="xyz")
    resume.check_data(begun, "xyz", "auto")
    with pytest.raises(MinillmError, match="data have changed"):
        resume.check_data(begun, "abc", "auto")
