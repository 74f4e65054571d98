"""Resize images in worker processes and write them into WebDataset shards.

webdataset's own ShardWriter is not used: it does not return the offsets that the index needs, and
it writes the current time into each member, which makes shards irreproducible.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import signal
import tarfile
import threading
import warnings
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from PIL import Image
from pydantic import TypeAdapter, ValidationError

from captioner.errors import DataError, ImageError, OutputError
from captioner.photos.formats import read_header
from captioner.photos.open import MAX_PIXELS, open_image, orientation
from captioner.shared.files import file_digest, replace_file
from captioner_training.data.images import add_member
from captioner_training.data.manifest import ImageFormat, IndexRow, ShardFile
from captioner_training.prepare.files import SourceImage, read_location

_CHUNK = 16  # images per task


class ResizedImage(NamedTuple):
    """A resized image, or the problem with it."""

    jpeg: bytes
    width: int  # pixels of the upright original
    height: int
    problem: str | None = None


def resize_all(
    images: Sequence[SourceImage], image_format: ImageFormat, *, workers: int
) -> Generator[ResizedImage]:
    """Resize images in worker processes and yield them in order; one worker is this process.

    Raises DataError: a worker process was killed.
    """
    resize = partial(_resize, image_format)
    if workers == 1:
        yield from map(resize, images)
        return
    context = multiprocessing.get_context("spawn")  # fork is unsafe with tqdm's thread
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker)
    try:
        yield from pool.map(resize, images, chunksize=_CHUNK)
    except BrokenProcessPool as error:
        raise DataError(
            "a process that reads images was killed, most likely because memory ran out: run the "
            "same command again with fewer --workers; it resumes"
        ) from error
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _start_worker() -> None:
    """Ignore interrupts, which the parent process handles, and exit when the parent has died."""

    def end_with_parent() -> None:
        if parent := multiprocessing.parent_process():
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # As in captioner.cli: Pillow warns about damaged metadata of photos that it can read.
    warnings.filterwarnings("ignore", module=r"PIL\.")
    threading.Thread(target=end_with_parent, daemon=True).start()


def _resize(image_format: ImageFormat, image: SourceImage) -> ResizedImage:
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
        return ResizedImage(data, width, height)  # not compressed again
    scale = side / min(picture.size)
    if scale < 1:  # smaller images keep their size
        size = max(side, round(picture.width * scale)), max(side, round(picture.height * scale))
        picture = picture.resize(size, Image.Resampling.BICUBIC, reducing_gap=3.0)
    picture.save(stored := io.BytesIO(), format="JPEG", quality=image_format.quality)
    return ResizedImage(stored.getvalue(), width, height)


def _measure(data: bytes, picture: Image.Image) -> tuple[int, int, bool]:
    """Return the size of the upright original, and whether it is an RGB JPEG without EXIF."""
    if not data.startswith(b"\xff\xd8\xff"):
        return *picture.size, False
    # `picture` may have been decoded at a smaller size.
    header = read_header(io.BytesIO(data), "the image", MAX_PIXELS)
    width, height = header.size
    if orientation(header) >= 5:
        width, height = height, width
    return width, height, header.mode == "RGB" and "exif" not in header.info


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The planned content of a shard."""

    split: str
    number: int  # number of the shard in its split
    first: int  # position of its first image in the split
    images: Sequence[SourceImage]
    image_format: ImageFormat

    @property
    def file(self) -> str:
        """The name of the tar file."""
        return f"{self.split}-{self.number:05d}.tar"

    def fingerprint(self) -> str:
        """Return a hash of everything that decides the bytes of the shard."""
        images = [image.identity() for image in self.images]
        values = (2, asdict(self.image_format), self.split, self.number, self.first, images)
        return hashlib.sha256(repr(values).encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Record:
    """The description of a finished shard, kept beside it until the data set is complete."""

    fingerprint: str
    shard: ShardFile
    rows: tuple[IndexRow, ...]
    corrupt: dict[str, str]  # problems of images that could not be read


def write_shard(plan: Plan, results: Iterator[ResizedImage], *, folder: Path) -> None:
    """Write a shard and its record; the same plan and images give the same bytes.

    `results` has one item for each image of the plan, in order. Raises OutputError.
    """
    rows: list[IndexRow] = []
    corrupt: dict[str, str] = {}
    with (
        replace_file(folder / plan.file) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for position, image in enumerate(plan.images, plan.first):
            resized = next(results)
            if resized.problem is not None:
                corrupt[image.file_name] = resized.problem
                continue
            key = f"{plan.split}-{position:07d}"
            row = IndexRow(
                key=key,
                id=image.id,
                file_name=image.file_name,
                width=resized.width,
                height=resized.height,
                captions=image.captions,
                shard=plan.number,
                offset=add_member(tar, f"{key}.jpg", resized.jpeg),
                size=len(resized.jpeg),
                licence=image.licence,
            )
            add_member(tar, f"{key}.json", _annotation(row, plan.split))
            rows.append(row)
    size, digest = (folder / plan.file).stat().st_size, file_digest(folder / plan.file)
    record = Record(
        fingerprint=plan.fingerprint(),
        shard=ShardFile(file=plan.file, images=len(rows), bytes=size, sha256=digest),
        rows=tuple(rows),
        corrupt=corrupt,
    )
    with replace_file(folder / f"{plan.file}.json") as file:  # last: it marks the shard as finished
        file.write(TypeAdapter(Record).dump_json(record))


def _annotation(row: IndexRow, split: str) -> bytes:
    content = {
        "id": row.id,
        "file_name": row.file_name,
        "split": split,
        "width": row.width,
        "height": row.height,
        "captions": row.captions,
        **({} if row.licence is None else {"licence": row.licence}),
    }
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")


def read_shard_record(folder: Path, plan: Plan) -> Record:
    """Read the record of a shard. Raises OutputError: it is missing or damaged."""
    path = folder / f"{plan.file}.json"
    try:
        return TypeAdapter(Record).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise OutputError(f"{path} is missing or damaged: run the same command again") from error


def is_written(plan: Plan, *, work: Path, to: Path) -> bool:
    """Whether an earlier run has finished this shard, and its file has not changed since."""
    with suppress(OutputError):
        record = read_shard_record(work, plan)
        if record.fingerprint == plan.fingerprint():
            for folder in (work, to):
                with suppress(OSError):
                    if file_digest(folder / plan.file) == record.shard.sha256:
                        return True
    return False
