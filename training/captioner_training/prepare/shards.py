"""Shards: tar files by the WebDataset convention, each whole or not there."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter, ValidationError

from captioner.files import replace_file
from captioner_training.prepare.images import FoundImage
from captioner_training.prepare.manifest import ImageFormat, IndexRow, Shard
from captioner_training.prepare.resize import ResizedImage

__all__ = ["Plan", "Record", "file_digest", "is_written", "read_record", "write_shard"]

_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to go into one shard."""

    split: str
    number: int  # of the shard in its split
    first: int  # position of its first image in the split
    images: Sequence[FoundImage | None]  # None: an image that is left out

    @property
    def file(self) -> str:
        """The name of the tar file."""
        return f"{self.split}-{self.number:05d}.tar"

    def fingerprint(self, image_format: ImageFormat) -> str:
        """Digest all that decides what is in the shard."""
        images = [image and image.identity() for image in self.images]
        text = repr((1, asdict(image_format), self.split, self.number, self.first, images))
        return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a shard that is written; kept beside it until the data set is whole."""

    fingerprint: str
    shard: Shard
    rows: tuple[IndexRow, ...]
    hashes: tuple[str, ...]  # of the originals, one a row
    corrupt: tuple[str, ...]  # what is wrong with the images that could not be read


class _HashingFile:
    """A file for tarfile that digests what it writes."""

    def __init__(self, file: BinaryIO) -> None:
        self.file, self.digest, self.size = file, hashlib.sha256(), 0

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        self.size += len(data)
        return self.file.write(data)

    def tell(self) -> int:
        return self.size


def write_shard(
    plan: Plan, results: Iterator[ResizedImage], *, folder: Path, image_format: ImageFormat
) -> Record:
    """Write a shard and its record into `folder`.

    Takes one result for each image of the plan that is not left out, in order. The same plan
    and images give the same bytes.

    Raises:
        OutputError: the disk is full, or the folder cannot be written.

    """
    rows: list[IndexRow] = []
    hashes: list[str] = []
    corrupt: list[str] = []
    with replace_file(folder / plan.file) as file:
        hashing = _HashingFile(file)
        with tarfile.open(fileobj=hashing, mode="w", format=tarfile.USTAR_FORMAT) as tar:  # type: ignore[call-overload]
            for position, image in enumerate(plan.images, plan.first):
                if image is None:
                    continue
                resized = next(results)
                if resized.problem is not None:
                    corrupt.append(resized.problem)
                    continue
                key = f"{plan.split}-{position:07d}"
                offset = _add(tar, f"{key}.jpg", resized.jpeg)
                row = _row(image, resized, key=key, shard=plan.number, offset=offset)
                _add(tar, f"{key}.json", _annotation(row, plan.split))
                rows.append(row)
                hashes.append(resized.sha256)
    shard = Shard(
        file=plan.file,
        images=len(rows),
        bytes=hashing.size,
        sha256=hashing.digest.hexdigest(),
    )
    record = Record(
        fingerprint=plan.fingerprint(image_format),
        shard=shard,
        rows=tuple(rows),
        hashes=tuple(hashes),
        corrupt=tuple(corrupt),
    )
    with replace_file(_record_path(folder, plan)) as file:  # after the shard: it vouches for it
        file.write(TypeAdapter(Record).dump_json(record))
    return record


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Append a file and return where its bytes begin."""
    member = tarfile.TarInfo(name)  # its time and owner are 0 unless set
    member.size = len(data)
    offset: int = tar.offset + _BLOCK  # names are short: one header
    tar.addfile(member, io.BytesIO(data))
    return offset


def _row(
    image: FoundImage, resized: ResizedImage, *, key: str, shard: int, offset: int
) -> IndexRow:
    return IndexRow(
        key=key,
        id=image.id,
        file_name=image.file_name,
        width=resized.width,
        height=resized.height,
        captions=image.captions,
        shard=shard,
        offset=offset,
        size=len(resized.jpeg),
        licence=image.licence,
    )


def _annotation(row: IndexRow, split: str) -> bytes:
    """What KEY.json says."""
    content: dict[str, Any] = {
        "id": row.id,
        "file_name": row.file_name,
        "split": split,
        "width": row.width,
        "height": row.height,
        "captions": row.captions,
    }
    if row.licence is not None:
        content["licence"] = row.licence
    return json.dumps(content, ensure_ascii=False).encode("utf-8", "surrogateescape")


def read_record(folder: Path, plan: Plan) -> Record | None:
    """Read what is known of a shard; None: nothing."""
    try:
        return TypeAdapter(Record).validate_json(_record_path(folder, plan).read_bytes())
    except (OSError, ValidationError):
        return None


def is_written(
    plan: Plan, *, work: Path, folders: Iterable[Path], image_format: ImageFormat
) -> bool:
    """Whether an earlier run finished this very shard, and it is still as it was written."""
    record = read_record(work, plan)
    if record is None or record.fingerprint != plan.fingerprint(image_format):
        return False
    for folder in folders:
        with suppress(OSError):
            if file_digest(folder / plan.file) == record.shard.sha256:
                return True
    return False


def _record_path(folder: Path, plan: Plan) -> Path:
    return folder / f"{plan.file}.json"


def file_digest(path: Path, algorithm: str = "sha256") -> str:
    """Digest a file. Raises OSError when it cannot be read."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
