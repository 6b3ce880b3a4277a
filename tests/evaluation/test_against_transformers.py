"""The suite's losses against those that transformers' own models of the same weights give for the same windows.

Windows are cut here by a loop of their own and scored by transformers' `labels`, whose loss is the mean of the model's
own cross-entropy: nothing of the suite is used to check it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

import minillm
from minillm.evaluation.length_perplexity import measure
from minillm.evaluation.settings import LengthPerplexitySettings
from tests.hub.models import TRAINED, VOCAB, WINDOW, theirs

pytest.importorskip("transformers")

LENGTHS = [TRAINED, 2 * TRAINED, 4 * TRAINED]
STRIDE = TRAINED // 4
SETTINGS = LengthPerplexitySettings(lengths=(1, 2, 4), stride=STRIDE, targets=11)
SIZES = [211, 260, 333]


@pytest.fixture(scope="module", params=["llama", "gemma3", "olmo3", "cohere2"])
def case(request: pytest.FixtureRequest) -> tuple[Any, list[np.ndarray], list[dict[str, Any]]]:
    """Their model, documents, and the suite's rows for ours."""
    model = theirs(request.param)
    random = np.random.default_rng(5)
    documents = [random.integers(0, VOCAB, size) for size in SIZES]
    return model, documents, measure(minillm.hub.from_transformers(model), documents, TRAINED, SETTINGS)


@torch.no_grad()
def their_nll(model: Any, document: np.ndarray, start: int, length: int, scored: int) -> float:
    """Sum of nats of the last `scored` of `length` predictions from input `start` on, by transformers' labels."""
    ids = torch.from_numpy(document[start : start + length + 1])[None]
    labels = ids.clone()
    labels[0, : length + 1 - scored] = -100
    return float(model(input_ids=ids, labels=labels).loss) * scored


def value(rows: list[dict[str, Any]], protocol: str, length: int) -> tuple[float, int]:
    (row,) = [r for r in rows if (r["protocol"], r["metric"], r["length"]) == (protocol, "nll", length)]
    return row["value"], row["n"]


def limit(size: int) -> int:
    """Predictions that are read of a document: 1.5 times the longest length, or all in whole training lengths."""
    return min(size - 1, 6 * TRAINED) // TRAINED * TRAINED


@pytest.mark.parametrize("length", LENGTHS)
def test_strided_loss_is_theirs_over_the_same_windows(case: Any, length: int) -> None:
    model, documents, rows = case
    assert length > WINDOW, "the windows of sliding layers are passed"
    nats = predictions = 0.0
    for document in documents:
        end = length
        nats += their_nll(model, document, 0, length, length)
        while end < limit(len(document)):
            end += STRIDE
            nats += their_nll(model, document, end - length, length, STRIDE)
        predictions += limit(len(document))
    assert value(rows, "strided", length) == (pytest.approx(nats / predictions, abs=1e-5), predictions)


@pytest.mark.parametrize("length", LENGTHS)
def test_non_overlapping_loss_is_theirs_over_the_same_windows(case: Any, length: int) -> None:
    model, documents, rows = case
    nats = predictions = 0.0
    for document in documents:
        for start in range(0, limit(len(document)), length):
            size = min(length, limit(len(document)) - start)
            nats += their_nll(model, document, start, size, size)
        predictions += limit(len(document))
    assert value(rows, "non_overlapping", length) == (pytest.approx(nats / predictions, abs=1e-5), predictions)


@pytest.mark.parametrize("length", LENGTHS)
def test_the_loss_of_the_same_targets_is_theirs_with_that_context(case: Any, length: int) -> None:
    model, documents, rows = case
    nats = 0.0
    for document in documents:
        end = limit(len(document)) if limit(len(document)) > LENGTHS[-1] else len(document) - 1
        nats += their_nll(model, document, end - length, length, SETTINGS.targets or 0)
    expected = nats / (len(documents) * 11)
    assert value(rows, "same_target", length) == (pytest.approx(expected, abs=1e-5), len(documents) * 11)


def test_these_models_are_no_uniform_guess(case: Any) -> None:
    """Else equal losses would say little."""
    _, _, rows = case
    assert abs(value(rows, "strided", LENGTHS[-1])[0] - math.log(VOCAB)) > 0.01
