"""Ctrl-C and SIGTERM: heard between two steps, so that a state can be saved first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["SIGNALS", "Interrupts"]

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""That ask for the end of a run."""


class Interrupts:
    """Notes the first signal where a block asks for that; any other ends the process."""

    def __init__(self) -> None:
        self.asked = False
        self._waiting = False

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Listen until the block ends. Elsewhere than in the main thread nothing is changed."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    @contextmanager
    def deferred(self) -> Iterator[None]:
        """Note signals in `asked`, for the block to look at, instead of ending it."""
        self._waiting = True
        try:
            yield
        finally:
            self._waiting = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._waiting or self.asked:  # a second one does not wait
            raise KeyboardInterrupt
        self.asked = True
