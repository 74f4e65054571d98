"""The format of a prepared data set: its manifest, and the index of each split.

    DIR/manifest.json        this is a whole data set: splits, counts, hashes; written last
    DIR/train-00000.tar ...  the WebDataset convention: KEY.jpg, KEY.json, KEY.jpg, ...
    DIR/train.index.jsonl    a line an image: what KEY.json says, and where KEY.jpg lies

The index is there so that training finds any image without reading the tar files first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from captioner.errors import DataError
from captioner.files import file_digest

__all__ = [
    "MANIFEST",
    "WORK",
    "ImageFormat",
    "IndexRow",
    "Manifest",
    "ShardFile",
    "Split",
    "StoredFile",
    "is_prepared",
    "is_unfinished",
]

MANIFEST = "manifest.json"
WORK = ".prepare"  # what `captioner prepare` keeps in the folder until the data set is whole


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """How images are stored."""

    short_side: int = 256  # pixels; a smaller image keeps its size
    quality: int = 90  # of JPEG: 95 takes half as much again, and no model has seen the difference


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of the data set, and how to tell that it is whole."""

    file: Annotated[str, Field(pattern=r"\A[\w.-]+\z")]  # in the same folder
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ShardFile(StoredFile):
    """One tar file."""

    images: int

    @classmethod
    def of(cls, path: Path, *, images: int) -> ShardFile:
        """Measure a tar file that is written."""
        size, digest = path.stat().st_size, file_digest(path)
        return cls(file=path.name, images=images, bytes=size, sha256=digest)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The images that are trained on, or scored, together."""

    images: int
    captions: int
    index: StoredFile
    shards: tuple[ShardFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRow:
    """One image of a split."""

    key: str  # KEY.jpg and KEY.json in the shard
    id: int | str  # the data set's own; unique in its split
    file_name: str  # the data set's own
    width: int  # of the original, in pixels, as a viewer sees it
    height: int
    captions: tuple[str, ...]
    shard: int  # position in Split.shards
    offset: int  # of the JPEG's bytes in the shard
    size: int  # of the JPEG in bytes
    licence: str | None = None  # the photo's, where known


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What manifest.json says."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")  # of later versions

    name: str
    fingerprint: str  # of everything that went in; the same fingerprint is the same data set
    splits: dict[str, Split]
    image: ImageFormat
    source: dict[str, Any]  # kind and options of the command that prepared it
    licence: str | None = None
    skipped: dict[str, int] = field(default_factory=dict)  # kinds of problems left out, counted
    format: Literal["captioner-dataset"] = "captioner-dataset"
    version: Literal[1] = 1

    @property
    def identity(self) -> str:
        """A digest of the stored bytes: equal for copies, wherever they lie."""
        hashes = [shard.sha256 for split in self.splits.values() for shard in split.shards]
        return hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    def to_json(self) -> bytes:
        """Write it as manifest.json has it."""
        head = {"format": self.format, "version": self.version}
        return TypeAdapter(dict[str, Any]).dump_json({**head, **asdict(self)}, indent=2) + b"\n"

    @property
    def files(self) -> list[StoredFile]:
        """The files that it is the manifest of."""
        return [file for one in self.splits.values() for file in (one.index, *one.shards)]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest, and no other file. Raises DataError."""
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}): no data set, or one that is not "
                "finished; run `captioner prepare` again"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "all of it"
            raise DataError(
                f"{path} is not a manifest that this Captioner can read ({place}: {first['msg']}): "
                "put it back as it was, or choose another folder"
            ) from error

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a prepared data set; DataError where a file's size differs."""
        manifest = cls.read(folder / MANIFEST)
        for stored in manifest.files:
            path = folder / stored.file
            try:
                size = path.stat().st_size
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
            if size != stored.bytes:
                raise DataError(
                    f"{path} has {size:,} bytes where the manifest says {stored.bytes:,}: "
                    "copy or prepare it again"
                )
        return manifest

    def rows(self, folder: Path, split: str) -> Iterator[IndexRow]:
        """Read the index of a split; DataError where there is none, or it has been changed."""
        if split not in self.splits:
            have = ", ".join(self.splits)
            raise DataError(f"{folder} has no split {split!r}; it has {have}")
        path = folder / self.splits[split].index.file
        try:
            content = path.read_bytes()
        except OSError as error:
            raise DataError(f"{path} cannot be read: {error.strerror}") from error
        if hashlib.sha256(content).hexdigest() != self.splits[split].index.sha256:
            raise DataError(f"{path} has changed since it was written: copy or prepare it again")
        adapter = TypeAdapter(IndexRow)
        for line in content.splitlines():
            yield adapter.validate_json(line)


def is_prepared(folder: Path) -> bool:
    """Whether this folder holds a whole prepared data set."""
    return (folder / MANIFEST).is_file()


def is_unfinished(folder: Path) -> bool:
    """Whether a run of `captioner prepare` stopped before this folder's data set was whole."""
    return (folder / WORK).is_dir() and not is_prepared(folder)
