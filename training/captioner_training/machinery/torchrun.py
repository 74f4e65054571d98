"""What a process that torchrun started knows without torch: whether it speaks for all."""

from __future__ import annotations

import os
import time
from typing import NoReturn

__all__ = ["leave_the_word", "speaks"]

_SECONDS = 10


def speaks() -> bool:
    """Whether this process is the one that says what is wrong; without torchrun it is."""
    return os.environ.get("RANK", "0") == "0"


def leave_the_word() -> NoReturn:
    """End without a word, and after the process that speaks.

    torchrun ends all processes as soon as one has failed: if it were this one, the other might not
    get to say why.
    """
    time.sleep(_SECONDS)
    raise SystemExit(1)
