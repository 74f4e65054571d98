"""The format of a prepared data set: its manifest, and the index of each split.

    DIR/manifest.json        splits, counts and hashes; written last
    DIR/train-00000.tar ...  WebDataset shards: KEY.jpg, KEY.json, KEY.jpg, ...
    DIR/train.index.jsonl    one line per image: the content of KEY.json, and where KEY.jpg is

With the index, training finds images without reading the tar files first.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from captioner.errors import DataError

MANIFEST = "manifest.json"
WORK = ".prepare"  # folder of `captioner prepare` until the data set is complete


@dataclass(frozen=True, kw_only=True)
class ImageFormat:
    """Size and quality of stored images."""

    short_side: int = 256  # pixels; smaller images keep their size
    quality: int = 90  # JPEG quality


@dataclass(frozen=True, kw_only=True)
class StoredFile:
    """A file of the data set, with its size and hash."""

    file: Annotated[str, Field(pattern=r"\A[\w.-]+\z")]  # in the same folder
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class ShardFile(StoredFile):
    """One tar file."""

    images: int


@dataclass(frozen=True, kw_only=True)
class Split:
    """A split: its index and shards."""

    images: int
    captions: int
    index: StoredFile
    shards: tuple[ShardFile, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class IndexRow:
    """One image of a split."""

    key: str  # KEY.jpg and KEY.json in the shard
    id: int | str  # from the source; unique in its split
    file_name: str  # from the source
    width: int  # pixels of the upright original
    height: int
    captions: tuple[str, ...]
    shard: int  # position in Split.shards
    offset: int  # start of the JPEG in the shard
    size: int  # bytes of the JPEG
    licence: str | None = None  # licence of the photo, if known


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The content of manifest.json."""

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="ignore")  # newer fields

    name: str
    fingerprint: str  # hash of everything that was prepared
    splits: dict[str, Split]
    image: ImageFormat
    source: dict[str, Any]  # kind and options of `captioner prepare`
    licence: str | None = None
    skipped: dict[str, int] = field(default_factory=dict)  # number of problems by kind
    format: Literal["captioner-dataset"] = "captioner-dataset"
    version: Literal[1] = 1

    @property
    def identity(self) -> str:
        """A hash of the shards; copies of a data set have the same hash."""
        hashes = [shard.sha256 for split in self.splits.values() for shard in split.shards]
        return hashlib.sha256(" ".join(hashes).encode()).hexdigest()

    def to_json(self) -> bytes:
        """Return the content of manifest.json."""
        head = {"format": self.format, "version": self.version}
        return TypeAdapter(dict[str, Any]).dump_json({**head, **asdict(self)}, indent=2) + b"\n"

    @property
    def files(self) -> list[StoredFile]:
        """All indexes and shards."""
        return [file for split in self.splits.values() for file in (split.index, *split.shards)]

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read a manifest without checking its files. Raises DataError."""
        try:
            return TypeAdapter(cls).validate_json(path.read_bytes())
        except OSError as error:
            raise DataError(
                f"{path} cannot be read ({error.strerror}): run `captioner prepare` again"
            ) from error
        except ValidationError as error:
            first = error.errors()[0]
            place = ".".join(map(str, first["loc"])) or "the whole file"
            raise DataError(
                f"{path} is not a valid manifest ({place}: {first['msg']}): restore it, or choose "
                "another folder"
            ) from error

    @classmethod
    def load(cls, folder: Path) -> Manifest:
        """Read the manifest of a data set and check the sizes of its files. Raises DataError."""
        manifest = cls.read(folder / MANIFEST)
        for stored in manifest.files:
            path = folder / stored.file
            try:
                size = path.stat().st_size
            except OSError as error:
                raise DataError(f"{path} cannot be read: {error.strerror}") from error
            if size != stored.bytes:
                raise DataError(
                    f"{path} has {size:,} bytes, but {stored.bytes:,} in the manifest: copy or "
                    "prepare it again"
                )
        return manifest

    def rows(self, folder: Path, split: str) -> Iterator[IndexRow]:
        """Read the index of a split. Raises DataError."""
        if split not in self.splits:
            remedy = ""
            if split == "val":
                remedy = ": draw a larger share with `captioner prepare` and --val 0.3"
            raise DataError(
                f"{folder} has no split {split!r}; it has {', '.join(self.splits)}{remedy}"
            )
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
    """Whether a folder is a complete prepared data set."""
    return (folder / MANIFEST).is_file()


def is_unfinished(folder: Path) -> bool:
    """Whether `captioner prepare` stopped before the data set of a folder was complete."""
    return (folder / WORK).is_dir() and not is_prepared(folder)
