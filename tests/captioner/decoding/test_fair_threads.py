"""Whose picture is drawn next, and what becomes of work that fails or is not wanted any more."""

from __future__ import annotations

import threading
import time

import pytest

from captioner.decoding.turns import FairThreads


def test_a_client_with_much_work_keeps_nobody_waiting() -> None:
    order: list[str] = []
    taken, begin = threading.Event(), threading.Event()
    with FairThreads(1, name="test") as threads:
        first = threads.submit(lambda: taken.set() or begin.wait(), "many")
        waiting = [threads.submit(lambda: order.append("many"), "many") for _ in range(5)]
        waiting.append(threads.submit(lambda: order.append("few"), "few"))
        taken.wait()
        time.sleep(0.05)  # so that the first one has taken some time
        begin.set()
        for future in (first, *waiting):
            future.result(timeout=300)
    assert order == ["few"] + ["many"] * 5


def test_a_failure_is_the_future_s_and_the_threads_go_on() -> None:
    with FairThreads(1, name="test") as threads:
        with pytest.raises(ZeroDivisionError):
            threads.submit(lambda: 1 / 0).result(timeout=300)
        assert threads.submit(lambda: 7).result(timeout=300) == 7


def test_what_is_cancelled_before_its_turn_is_not_done() -> None:
    done: list[int] = []
    begin = threading.Event()
    with FairThreads(1, name="test") as threads:
        threads.submit(begin.wait)
        unwanted = threads.submit(lambda: done.append(1))
        assert unwanted.cancel()
        begin.set()
    assert not done
