"""The first signal asks, the second kills, and everything is as before afterwards."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading

import pytest

from minillm.training import signals
from minillm.training.signals import StopSignals


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_the_first_signal_only_sets_a_flag(signum: int) -> None:
    with StopSignals() as stop:
        assert stop.received == 0
        os.kill(os.getpid(), signum)
        assert stop.received == signum


def test_a_launcher_that_passes_the_signal_on_at_once_is_no_second_signal() -> None:
    with StopSignals() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGINT


@pytest.mark.bug("B073")
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "SIGTERM"])
def test_a_second_signal_later_kills(monkeypatch: pytest.MonkeyPatch, signum: int) -> None:
    monkeypatch.setattr(signals, "SAME_SIGNAL_SECONDS", 0.0)

    def stubborn() -> None:
        with StopSignals():
            os.kill(os.getpid(), signum)
            os.kill(os.getpid(), signum)
            os._exit(0)

    child = multiprocessing.get_context("fork").Process(target=stubborn)
    child.start()
    child.join(30)
    assert child.exitcode == -signum


def test_handlers_set_over_ours_in_between_are_replaced_and_the_first_come_back() -> None:
    before = {number: signal.getsignal(number) for number in StopSignals.numbers}
    with StopSignals() as stop:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        stop.install()
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.received == signal.SIGTERM
    assert {number: signal.getsignal(number) for number in StopSignals.numbers} == before


def test_another_thread_trains_without_handlers() -> None:
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def train() -> None:
        with StopSignals() as stop:
            seen.append((stop.received, signal.getsignal(signal.SIGTERM)))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert seen == [(0, before)]
