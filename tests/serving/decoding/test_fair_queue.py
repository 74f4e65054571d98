"""Whose photo is next: no client waits for all that another has sent; and who works for them."""

from __future__ import annotations

import threading

import pytest

from captioner_serving.decoding import fair_queue
from captioner_serving.decoding.fair_queue import FairQueue, FairThreads


def put_all(queue: FairQueue[str], **clients: int) -> None:
    for client, count in clients.items():
        for number in range(count):
            queue.put(f"{client}{number}", client)


def take(queue: FairQueue[str]) -> str:
    turn = queue.take()
    assert turn is not None
    queue.done(turn[1], 0.1)
    return turn[0]


def test_clients_take_turns_and_each_keeps_its_order() -> None:
    queue: FairQueue[str] = FairQueue(1)
    put_all(queue, a=4, b=2)
    taken = [take(queue) for _ in range(6)]
    assert sorted(taken[:4]) == ["a0", "a1", "b0", "b1"]
    assert [item for item in taken if item[0] == "a"] == ["a0", "a1", "a2", "a3"]


def test_who_has_taken_much_comes_last_and_leaves_a_worker_free() -> None:
    queue: FairQueue[str] = FairQueue(2)
    queue.done("slow", 20.0)
    put_all(queue, slow=3)
    assert queue.take() == ("slow0", "slow")  # nobody else is there
    put_all(queue, other=2)
    assert queue.take() == ("other0", "other")  # slow1 came before it
    queue.done("other", 0.1)
    assert queue.take() == ("other1", "other")
    queue.done("slow", 20.0)
    assert queue._next() is None  # other1 runs: one worker is free, and stays so
    queue.done("other", 0.1)
    assert queue.take() == ("slow1", "slow")


def test_what_was_taken_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: FairQueue[str] = FairQueue(2)
    queue.done("slow", 30.0)
    put_all(queue, slow=2)
    queue.take()
    now = fair_queue.time.monotonic()
    monkeypatch.setattr(fair_queue.time, "monotonic", lambda: now + 120)
    assert queue.take() == ("slow1", "slow")


def test_a_closed_queue_gives_what_is_left_and_ends() -> None:
    queue: FairQueue[str] = FairQueue(1)
    put_all(queue, a=1)
    queue.close()
    assert take(queue) == "a0"
    assert queue.take() is None


def test_a_failure_is_the_future_s_and_the_threads_go_on() -> None:
    with FairThreads([7], name="test") as threads:
        with pytest.raises(ZeroDivisionError):
            threads.submit(lambda _: 1 / 0).result(timeout=300)
        assert threads.submit(lambda value: value).result(timeout=300) == 7


def test_what_is_cancelled_before_its_turn_is_not_done() -> None:
    done: list[int] = []
    begin = threading.Event()
    with FairThreads([7], name="test") as threads:
        threads.submit(lambda _: begin.wait())
        unwanted = threads.submit(lambda _: done.append(1))
        assert unwanted.cancel()
        begin.set()
    assert not done
