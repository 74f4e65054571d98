"""Original images to stored ones, in worker processes."""

from __future__ import annotations

import io
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Generator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from PIL import ExifTags, Image

from captioner.errors import DataError, ImageError
from captioner.vision.header import read_header
from captioner.vision.image import MAX_PIXELS, open_image
from captioner_training.prepare.gathering import FoundImage
from captioner_training.prepare.manifest import ImageFormat
from captioner_training.prepare.places import read_location

__all__ = ["ResizedImage", "resize_all"]

_CHUNK = 16  # images a task: a worker waits for nothing


class ResizedImage(NamedTuple):
    """An image as it goes into a shard, or why it does not."""

    jpeg: bytes
    width: int  # of the original, in pixels, as a viewer sees it
    height: int
    problem: str | None = None


def resize_all(
    images: Sequence[FoundImage], image_format: ImageFormat, *, workers: int
) -> Generator[ResizedImage]:
    """Resize images in worker processes; results come in order. One worker is this process.

    Raises:
        DataError: a worker process was killed, most likely because memory ran out.

    """
    resize = partial(_resize, image_format)
    if workers == 1:  # a process of its own takes longer to start than a small data set
        yield from map(resize, images)
        return
    context = multiprocessing.get_context("spawn")  # tqdm has a thread, which fork would copy
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        yield from pool.map(resize, images, chunksize=_CHUNK)
    except BrokenProcessPool as error:
        raise DataError(
            "a process that reads images was killed, perhaps because memory ran out: run the same "
            "command again with fewer --workers; it goes on where it stopped"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


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


def _resize(image_format: ImageFormat, image: FoundImage) -> ResizedImage:
    """Read, check and shrink one image."""
    name, side = image.file_name, image_format.short_side
    try:
        data = read_location(image.location)
        picture = open_image(data, at_least=side)
    except OSError as error:
        return ResizedImage(b"", 0, 0, f"{name} cannot be read: {error.strerror or error}")
    except ImageError as error:
        return ResizedImage(b"", 0, 0, error.detail.replace("the image", name, 1))
    width, height, plain = _measure(data, picture)
    if plain and min(width, height) <= side:
        return ResizedImage(data, width, height)  # as it is: no second loss
    scale = side / min(picture.size)
    if scale < 1:  # a smaller image keeps its size
        size = max(side, round(picture.width * scale)), max(side, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
    picture.save(stored := io.BytesIO(), format="JPEG", quality=image_format.quality)
    return ResizedImage(stored.getvalue(), width, height)


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
