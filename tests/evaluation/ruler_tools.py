"""Tokenizers, files of questions, and a reader that solves every task of the suite `ruler` from its text alone."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer as Raw
from tokenizers import decoders, models, pre_tokenizers, trainers

from minillm.data.tokenizer import Tokenizer
from minillm.evaluation.ruler.fit import Sample
from minillm.evaluation.ruler.likelihood import Likelihood
from minillm.evaluation.ruler.words import ADJECTIVES, COUNTED, NOUNS

TEXT = (
    "The union of the states shall stand, as it stood before. We met Mr. Lee by the river; he said (and we believed "
    "him) that no tariff would pass! Was it so? Nobody asked again. The council sent its answer to all the people.\n\n"
    "In the spring a second letter came from the sea. It spoke of war and of peace, and of the long road home."
)
WORDS = " ".join((*ADJECTIVES, *NOUNS, *COUNTED, TEXT, "The secret number code of what is are this which word list"))
FRAME = "What are the secret numbers of? The secret code is VAR have the most common words. They are Question: Answer:"


def byte_level(vocab_size: int = 4096) -> Tokenizer:
    """Of the project's own kind."""
    return Tokenizer.train([WORDS, TEXT, FRAME] * 3, vocab_size)


def with_spaces_as_marks() -> Tokenizer:
    """Another kind: words begin with a mark for their space, digits stand alone, new lines are tokens."""
    raw = Raw(models.BPE(byte_fallback=True, unk_token=None))
    raw.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="never"), pre_tokenizers.Digits(individual_digits=True)]
    )
    raw.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])
    bytes_ = [f"<0x{i:02X}>" for i in range(256)]
    raw.train_from_iterator(
        [WORDS, TEXT, FRAME, "0123456789 abcdefghijklmnopqrstuvwxyz ABCDEFGHIJKLMNOPQRSTUVWXYZ . , ? ! : ; - = ' ( )"]
        * 3,
        trainers.BpeTrainer(vocab_size=3000, special_tokens=["<s>", *bytes_], show_progress=False),
    )
    return Tokenizer(raw, "<s>")


def without_digits() -> Tokenizer:
    """Whole words, and nothing else."""
    words = {word: i for i, word in enumerate(["<s>", "[UNK]", *dict.fromkeys((WORDS + FRAME).split())])}
    raw = Raw(models.WordLevel(words, unk_token="[UNK]"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    return Tokenizer(raw, "<s>")


PLACES = ["Arden", "Bexley", "Corvo", "Dunmore", "Elst", "Farwell", "Gant", "Holm", "Ister", "Jarrow", "Kells", "Lund"]


def squad_file(folder: Path) -> Path:
    """Twelve questions in two articles."""
    paragraphs = [
        {
            "context": f"The town of {place} lies in the north. Its mill was built in {1700 + i} by two weavers.",
            "qas": [
                {
                    "question": f"When was the mill of {place} built?",
                    "answers": [{"text": str(1700 + i), "answer_start": 0}, {"text": f"in {1700 + i}"}],
                    "is_impossible": False,
                },
                {"question": f"Who sold {place}?", "answers": [], "is_impossible": True},
            ],
        }
        for i, place in enumerate(PLACES)
    ]
    articles = [{"title": "a", "paragraphs": paragraphs[:6]}, {"title": "b", "paragraphs": paragraphs[6:]}]
    path = folder / "squad.json"
    path.write_text(json.dumps({"version": "v2.0", "data": articles}))
    return path


def hotpotqa_file(folder: Path) -> Path:
    """As many questions, each with two paragraphs that matter and two that do not."""
    asked = []
    for i, place in enumerate(PLACES):
        after = PLACES[(i + 1) % len(PLACES)]
        context = [
            [f"{place} mill", [f"The mill of {place} stands in the valley of {after}."]],
            [f"Valley of {after}", [f"The valley of {after} has a river.", f" Its river is called water {i}x{i}."]],
            [f"Oak {i}", [f"An oak of {60 + i} years."]],
            [f"Elm {i}", [f"An elm of {70 + i} years, near the road."]],
        ]
        facts = [[f"{place} mill", 0], [f"Valley of {after}", 1]]
        question = f"Which river flows by the mill of {place}?"
        asked.append({"question": question, "answer": f"water {i}x{i}", "context": context, "supporting_facts": facts})
    path = folder / "hotpot.json"
    path.write_text(json.dumps(asked))
    return path


def solve(task: str, text: str) -> list[str]:
    """What the text says, read as a person would; in the order of the question."""
    if task.startswith("niah"):
        (question,) = re.findall(r"What (?:is|are) the secret (?:number|code)s? of (.*?)\?", text)
        said = re.findall(r"The secret (?:number|code) of (\S+) is (\S+)\.", text)
        return [value for name in re.split(r", | and ", question) for key, value in said if key == name]
    if task == "vt":
        value = re.findall(r"have the value (\d+)\?", text)[-1]
        known = [v for v, _ in re.findall(rf"VAR (\w+) = ({value})\.", text)]
        for name, source in re.findall(r"VAR (\w+) = VAR (\w+)\.", text):
            known += [name] * (source in known)
        return known
    if task == "cwe":
        counts = Counter(re.findall(r"\d+\. (\w+)", text.split("\n\n")[-1]))
        return [word for word, _ in counts.most_common(10)]
    if task == "fwe":
        counts = Counter(word for word in text.split("\n\n")[1].split() if word != "...")
        return [word for word, _ in counts.most_common(3)]
    if task == "qa_1":
        return re.findall(rf"town of {text.split('mill of ')[-1].split(' ')[0]} lies.*? built (in \d+)", text)
    (valley,) = re.findall(
        rf"The mill of {text.split('mill of ')[-1].split('?')[0]} stands in the valley of (\w+)", text
    )
    return re.findall(rf"valley of {valley} has a river. Its river is called (water \w+)", text)


class Reader:
    """Solves by `solve`, from the tokens that a model would be given."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def _answers(self, sample: Sample) -> list[str]:
        assert sample.ids[0] == self.tokenizer.bos_id
        assert self.tokenizer.bos_id not in sample.ids[1:]
        return solve(sample.task, self.tokenizer.decode(sample.ids[1:]))

    def complete(self, samples: Sequence[Sample]) -> list[str]:
        return [f" {', '.join(self._answers(sample))}. And so on" for sample in samples]

    def choose(self, sample: Sample) -> list[Likelihood]:
        answers = self._answers(sample)
        answers = answers[:1] if sample.task == "niah_multiquery" else answers
        known = {*answers, *(a.removeprefix("in ") for a in answers)}
        return [Likelihood(-1.0 if c in known else -9.0, 2) for c in (sample.references[sample.gold], *sample.wrong)]


class Guesser:
    """Knows how answers look, and nothing of the text."""

    def complete(self, samples: Sequence[Sample]) -> list[str]:
        return ["" for _ in samples]

    def choose(self, sample: Sample) -> list[Likelihood]:
        def fancy(word: str) -> float:
            return -float(int(hashlib.sha256(word.encode()).hexdigest()[:8], 16))

        return [Likelihood(fancy(c), 1) for c in (sample.references[sample.gold], *sample.wrong)]
