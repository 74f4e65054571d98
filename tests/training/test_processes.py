"""Processes that wait for each other."""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch.distributed as dist

from captioner_training.distributed import start_processes
from tests.training.test_distributed import free_port

COLLECTIVES = ("all_gather_object", "all_reduce", "barrier", "broadcast", "broadcast_object_list")


def take_turns(rank: int, port: int, inside: Any) -> None:
    """Be one of two processes, and work slowly while the other waits.

    A process that waits inside a call of the process group gives up after ten or thirty minutes.
    """

    def counted(call: Callable[..., Any]) -> Callable[..., Any]:
        def counting(*arguments: Any, **options: Any) -> Any:
            with inside.get_lock():
                inside.value += 1
            try:
                return call(*arguments, **options)
            finally:
                with inside.get_lock():
                    inside.value -= 1

        return counting

    def work() -> int:
        time.sleep(0.3)
        assert inside.value == 0
        return rank

    os.environ |= {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    with start_processes("cpu") as processes:
        for name in COLLECTIVES:
            setattr(dist, name, counted(getattr(dist, name)))
        assert processes.main_first(work) == rank
        assert processes.main_alone(work) == (None if rank else 0)
        assert processes.gather(rank) == [0, 1]
    os._exit(0)  # without what pytest does at its end


@pytest.mark.skipif(sys.platform != "linux", reason="forks")
def test_slow_work_of_one_process_runs_into_no_timeout_of_the_others() -> None:
    context = multiprocessing.get_context("fork")
    inside, port = context.Value("i", 0), free_port()
    pair = [context.Process(target=take_turns, args=(rank, port, inside)) for rank in range(2)]
    for process in pair:
        process.start()
    for process in pair:
        process.join(60)
        process.kill()
    assert [process.exitcode for process in pair] == [0, 0]
