"""An interpreter in which the automatic precision does not depend on the processor.

Processes of tests run this at their start, because its folder is on their PYTHONPATH.
"""

from __future__ import annotations

import functools
import os

VARIABLE = "CAPTIONER_TESTS_PRECISION"
FLAGS = {"float32": frozenset[str](), "bfloat16": frozenset({"amx_bf16"})}


def force(precision: str) -> None:
    """Make "auto" mean `precision` in this process and in those that it starts."""
    from captioner.inference import device

    @functools.wraps(device._cpu_flags)  # a test of the function itself unwraps it
    def flags() -> set[str]:
        return set(FLAGS[precision])

    os.environ[VARIABLE] = precision
    device._cpu_flags = flags


if VARIABLE in os.environ:
    force(os.environ[VARIABLE])
