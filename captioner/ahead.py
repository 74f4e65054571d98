"""Decode batches of images in threads, while the model works on the previous batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from captioner.device import cores

__all__ = ["decode_ahead"]

_MOST_THREADS = 8  # each may hold a photo of `max_pixels`

Image = TypeVar("Image")
Result = TypeVar("Result")


def decode_ahead(
    images: Iterable[Image], decode: Callable[[Image], Result], *, batch_size: int
) -> Generator[list[Result]]:
    """Yield the decoded images in order, `batch_size` at a time.

    At most two batches are in memory. If `images` raises an exception, it is raised again after all
    earlier images were yielded. If `decode` raises one, it is raised instead of the image's batch.
    """
    remaining = iter(images)
    pool = ThreadPoolExecutor(min(cores(), _MOST_THREADS), "decoding")
    tasks: deque[Future[Result]] = deque()
    is_open, problem = True, None
    try:
        while tasks or is_open:
            while is_open and len(tasks) < 2 * batch_size:
                try:
                    tasks.append(pool.submit(decode, next(remaining)))
                except StopIteration:  # not stored, because its traceback holds the images
                    is_open = False
                except Exception as error:
                    is_open, problem = False, error
            if tasks:
                yield [tasks.popleft().result() for _ in range(min(batch_size, len(tasks)))]
    finally:
        pool.shutdown(cancel_futures=True)
    if problem is not None:
        raise problem
