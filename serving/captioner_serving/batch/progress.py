"""Progress of a run on standard error: a bar on a terminal, otherwise a line per minute."""

from __future__ import annotations

import math
import sys
import threading
import time
from typing import Any, TextIO

from tqdm import tqdm

from captioner.closing import Closing
from captioner.files import digest
from captioner.terminal import in_a_line, printable
from captioner_serving.batch.config import Shard
from captioner_serving.batch.inputs.sources import Inputs

_LINE_SECONDS = 60.0


class ProgressBar(Closing):
    """Progress on standard error; a context manager. Failures are printed even if `quiet`.

    A thread counts the photos during the run; the time left appears when it has finished.
    """

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._bar: tqdm[Any] | None = None
        self._total: int | None = None
        self._done = self._errors = 0
        self._started = time.monotonic()
        self._printed = -math.inf  # when the last line was printed
        self._closed = threading.Event()
        # Ctrl-C must not interrupt the creation of the lock.
        tqdm.get_lock()  # type: ignore[no-untyped-call]
        if not quiet and self._stream.isatty():
            self._bar = tqdm(unit=" photos", file=self._stream, smoothing=0.1, dynamic_ncols=True)

    def close(self) -> None:
        """Stop counting and close the bar."""
        self._closed.set()
        if self._bar is not None:
            self._bar.close()

    def count(self, inputs: Inputs, shard: Shard | None, *, done: int) -> None:
        """Count the photos of a shard in a thread, without the `done` photos of earlier runs."""
        if self._quiet or not inputs.countable:
            return

        def work() -> None:
            total = 0
            try:
                for photo in inputs.photos():
                    if self._closed.is_set():
                        return
                    total += shard is None or digest(photo.name) in shard
            except Exception:
                return  # the run will raise the same error
            self._total = max(0, total - done)

        threading.Thread(target=work, name="counting", daemon=True).start()

    def update(self, record: dict[str, Any]) -> None:
        """Count a record, and print its error."""
        self._done += 1
        if "error" in record:
            self._errors += 1
            self._say(in_a_line(f"captioner: {record['error']['detail']}"))
        if self._bar is not None:
            if self._total is not None and self._bar.total is None:
                self._bar.total = self._total
            if self._errors:
                self._bar.set_postfix(errors=self._errors, refresh=False)
            self._bar.update()
        elif not self._quiet and time.monotonic() - self._printed >= _LINE_SECONDS:
            self._printed = time.monotonic()
            self.say(self._line())

    def say(self, text: str) -> None:
        """Print lines above the bar, unless quiet."""
        if not self._quiet:
            self._say(text)

    def _say(self, text: str) -> None:
        tqdm.write(printable(text), file=self._stream)

    def _line(self) -> str:
        rate = self._done / (time.monotonic() - self._started)
        of, left = "", ""
        if self._total is not None:
            # Photos of an earlier run were subtracted, and may no longer be inputs.
            total = max(self._total, self._done)
            of = f" of {total:,}"
            left = f", {duration((total - self._done) / rate)} left"
        failed = f", {self._errors:,} failed" if self._errors else ""
        noun = "photo" if self._done == 1 and not of else "photos"
        return f"{self._done:,}{of} {noun}, {rate:.1f} per second{left}{failed}"


def duration(seconds: float) -> str:
    """Format a duration.

    >>> duration(7384)
    '2 h 3 min'
    """
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
