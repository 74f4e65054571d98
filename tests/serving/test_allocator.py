"""How many arenas glibc makes for the threads of a process."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

from tests.launcher import environment

_COUNT = """
import ctypes, threading
from captioner_serving.allocator import bound_arenas
{call}
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
barrier = threading.Barrier(8)
def work():
    barrier.wait()
    libc.malloc(100)
    barrier.wait()
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
file = ctypes.c_void_p(libc.fopen(b"/dev/stdout", b"w"))
libc.malloc_info(0, file)
libc.fclose(file)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_info"), reason="glibc's allocator only")
def test_threads_share_so_many_arenas() -> None:
    unbound = {key: one for key, one in environment().items() if key != "MALLOC_ARENA_MAX"}

    def arenas(call: str) -> int:
        command = [sys.executable, "-c", _COUNT.format(call=call)]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=unbound)
        return done.stdout.count("<heap nr=")

    assert arenas("bound_arenas(2)") <= 2 < arenas("")
