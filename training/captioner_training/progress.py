"""Show the progress of long tasks: a bar on a terminal, lines of text elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

_INTERVAL = 10.0  # seconds between two lines


@contextmanager
def show_progress(
    task: str, total: int, *, unit: str = "images", quiet: bool = False
) -> Iterator[Callable[[int], object]]:
    """Yield a function to call with the number of images (or other units) just finished.

    A terminal shows a bar. Other outputs get a line at the start, and one every ten seconds.
    """
    if quiet:
        yield lambda _: None
        return
    if sys.stderr.isatty():
        with tqdm(desc=task, unit=f" {unit}", total=total, leave=False) as bar:
            yield bar.update
        return
    done, printed_at = 0, time.monotonic()
    print(f"{task} {total:,} {unit}", file=sys.stderr, flush=True)

    def count(finished: int) -> None:
        nonlocal done, printed_at
        done += finished
        if time.monotonic() - printed_at > _INTERVAL and done < total:
            printed_at = time.monotonic()
            print(f"{task} {unit}: {done:,} of {total:,}", file=sys.stderr, flush=True)

    yield count
