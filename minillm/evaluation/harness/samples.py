"""The documents of our harness tasks, and their scores: what the YAML files in tasks/ point at.

    documents(task="vt", pretrained="DIR", max_seq_lengths=[1024], num_samples=20)["test"][0]["input"]

Every sample is one of the suite `ruler`, for the tokenizer that the harness names. Needles lie in held-out documents of
the embedded corpus, or in those of `documents`. Lengths take turns, so that `--limit` leaves as many of each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.data.sources import HELD_OUT, EmbeddedSource
from minillm.data.tokenizer import Tokenizer
from minillm.errors import MinillmError
from minillm.evaluation.ruler.fit import Sample, Text, make
from minillm.evaluation.ruler.haystacks import Corpus
from minillm.evaluation.ruler.scoring import exact, string_match_all, word_match
from minillm.evaluation.ruler.suite import TASKS, rank_first
from minillm.evaluation.ruler.task import Draws, Materials, Unfit
from minillm.evaluation.settings import SHORTEST_RULER

if TYPE_CHECKING:
    from datasets import Dataset

NEEDED = 'give one that transformers can read: --model_args pretrained=DIR, or --metadata \'{"tokenizer": "DIR"}\''


def documents(
    task: str,
    max_gen_toks: int | None = None,
    tokenizer: str | None = None,
    pretrained: str | None = None,
    max_seq_lengths: Sequence[int] = (1024,),
    num_samples: int = 500,
    seed: int = 0,
    documents: str | None = None,
    **_: Any,
) -> dict[str, Dataset]:
    """The split `test` of a task, for `custom_dataset`.

    Args:
        task: one of the suite `ruler` (from `dataset_kwargs`), as all that follows from `metadata` or the model's
            arguments, of which those that mean nothing here are left alone.
        max_gen_toks: tokens that the generated form reserves; None reserves what the suite `ruler` does.
        max_seq_lengths: tokens of a prompt and its answer, start marker included.
        documents: file or folder of text to hide needles in.

    Raises:
        MinillmError: no tokenizer, or a length at which the task cannot be had.
    """
    from datasets import Dataset

    name = tokenizer or pretrained
    if not name:
        raise MinillmError(f"minillm's tasks have exact lengths in tokens, and no tokenizer is named: {NEEDED}.")
    short = [length for length in max_seq_lengths if length < SHORTEST_RULER]
    if short:
        raise MinillmError(f"max_seq_lengths = {list(max_seq_lengths)}: must be {SHORTEST_RULER} or more.")
    text, materials = _text(str(name)), _materials(documents)
    try:
        rows = [
            _document(make(TASKS[task], materials, text, length, seed, index, max_gen_toks), seed)
            for index in range(num_samples)
            for length in max_seq_lengths
        ]
    except Unfit as error:
        raise MinillmError(str(error)) from None
    return {"test": Dataset.from_list(rows)}


def _document(sample: Sample, seed: int) -> dict[str, Any]:
    # The right answer stands anywhere among the ten: the harness takes the first of equals for the chosen one.
    draws = Draws(seed, sample.task, sample.length, sample.index)
    place = draws.stream("place of the gold answer").integer(1 + len(sample.wrong))
    choices = list(sample.wrong)
    choices.insert(place, sample.references[sample.gold])
    return {
        "input": sample.text,
        "outputs": list(sample.references),
        "choices": choices,
        "gold": place,
        "max_length": sample.length,
        "index": sample.index,
    }


def score_generated(doc: Mapping[str, Any], results: Sequence[str]) -> dict[str, float]:
    """RULER's score and the two stricter ones, for `process_results`."""
    output, references = results[0], doc["outputs"]
    words = word_match(output, references)
    return {
        "score": string_match_all(output, references),
        "word_match": sum(words) / len(words),
        "exact": float(exact(output, references, any_reference=False)),
    }


def score_likelihood(doc: Mapping[str, Any], results: Sequence[tuple[float, bool]]) -> dict[str, float]:
    """Whether the right answer is the likeliest (shared among equals), and its log-probability in nats."""
    sums = [log_probability for log_probability, _ in results]
    gold = sums.pop(doc["gold"])
    return {"acc": rank_first([gold, *sums]), "gold_log_probability": gold}


@lru_cache(maxsize=4)
def _text(name: str) -> Text:
    if (Path(name) / "tokenizer.json").is_file():
        from minillm.hub.api import load_tokenizer

        return Text(load_tokenizer(name))
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(name)
    return Text(Tokenizer.from_json(theirs.backend_tokenizer.to_str(), theirs.bos_token or theirs.eos_token, name))


@lru_cache(maxsize=4)
def _materials(path: str | None) -> Materials:
    if path is None:
        return Materials(Corpus(d.text for d in EmbeddedSource().documents() if d.name in HELD_OUT))
    from minillm.data.files import FilesSource

    return Materials(Corpus(d.text for d in FilesSource(Path(path), "text").documents()))
