"""What the tasks of a run are made of: its held-out documents as haystack, and the files of questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from minillm.evaluation.documents import Documents
from minillm.evaluation.ruler.haystacks import Corpus
from minillm.evaluation.ruler.qa import read_hotpotqa, read_squad
from minillm.evaluation.ruler.task import Materials
from minillm.evaluation.settings import RulerSettings

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer


def gather(documents: Documents, tokenizer: Tokenizer, settings: RulerSettings) -> tuple[Materials, dict[str, Any]]:
    """The materials, and the facts by which a result made from them is known again.

    Raises:
        MinillmError: a file of questions that cannot be read.
    """
    corpus = Corpus(tokenizer.decode(ids[1:]) for ids in documents.ids)
    questions = {}
    if settings.squad is not None and "qa_1" in settings.tasks:
        questions["qa_1"] = read_squad(settings.squad)
    if settings.hotpotqa is not None and "qa_2" in settings.tasks:
        questions["qa_2"] = read_hotpotqa(settings.hotpotqa)
    facts = {
        "source": documents.source,
        "documents_digest": documents.digest(list(range(len(documents.ids)))),
        "sentences": len(corpus.sentences),
        "questions": {task: {"file": q.source, "digest": q.digest} for task, q in questions.items()},
    }
    return Materials(corpus, questions), facts
