"""Who computes on which cores: the model first.

torch on a CPU shares a loop out to a pool of threads, one pool for each thread that calls it. The
pool waits for its next loop by spinning, which is fast; but when all pools together have more
threads than the machine has cores, the runtime (libgomp) sends them to sleep after every loop. A
second pool that once copied a few pixels so costs the model a third of its speed. Therefore only
the model's thread may have a pool, and photos are decoded in processes without torch.
"""

from __future__ import annotations

import torch

__all__ = ["give_cores", "take_no_cores"]


def take_no_cores() -> int:
    """Keep the calling thread from having a pool; returns how many threads one would have had."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    return threads


def give_cores(threads: int) -> None:
    """Let the calling thread have a pool of so many threads."""
    torch.set_num_threads(threads)
