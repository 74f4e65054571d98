"""Who computes on which cores: the model first.

torch on a CPU shares a loop out to a pool of threads, one pool for each thread that calls it. The
pool waits for its next loop by spinning, which is fast; but when all pools together have more
threads than the machine has cores, the runtime (libgomp) sends them to sleep after every loop. A
second pool that once copied a few pixels so costs the model a third of its speed. Therefore only
the model's threads may have pools, which together have no more threads than there are cores, and
photos are decoded in processes without torch.
"""

from __future__ import annotations

import torch

__all__ = ["share_cores", "take_no_cores"]


def take_no_cores() -> int:
    """Keep the calling thread from having a pool; returns how many threads one would have had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def share_cores(threads: int, among: int) -> None:
    """Let the calling thread have its part of so many threads, among those that compute now."""
    torch.set_num_threads(max(1, threads // among))
