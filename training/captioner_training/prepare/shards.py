"""Shards: tar files by the WebDataset convention, each whole or not there.

webdataset's own ShardWriter tells no offsets, by which training finds an image without reading the
tar file first, and marks each member with the time of day.
"""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from captioner.errors import OutputError
from captioner.files import replace_file
from captioner_training.prepare.gathering import FoundImage
from captioner_training.prepare.manifest import ImageFormat, IndexRow, Shard
from captioner_training.prepare.resize import ResizedImage

__all__ = ["Plan", "Record", "file_digest", "is_written", "read_record", "write_shard"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is to go into one shard."""

    split: str
    number: int  # of the shard in its split
    first: int  # position of its first image in the split
    images: Sequence[FoundImage]
    image_format: ImageFormat

    @property
    def file(self) -> str:
        """The name of the tar file."""
        return f"{self.split}-{self.number:05d}.tar"

    def fingerprint(self) -> str:
        """Digest all that decides what is in the shard."""
        images = [image.identity() for image in self.images]
        about = (1, asdict(self.image_format), self.split, self.number, self.first, images)
        return hashlib.sha256(repr(about).encode("utf-8", "surrogateescape")).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Record:
    """What is known of a shard that is written; kept beside it until the data set is whole."""

    fingerprint: str
    shard: Shard
    rows: tuple[IndexRow, ...]
    corrupt: tuple[str, ...]  # what is wrong with the images that could not be read


def write_shard(plan: Plan, results: Iterator[ResizedImage], *, folder: Path) -> None:
    """Write a shard and its record into `folder`.

    Takes one result for each image of the plan, in order. The same plan and images give the same
    bytes.

    Raises:
        OutputError: the disk is full, or the folder cannot be written.

    """
    rows: list[IndexRow] = []
    corrupt: list[str] = []
    with (
        replace_file(folder / plan.file) as file,
        tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for position, image in enumerate(plan.images, plan.first):
            resized = next(results)
            if resized.problem is not None:
                corrupt.append(resized.problem)
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
                offset=_add(tar, f"{key}.jpg", resized.jpeg),
                size=len(resized.jpeg),
                licence=image.licence,
            )
            _add(tar, f"{key}.json", _annotation(row, plan.split))
            rows.append(row)
    path = folder / plan.file
    record = Record(
        fingerprint=plan.fingerprint(),
        shard=Shard(
            file=plan.file,
            images=len(rows),
            bytes=path.stat().st_size,
            sha256=file_digest(path),
        ),
        rows=tuple(rows),
        corrupt=tuple(corrupt),
    )
    with replace_file(_record_path(folder, plan)) as file:  # after the shard: it vouches for it
        file.write(TypeAdapter(Record).dump_json(record))


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Append a file and return where its bytes begin."""
    member = tarfile.TarInfo(name)  # its time and owner are 0 unless set
    member.size = len(data)
    offset: int = tar.offset + tarfile.BLOCKSIZE  # names are short: one header
    tar.addfile(member, io.BytesIO(data))
    return offset


def _annotation(row: IndexRow, split: str) -> bytes:
    """What KEY.json says."""
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


def read_record(folder: Path, plan: Plan) -> Record:
    """Read what is known of a shard.

    Raises:
        OutputError: there is no record, or it is damaged.

    """
    path = _record_path(folder, plan)
    try:
        return TypeAdapter(Record).validate_json(path.read_bytes())
    except (OSError, ValidationError) as error:
        raise OutputError(f"{path} is missing or damaged: run the same command again") from error


def is_written(plan: Plan, *, work: Path, to: Path) -> bool:
    """Whether an earlier run finished this very shard, and it is still as it was written."""
    with suppress(OutputError):
        record = read_record(work, plan)
        if record.fingerprint == plan.fingerprint():
            for folder in (work, to):
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
