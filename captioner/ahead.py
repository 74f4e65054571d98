"""Decode batches of images in threads, while the model works on the previous batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from math import gcd
from typing import TypeVar

from captioner.inference.device import cores

_MOST_THREADS = 8  # each may hold a photo of `max_pixels`

Image = TypeVar("Image")
Result = TypeVar("Result")


def decode_ahead(
    images: Iterable[Image], decode: Callable[[Image], Result], *, batch_size: int
) -> Generator[list[Result]]:
    """Yield the decoded images in order, `batch_size` at a time.

    Two batches are decoded ahead, but the first is yielded if it is decoded before a second one is
    read. If `images` raises an exception, it is raised again after all earlier images were yielded.
    If `decode` raises one, it is raised instead of the image's batch. `close` does not wait for
    images that are being decoded.
    """
    remaining, threads = iter(images), min(cores(), _MOST_THREADS)
    size = gcd(batch_size, batch_size // threads or 1)  # images per task
    pool = ThreadPoolExecutor(threads, "decoding")
    tasks: deque[Future[list[Result]]] = deque()
    is_open, is_first, problem = True, True, None

    def is_filled() -> bool:
        is_decoded = size * len(tasks) >= batch_size and tasks[batch_size // size - 1].done()
        return size * len(tasks) >= 2 * batch_size or (is_first and is_decoded)

    try:
        while tasks or is_open:
            while is_open and not is_filled():
                group: list[Image] = []
                try:
                    group.extend(islice(remaining, size))
                    is_open = len(group) == size
                except Exception as error:  # raised after the images before it are yielded
                    is_open, problem = False, error
                if group:
                    tasks.append(pool.submit(_decode_all, decode, group))
            batch: list[Result] = []
            while tasks and len(batch) < batch_size:
                batch += tasks.popleft().result()
            is_first = False
            if batch:
                yield batch
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    if problem is not None:
        raise problem


def _decode_all(decode: Callable[[Image], Result], images: list[Image]) -> list[Result]:
    return [decode(image) for image in images]
