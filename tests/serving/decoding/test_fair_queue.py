"""Whose photo is next: no client waits for all that another has sent; and who works for them."""

from __future__ import annotations

import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioner_serving.decoding import fair_queue
from captioner_serving.decoding.fair_queue import FairQueue, FairThreads
from tests.properties import FEW


def put_all(queue: FairQueue[str], **clients: int) -> None:
    for client, count in clients.items():
        for number in range(count):
            queue.put(f"{client}{number}", client)


def take(queue: FairQueue[str]) -> str:
    turn = queue.take()
    assert turn is not None
    queue.done(turn[1], 0.1)
    return turn[0]


SECONDS = st.lists(st.sampled_from([0.25, 1.0, 8.0]), max_size=6)


@FEW
@given(costs=st.dictionaries(st.sampled_from("abcd"), SECONDS), arrival=st.randoms())
def test_clients_take_turns_and_each_keeps_its_order(costs, arrival) -> None:
    """Next is a client that has used the least time of those that wait."""
    sent = [(client, number) for client, items in costs.items() for number in range(len(items))]
    arrival.shuffle(sent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fair_queue.time, "monotonic", lambda: 0.0)  # nothing is forgotten
        queue: FairQueue[tuple[str, int]] = FairQueue(1)
        for client, number in sent:
            queue.put((client, number), client)
        taken, used = [], dict.fromkeys(costs, 0.0)
        for _ in sent:
            waiting = {client for client, _ in set(sent) - set(taken)}
            turn = queue.take()
            assert turn is not None
            item, client = turn
            assert used[client] == min(used[other] for other in waiting)
            queue.done(client, costs[client][item[1]])
            used[client] += costs[client][item[1]]
            taken.append(item)
    for client in costs:
        own = [item for item in taken if item[0] == client]
        assert own == [item for item in sent if item[0] == client]


def test_heavy_clients_come_last_and_leave_a_worker_free() -> None:
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


def test_recorded_use_decays(monkeypatch: pytest.MonkeyPatch) -> None:
    queue: FairQueue[str] = FairQueue(2)
    queue.done("slow", 30.0)
    put_all(queue, slow=2)
    queue.take()
    now = fair_queue.time.monotonic()
    monkeypatch.setattr(fair_queue.time, "monotonic", lambda: now + 120)
    assert queue.take() == ("slow1", "slow")


def test_a_closed_queue_returns_waiting_items_and_ends() -> None:
    queue: FairQueue[str] = FairQueue(1)
    put_all(queue, a=1)
    queue.close()
    assert take(queue) == "a0"
    assert queue.take() is None


def test_a_failure_is_raised_by_the_future_and_threads_continue() -> None:
    with FairThreads([7], name="test") as threads:
        with pytest.raises(ZeroDivisionError):
            threads.submit(lambda _: 1 / 0).result(timeout=300)
        assert threads.submit(lambda value: value).result(timeout=300) == 7


def test_a_task_cancelled_before_its_turn_is_skipped() -> None:
    done: list[int] = []
    begin = threading.Event()
    with FairThreads([7], name="test") as threads:
        threads.submit(lambda _: begin.wait())
        unwanted = threads.submit(lambda _: done.append(1))
        assert unwanted.cancel()
        begin.set()
    assert not done
