"""Ctrl-C and SIGTERM: handled between two steps, so that a state can be saved first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that stop a run."""


class Interrupts:
    """Raises KeyboardInterrupt on a signal; inside `deferred`, only notes the first one.

    Attributes:
        requested: whether a signal was noted.
    """

    def __init__(self) -> None:
        self.requested = False
        self._deferred = False

    @contextmanager
    def handled(self) -> Iterator[None]:
        """Handle signals until the block ends; does nothing outside the main thread."""
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
        """Note the first signal in `requested` instead of raising; a second one raises."""
        self._deferred = True
        try:
            yield
        finally:
            self._deferred = False

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        if not self._deferred or self.requested:
            raise KeyboardInterrupt
        self.requested = True
