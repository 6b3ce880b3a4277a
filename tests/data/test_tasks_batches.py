"""Task batches: update u is a pure function of (seed, u, row); and the data that `open_data` gives for a task."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

import minillm
from minillm.data import TaskData, open_data
from minillm.data.tasks import task_from_plain
from minillm.data.tasks.batches import TaskLoader, TaskValLoader
from minillm.errors import ConfigError

TASK = task_from_plain({"name": "needle"})


def batches(**changes: int) -> list[dict[str, torch.Tensor]]:
    settings = {"seq_len": 96, "batch_size": 4, "seed": 1, "num_batches": 6}
    return list(TaskLoader(TASK, **{**settings, **changes}))


def equal(left: list[dict[str, torch.Tensor]], right: list[dict[str, torch.Tensor]]) -> bool:
    return len(left) == len(right) and all(
        torch.equal(a[key], b[key]) for a, b in zip(left, right, strict=True) for key in a
    )


def test_the_ranks_shares_together_are_the_batch_of_one() -> None:
    whole = batches()
    shares = [batches(rank=rank, world_size=2) for rank in range(2)]
    together = [{key: torch.cat([a[key], b[key]]) for key in a} for a, b in zip(*shares, strict=True)]
    assert equal(whole, together)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_going_on_from_a_saved_place_gives_the_same_batches(num_workers: int) -> None:
    whole = batches()
    loader = TaskLoader(TASK, 96, 4, 1, num_batches=6, num_workers=num_workers)
    loader.load_state_dict({"next_update": 2})
    assert equal(list(loader), whole[2:])


def test_another_seed_gives_other_samples() -> None:
    assert not equal(batches(), batches(seed=2))


def test_the_length_of_a_batch_is_one_of_those_asked_for_each_as_likely() -> None:
    loader = TaskLoader(TASK, 96, 1, seed=1, num_batches=400)
    counts = Counter(batch["tokens"].shape[1] for batch in loader)
    assert sorted(counts) == [32, 48, 64, 96]
    assert all(70 <= count <= 130 for count in counts.values())


def test_what_follows_a_sample_in_its_row_has_no_target() -> None:
    copying = task_from_plain({"name": "copy"})
    (batch,) = TaskLoader(copying, 40, 8, seed=1, num_batches=1)
    assert batch["tokens"].shape == (8, 40)
    assert not batch["document_ids"].any(), "one document a row: no mask is needed behind a causal one"
    for row in range(8):
        sample = copying.sample(1, "train", 40, row)
        size = len(sample.tokens)
        assert batch["tokens"][row, :size].tolist() == sample.tokens.tolist()
        assert batch["targets"][row, :size].tolist() == sample.targets.tolist()
        assert (batch["targets"][row, size:] == -100).all()


def test_validation_is_the_same_set_again_and_again_however_it_is_split() -> None:
    loader = TaskValLoader(TASK, 96, 10, 4, 0, 1, None)
    first = list(loader)
    assert equal(first, list(loader))
    assert [int((b["targets"] != -100).any(dim=1).sum()) for b in first] == [4, 4, 2], "the last batch is filled up"
    shares = [list(TaskValLoader(TASK, 96, 10, 4, rank, 2, None)) for rank in range(2)]
    assert equal(first, [{k: torch.cat([a[k], b[k]]) for k in a} for a, b in zip(*shares, strict=True)])
    assert len(TaskValLoader(TASK, 96, 10, 4, 0, 1, limit=2)) == 2


def of(*overrides: str) -> TaskData:
    cfg = minillm.compose(["size.seq_len=96", *overrides], warn=False)
    data = open_data(cfg.data, cfg.tokenizer)
    assert isinstance(data, TaskData)
    return data


def test_the_tasks_words_are_the_tokenizer() -> None:
    data = of("data=needle")
    tokenizer = data.tokenizer
    assert tokenizer.vocab_size == 128
    assert tokenizer.encode("k3 v1 n0", bos=True) == [0, 5, 35, 66]
    assert tokenizer.decode([0, 5, 35, 66]) == "k3 v1 n0"
    assert minillm.data.Tokenizer.from_json(tokenizer.to_json()).bos_id == 0


def test_the_model_has_a_row_for_each_word() -> None:
    assert minillm.compose(["data=copy"], warn=False).model.vocab_size == 29


def test_the_fingerprint_follows_the_tasks_settings() -> None:
    prints = {of(*o).fingerprint for o in (["data=needle"], ["data=needle", "data.task.needles=3"], ["data=copy"])}
    assert len(prints) == 3
    assert of("data=needle").fingerprint == of("data=needle", "data.batch_size=8").fingerprint


def test_a_text_sample_is_a_problem_with_its_answer() -> None:
    prompt = of("data=needle").prompt(None, 64)
    assert prompt.ids[0] == 0
    assert prompt.new_tokens == 2
    assert prompt.greedy
    assert prompt.right is not None
    assert f"{prompt.shown.split()[-1]} {prompt.right}" in prompt.shown, "the pair stands in the prompt"


def test_a_given_prompt_is_in_the_tasks_words() -> None:
    assert of("data=copy").prompt("a b =", 3).ids == [0, 3, 4, 1]
    with pytest.raises(ConfigError, match="'The' is no word of the task copy"):
        of("data=copy").prompt("The", 3)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["data=needle", "tokenizer=bpe"], "tokenizer.source = 'train'"),
        (["tokenizer=task"], "tokenizer.source = 'task'"),
        (["data=needle", "tokenizer.vocab_size=300"], "tokenizer.vocab_size: 300"),
        (["data=needle", "+data.document_mask=false"], "data.document_mask"),
        (["data=needle", "+data.path=texts"], "data.path"),
        (["data=needle", "data.held_out=0.1"], "data.held_out: 0.1"),
        (["data=needle", "data.task=null"], "data.task: missing"),
        (["data=needle", "size.seq_len=60"], "data.seq_len = 60: batches of 20 tokens"),
        (["data=embedded", "+data.task={name:needle}"], "data.task"),
    ],
)
def test_what_does_not_go_with_a_task_is_refused(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        minillm.compose(["size.seq_len=96", *overrides], warn=False)
