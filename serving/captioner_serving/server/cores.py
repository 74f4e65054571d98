"""Who computes on which cores: the model first.

torch on a CPU shares a loop out to a pool of threads, one pool for each thread that calls it. The
pool waits for its next loop by spinning, which is fast; but when all pools together have more
threads than the machine has cores, the runtime (libgomp) sends them to sleep after every loop. A
second pool that once copied a few pixels so costs the model a third of its speed. Therefore only
the model's thread may have a pool, and a decoder may use what the model leaves.
"""

from __future__ import annotations

import os
import sys
import threading

import torch

__all__ = ["give_cores", "stand_back", "take_no_cores"]


def take_no_cores() -> int:
    """Keep the calling thread from having a pool; returns how many threads one would have had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def give_cores(threads: int) -> None:
    """Let the calling thread have a pool of so many threads."""
    torch.set_num_threads(threads)


def stand_back() -> None:
    """Make the calling thread a decoder: no pool, and whatever time the model leaves.

    On one of the model's cores it would make all of the model's threads wait for one.
    """
    take_no_cores()
    if sys.platform == "linux":  # elsewhere a thread has no priority of its own
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
