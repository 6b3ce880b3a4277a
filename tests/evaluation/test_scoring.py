"""Token NLLs of windows: right, in float32, each window read once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from minillm.errors import PositionUndefined
from minillm.evaluation import scoring
from minillm.evaluation.scoring import score_windows, token_nll
from minillm.evaluation.windows import Window


@pytest.mark.bug("B116")
def test_the_loss_of_bf16_logits_is_that_of_float32_arithmetic_on_them() -> None:
    logits = (4 * torch.randn(64, 1000)).to(torch.bfloat16)
    targets = torch.randint(1000, (64,))
    nll = token_nll(logits[None], targets[None])[0]
    exact = -torch.log_softmax(logits.double(), dim=-1)[torch.arange(64), targets]
    assert nll.dtype == torch.float32
    assert (nll.double() - exact).abs().max() < 1e-4
    assert nll.mean().item() * 16 % 1 != 0


@pytest.mark.bug("B116")
def test_a_model_that_computes_in_bf16_has_its_head_and_softmax_in_float32(make_documents: Any) -> None:
    class Half:
        def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.ones(*tokens.shape, 4, dtype=torch.bfloat16)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            assert hidden.dtype == torch.float32
            assert not torch.is_autocast_enabled("cpu")
            return hidden @ torch.randn(4, 11, generator=torch.Generator().manual_seed(0))

    (nll,) = score_windows(Half(), make_documents([20]), [Window(0, 0, 19)], precision="bf16").values()
    assert nll is not None
    assert nll.dtype == np.float32


def test_every_prediction_gets_the_loss_of_its_own_target(blind: Any, make_documents: Any) -> None:
    documents = make_documents([40, 50])
    windows = [Window(0, 3, 16), Window(1, 0, 49), Window(1, 33, 16)]
    found = score_windows(blind, documents, windows)
    for window in windows:
        expected = blind.nll(documents[window.document])[window.start : window.start + window.length]
        np.testing.assert_allclose(found[window], expected, rtol=1e-5)


@pytest.mark.parametrize("batch_tokens", [1, 40, 10_000], ids=["one by one", "small batches", "all at once"])
def test_the_size_of_batches_changes_nothing(batch_tokens: int, blind: Any, make_documents: Any) -> None:
    documents = make_documents([60])
    windows = [Window(0, start, 16) for start in range(0, 40, 4)]
    found = score_windows(blind, documents, windows, batch_tokens=batch_tokens)
    for window in windows:
        np.testing.assert_array_equal(found[window], score_windows(blind, documents, [window])[window])


def test_slicing_the_head_changes_nothing(blind: Any, make_documents: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    documents, windows = make_documents([60]), [Window(0, start, 16) for start in (0, 16, 32)]
    whole = score_windows(blind, documents, windows)
    monkeypatch.setattr(scoring, "SLICE", 7)
    sliced = score_windows(blind, documents, windows)
    for window in windows:
        np.testing.assert_array_equal(sliced[window], whole[window])


def test_a_window_that_several_ask_for_is_read_once(recorder: Any, make_documents: Any) -> None:
    score_windows(recorder, make_documents([60]), [Window(0, 0, 16), Window(0, 16, 16), Window(0, 0, 16)])
    assert len(recorder.fed) == 2


def test_a_length_at_which_the_model_is_not_defined_gives_none_there_only(blind: Any, make_documents: Any) -> None:
    class Table:
        calls = 0

        def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
            Table.calls += 1
            if tokens.shape[1] > 16:
                raise PositionUndefined("beyond the table")
            return blind.hidden(tokens)

        def logits(self, hidden: torch.Tensor) -> torch.Tensor:
            return hidden

    windows = [Window(0, 0, 8), Window(0, 0, 16), Window(0, 0, 32), Window(0, 0, 48)]
    found = score_windows(Table(), make_documents([60]), windows)
    assert [found[w] is None for w in windows] == [False, False, True, True]
    assert Table.calls == 3, "longer windows need not be tried"


def test_an_error_of_another_kind_is_not_swallowed(make_documents: Any) -> None:
    class Broken:
        def hidden(self, tokens: torch.Tensor) -> torch.Tensor:
            raise RuntimeError("a bug")

        logits: Callable[..., torch.Tensor]

    with pytest.raises(RuntimeError, match="a bug"):
        score_windows(Broken(), make_documents([60]), [Window(0, 0, 8)])


def test_a_window_beyond_its_document_is_refused(blind: Any, make_documents: Any) -> None:
    with pytest.raises(IndexError, match="does not fit"):
        score_windows(blind, make_documents([20]), [Window(0, 4, 16)])


def test_progress_counts_the_tokens_that_were_read(blind: Any, make_documents: Any) -> None:
    seen: list[int] = []
    score_windows(
        blind, make_documents([60]), [Window(0, 0, 8), Window(0, 8, 8), Window(0, 0, 32)], progress=seen.append
    )
    assert sum(seen) == 48
