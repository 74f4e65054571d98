"""Original images to stored ones, in worker processes."""

from __future__ import annotations

import hashlib
import io
import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from itertools import islice
from typing import NamedTuple

from PIL import ExifTags, Image

from captioner.errors import DataError, ImageError
from captioner.readers import read_header
from captioner.vision.image import MAX_PIXELS, open_image
from captioner_training.prepare.manifest import ImageFormat
from captioner_training.prepare.places import Location, read_location

__all__ = ["ResizedImage", "resize_all", "store_image"]

_CHUNK = 16  # images a task: a worker waits for nothing, and memory stays small


class ResizedImage(NamedTuple):
    """An image as it goes into a shard, or why it does not."""

    jpeg: bytes
    width: int  # of the original, in pixels, as a viewer sees it
    height: int
    sha256: str  # of the original's bytes
    problem: str | None = None


def resize_all(
    images: Iterable[tuple[str, Location]], image_format: ImageFormat, *, workers: int
) -> Generator[ResizedImage]:
    """Resize images (file name, location) in worker processes; results come in order.

    A few chunks a worker are under way at a time, so that memory does not grow with the data set.
    One worker is this process.

    Raises:
        DataError: a worker process was killed, most likely because memory ran out.

    """
    if workers == 1:  # a process of its own takes longer to start than a small data set
        yield from (store_image(name, location, image_format) for name, location in images)
        return
    chunks = _chunks(images)
    context = multiprocessing.get_context("spawn")  # tqdm has a thread, which fork would copy
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    under_way: deque[Future[list[ResizedImage]]] = deque()
    try:
        for chunk in islice(chunks, 3 * workers):
            under_way.append(pool.submit(_store_chunk, chunk, image_format))
        while under_way:
            yield from under_way.popleft().result()
            for chunk in islice(chunks, 1):
                under_way.append(pool.submit(_store_chunk, chunk, image_format))
    except BrokenProcessPool as error:
        raise DataError(
            "a process that reads images was killed, perhaps because memory ran out: run the same "
            "command again with fewer --workers; it goes on where it stopped"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _chunks(images: Iterable[tuple[str, Location]]) -> Iterator[Sequence[tuple[str, Location]]]:
    source = iter(images)
    while chunk := list(islice(source, _CHUNK)):
        yield chunk


def _start_worker() -> None:
    """Leave interrupts to the parent, and never outlive it: it may be killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As in captioner.cli: Pillow warns of odd metadata in photos that it reads all the same.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _store_chunk(
    chunk: Sequence[tuple[str, Location]], image_format: ImageFormat
) -> list[ResizedImage]:
    return [store_image(name, location, image_format) for name, location in chunk]


def store_image(name: str, location: Location, image_format: ImageFormat) -> ResizedImage:
    """Read, check and shrink one image."""
    try:
        data = read_location(location)
    except OSError as error:
        return ResizedImage(b"", 0, 0, "", f"{name} cannot be read: {error.strerror or error}")
    digest = hashlib.sha256(data).hexdigest()
    try:
        picture = open_image(data, at_least=image_format.short_side)
    except ImageError as error:
        return ResizedImage(b"", 0, 0, digest, error.detail.replace("the image", name, 1))
    width, height, plain = _measure(data, picture)
    if plain and min(width, height) <= image_format.short_side:
        return ResizedImage(data, width, height, digest)  # as it is: no second loss
    stored = io.BytesIO()
    _shrink(picture, image_format.short_side).save(
        stored, format="JPEG", quality=image_format.quality
    )
    return ResizedImage(stored.getvalue(), width, height, digest)


def _measure(data: bytes, picture: Image.Image) -> tuple[int, int, bool]:
    """Return the original's size, and whether it is an RGB JPEG without metadata to act on."""
    if not data.startswith(b"\xff\xd8\xff"):
        return *picture.size, False
    # `picture` may be a half or a quarter as large.
    header = read_header(io.BytesIO(data), "the image", MAX_PIXELS)
    width, height = header.size
    turn = 1
    with suppress(Exception):  # damaged metadata, sound pixels
        turn = header.getexif().get(ExifTags.Base.Orientation, 1)
    if turn in (5, 6, 7, 8):
        width, height = height, width
    return width, height, header.mode == "RGB" and "exif" not in header.info


def _shrink(picture: Image.Image, short_side: int) -> Image.Image:
    """Make the shorter side `short_side`, unless it is shorter already."""
    scale = short_side / min(picture.size)
    if scale >= 1:
        return picture
    size = (
        max(short_side, round(picture.width * scale)),
        max(short_side, round(picture.height * scale)),
    )
    return picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
