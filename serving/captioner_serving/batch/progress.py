"""Progress of a run on standard error."""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

from tqdm import tqdm

from captioner.closing import Closing
from captioner.shared.files import digest
from captioner.shared.text import in_a_line, printable
from captioner_serving.batch.config import Shard
from captioner_serving.batch.inputs.sources import Inputs

_LOG_SECONDS = 60.0  # between lines in a log


class ProgressBar(Closing):
    """A bar of tqdm; a context manager. Failures are printed even if `quiet`."""

    def __init__(self, *, quiet: bool, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._errors = 0
        # Ctrl-C must not interrupt the creation of the lock.
        tqdm.get_lock()  # type: ignore[no-untyped-call]
        self._is_terminal = self._stream.isatty()
        wait = 0.1 if self._is_terminal else _LOG_SECONDS
        self._bar: tqdm[Any] = tqdm(
            unit=" photos", file=self._stream, smoothing=0.1, dynamic_ncols=True, disable=quiet,
            delay=wait, mininterval=wait, maxinterval=max(wait, 10.0),
        )  # fmt: skip

    def close(self) -> None:
        """Close the bar."""
        self._bar.close()

    def count(self, inputs: Inputs, shard: Shard | None, *, done: int) -> None:
        """Count the photos in a thread, for the time left; `done` were finished before."""

        def work() -> None:
            total = -done
            try:
                for photo in inputs.photos():
                    total += shard is None or digest(photo.name) in shard
            except Exception:
                return  # the run will raise the same error
            self._bar.total = max(0, total)

        if not self._bar.disable and inputs.countable:
            threading.Thread(target=work, name="counting", daemon=True).start()

    def update(self, record: dict[str, Any]) -> None:
        """Count a record, and print its error."""
        if "error" in record:
            self._errors += 1
            self._print(in_a_line(f"captioner: {record['error']['detail']}"))
            self._bar.set_postfix(errors=self._errors, refresh=False)
        self._bar.update()

    def say(self, text: str) -> None:
        """Print lines above the bar, unless quiet."""
        if not self._bar.disable:
            self._print(text)

    def _print(self, text: str) -> None:
        if self._is_terminal:
            tqdm.write(printable(text), file=self._stream)
        else:  # tqdm would draw the bar again
            print(printable(text), file=self._stream, flush=True)
