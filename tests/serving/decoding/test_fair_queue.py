"""Clients take turns; a pool of threads serves them; a budget is given out in order."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from captioner_serving.decoding import fair_queue
from captioner_serving.decoding.fair_queue import Budget, FairQueue, FairThreads
from tests.properties import FEW


def put_all(queue: FairQueue[str], **clients: int) -> None:
    for client, count in clients.items():
        for number in range(count):
            assert queue.put(f"{client}{number}", client)


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


def test_a_heavy_client_is_served_when_its_use_has_decayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without another event in the queue.

    A single worker and the batch, which has no name, never wait; ten seconds are not heavy.
    """
    now = [0.0]
    monkeypatch.setattr(fair_queue.time, "monotonic", lambda: now[0])
    queue: FairQueue[str] = FairQueue(2)
    queue.done("slow", 20.0)
    put_all(queue, slow=2)
    queue.take()
    threading.Timer(0.1, lambda: now.__setitem__(0, 61.0)).start()  # half of the use is forgotten
    assert queue.take() == ("slow1", "slow")
    for workers, client, seconds in ((1, "slow", 20.0), (2, "", 20.0), (2, "light", 10.0)):
        queue = FairQueue(workers)
        queue.done(client, seconds)
        for item in ("running", "next"):
            queue.put(item, client)
        queue.start("running", client)
        assert queue.take() == ("next", client)


def test_items_are_listed_in_the_order_of_their_turns() -> None:
    queue: FairQueue[str] = FairQueue(1)
    queue.done("b", 5.0)
    put_all(queue, b=3, a=3)
    assert queue.in_order() == ["a0", "b0", "a1", "b1", "a2", "b2"]
    queue.start("b1", "b")
    assert queue.in_order() == ["a0", "a1", "b0", "a2", "b2"]  # one of b's runs
    queue.start("b0", "b")
    assert queue.in_order() == ["a0", "a1", "a2", "b2"]


def test_the_use_of_many_clients_is_forgotten_from_the_least(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fair_queue, "_CLIENTS", 2)
    queue: FairQueue[str] = FairQueue(1)
    for client, seconds in {"a": 4.5, "b": 1.0, "c": 3.0}.items():
        queue.done(client, seconds)
    queue.done("b", 4.0)  # its 1.0 is forgotten, and now the use of c
    put_all(queue, a=1, b=1, c=1)
    assert queue.in_order() == ["c0", "b0", "a0"]


def test_a_pool_ends_after_its_tasks_and_skips_those_cancelled_before_their_turn() -> None:
    done: list[int] = []
    begin = threading.Event()

    def workers() -> list[bool]:
        return [thread.daemon for thread in threading.enumerate() if thread.name == "test"]

    with FairThreads([7, 8], name="test") as threads:
        with pytest.raises(ZeroDivisionError):
            threads.submit(lambda _: 1 / 0).result(timeout=300)
        assert workers() == [True, True]
        futures = [threads.submit(lambda _: begin.wait()) for _ in range(2)]
        futures += [threads.submit(lambda _, n=n: done.append(n)) for n in range(3)]
        assert futures[3].cancel()
        begin.set()
    assert sorted(done) == [0, 2] and workers() == []
    assert threads.submit(lambda value: value).cancelled()


def test_a_budget_is_given_out_in_the_order_of_requests() -> None:
    budget, order = Budget(10), []

    def hold(amount: int) -> None:
        with budget.hold(amount):
            order.append(amount)

    requests = [threading.Thread(target=hold, args=[amount]) for amount in (25, 2, 9, 1)]
    with budget.hold(8):
        for count, request in enumerate(requests, 1):
            request.start()
            while len(budget._waiting) < count:
                time.sleep(0.001)
        assert order == []  # though 2 are free, and the second asks for no more
    for request in requests:
        request.join()
    assert order[:2] == [25, 2] and sorted(order[2:]) == [1, 9]
    with budget.hold(10):
        order.append(10)
    assert order[-1] == 10
