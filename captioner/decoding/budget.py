"""How many pixels may be under way at once, in all processes together."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["PixelBudget"]


class PixelBudget:
    """Lets photos in, in the order in which they come, as long as their pixels fit.

    Args:
        pixels: the total; a photo that has more is let in alone.

    """

    def __init__(self, pixels: int) -> None:
        self._total = self._free = pixels
        self._changed = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def hold(self, pixels: int) -> Iterator[None]:
        """Wait until there is room for so many pixels, and keep it for as long as the block runs.

        First come, first served: many small photos cannot keep a large one out.
        """
        pixels = min(pixels, self._total)
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
            self._changed.wait_for(lambda: self._waiting[0] is ticket and self._free >= pixels)
            self._waiting.popleft()
            self._free -= pixels
            self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._free += pixels
                self._changed.notify_all()
