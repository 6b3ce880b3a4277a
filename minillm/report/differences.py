"""What differs between the runs besides the plan, and so may be behind a difference of their wording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from minillm.report.collect import Subject


def differences(subjects: Sequence[Subject]) -> list[str]:
    """One sentence for each thing that a fair comparison holds equal and these runs do not."""
    asked: list[tuple[str, Callable[[Subject], Any]]] = [
        ("training data", lambda s: s.data or s.config.data.source),
        ("vocabulary size (losses per token are then not comparable)", lambda s: s.config.model.vocab_size),
        ("training length", lambda s: s.train_length),
        ("tokens trained on", _tokens),
        ("learning rate", lambda s: s.config.optim.lr),
        ("arithmetic of training", lambda s: s.evaluation.decided.get("precision")),
        ("compiled blocks in training", lambda s: s.evaluation.decided.get("compile", False)),
        ("device of training", lambda s: s.evaluation.decided.get("device")),
        ("version of torch in training", lambda s: s.evaluation.decided.get("torch")),
        ("depth", lambda s: s.config.model.num_hidden_layers),
        ("width", lambda s: s.config.model.hidden_size),
        ("block", lambda s: s.config.choices.get("block")),
        ("documents evaluated", lambda s: s.settings("length_perplexity").get("documents_digest")),
        ("documents of the attention suite", lambda s: s.settings("attention").get("documents_digest")),
        ("arithmetic of the evaluation", lambda s: s.settings("length_perplexity").get("precision")),
        ("machine of the speed measurements", lambda s: s.settings("cost").get("machine")),
        ("threads of the speed measurements", lambda s: s.settings("cost").get("threads")),
        ("explicit attention backend", lambda s: s.config.model.backend),
    ]
    found = []
    for what, ask in asked:
        values: dict[str, list[str]] = {}
        for subject in subjects:
            values.setdefault(str(ask(subject)), []).append(subject.label)
        if len(values) > 1:
            found.append(
                f"Not the same {what}: " + "; ".join(f"{v} ({', '.join(who)})" for v, who in values.items()) + "."
            )
    for subject in subjects:
        done, asked_steps = subject.evaluation.step, subject.config.trainer.max_steps
        if done < asked_steps:
            found.append(f"{subject.label} is not trained to its end: {done} of {asked_steps} steps.")
    return found


def _tokens(subject: Subject) -> int:
    data = subject.config.data
    return subject.evaluation.step * data.batch_size * data.seq_len
