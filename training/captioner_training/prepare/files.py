"""Original images: the places of their bytes, and the search for them by name.

An image is a file, a member of a tar or zip file, or a cell of a Parquet table.
"""

from __future__ import annotations

import hashlib
import os
import stat
import tarfile
import unicodedata
import zipfile
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from captioner.errors import DataError, MissingExtraError
from captioner.photos.formats import IMAGE_SUFFIXES
from captioner.photos.open import LARGEST_FILE
from captioner.shared.archives import open_zip, tar_members
from captioner.shared.paths import expanded, is_system_folder, there_is_no
from captioner_training.prepare.splits import split_in_folders, split_in_stem, split_named

ARCHIVES = (".tar", ".zip")
"""Suffixes of archives of photos."""

_SAMPLE = 4096  # bytes from the middle that are compared first


class Location(NamedTuple):
    """The bytes of one original image."""

    path: str  # path of the file or archive
    offset: int  # offset in the file; row in a Parquet file
    size: int
    member: str | None  # member of a zip file; column of a Parquet file
    stamp: int  # changes with the image: CRC-32 in zip and Parquet files, else modification time
    in_table: bool = False  # whether the image is in a Parquet file

    @property
    def is_loose(self) -> bool:
        """Whether the image is a separate file. Members of tar files have an offset."""
        return self.member is None and self.offset == 0

    @property
    def has_checksum(self) -> bool:
        """Whether `stamp` is the CRC-32 of the bytes."""
        return self.member is not None


UNKNOWN = Location("", 0, 0, None, 0)
"""The location of an image before its file is searched."""


class Found(NamedTuple):
    """An original image: its path in its folder or archive, and where its bytes are."""

    name: str
    location: Location


class SourceImage(NamedTuple):
    """An image and its captions, as a table, a JSON file or a folder lists them.

    split: "" if the data set names none.
    rows: the place of each caption in its file, such as "line 3".
    location: UNKNOWN if the image is to be searched by its name.
    """

    id: int | str
    file_name: str
    captions: tuple[str, ...]
    split: str = ""
    licence: str | None = None
    rows: tuple[str, ...] = ()
    location: Location = UNKNOWN

    def row(self, caption: int = 0) -> str:
        """Return the place of a caption in its file; "" if unknown."""
        return self.rows[caption] if caption < len(self.rows) else ""

    def identity(self) -> tuple[object, ...]:
        """Return the values that decide the stored bytes, without the path: folders may move."""
        return self.id, self.file_name, self.captions, self.licence, *self.location[1:]


def read_location(location: Location) -> bytes:
    """Read an original image.

    Raises OSError: the image cannot be read or is too large, or its archive is damaged.
    """
    if location.size > LARGEST_FILE:
        raise OSError(f"{location.size:,} bytes are too large for a photo")
    if location.in_table and location.member is not None:
        return _parquet_photo(location.path, location.member, location.offset)
    if location.member is None:
        with open(location.path, "rb") as file:  # noqa: PTH123 - faster than Path.open
            file.seek(location.offset)
            return file.read(location.size)
    try:
        with open_zip(location.path).open(location.member) as member:  # checks the CRC
            return member.read(location.size)  # a limit, because of zip bombs
    except (zipfile.BadZipFile, zlib.error, EOFError, ValueError, RuntimeError) as error:
        raise OSError(str(error)) from error  # RuntimeError: encrypted


@contextmanager
def open_parquet(path: Path) -> Iterator[Any]:
    """Open a file as pyarrow's ParquetFile. Raises DataError; MissingExtraError without pyarrow."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise MissingExtraError("reading Parquet", "parquet") from error
    if not path.is_file():
        raise DataError(there_is_no("file", path))
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path} cannot be read as Parquet: {error}") from error


def _parquet_photo(path: str, column: str, row: int) -> bytes:
    """Read a photo from a table. Its row group is cached for the next photo."""
    ends = _group_ends(path)
    group = bisect_right(ends, row)
    first = ends[group - 1] if group else 0
    photo = _photos(path, column, group)[row - first].as_py()
    return bytes(photo["bytes"] if isinstance(photo, dict) else photo)


@lru_cache(maxsize=2)
def _photos(path: str, column: str, group: int) -> Sequence[Any]:
    with open_parquet(Path(path)) as file:
        # Not columns=[column], which would need the names of a structure's fields.
        photos: Sequence[Any] = file.read_row_group(group).column(column)
        return photos


@lru_cache(maxsize=4)
def _group_ends(path: str) -> list[int]:
    with open_parquet(Path(path)) as file:
        groups = range(file.metadata.num_row_groups)
        return list(accumulate(file.metadata.row_group(number).num_rows for number in groups))


def equal_images(locations: Sequence[Location]) -> list[list[int]]:
    """Group the positions of images with equal bytes.

    Size, known checksums and a few bytes are compared first, so that few images are read whole.
    """

    def part(group: Sequence[int], key: Callable[[Location], Hashable]) -> Iterable[list[int]]:
        if len(group) == 1:
            return [list(group)]
        parts: dict[Hashable, list[int]] = defaultdict(list)
        for index in group:
            try:
                parts[key(locations[index])].append(index)
            except OSError:  # reported later as a corrupt image
                parts[index, "unreadable"].append(index)
        return parts.values()

    groups: list[list[int]] = []
    for same_size in part(range(len(locations)), lambda location: location.size):
        known = any(locations[index].has_checksum for index in same_size)
        for similar in part(same_size, _checksum if known else _middle):
            groups += part(similar, lambda place: hashlib.sha256(read_location(place)).digest())
    return sorted(groups)


def _checksum(location: Location) -> Hashable:
    return location.stamp if location.has_checksum else zlib.crc32(read_location(location))


def _middle(location: Location) -> Hashable:
    skip = max(0, location.size - _SAMPLE) // 2
    size = min(_SAMPLE, location.size)
    return read_location(location._replace(offset=location.offset + skip, size=size))


def to_nfc(name: str) -> str:
    """Return a name in Unicode's NFC form."""
    return unicodedata.normalize("NFC", name)


def casefold_path(name: str) -> str:
    """Return a name in lower case and NFC form."""
    return to_nfc(to_nfc(name).casefold())


def image_suffix(name: str) -> str:
    """Return the suffix of a name if it is an image suffix, else ""."""
    suffix = PurePosixPath(name).suffix
    return suffix if suffix.lower() in IMAGE_SUFFIXES else ""


def to_posix(path: str) -> str:
    """Return a path of any operating system with forward slashes."""
    return (path if "/" in path else path.replace("\\", "/")).removeprefix("./")


def base_name(path: str) -> str:
    """Return the last part of a path."""
    return to_posix(path).rpartition("/")[2]


def _stem(name: str) -> str:
    """Return a path in lower case and NFC form, without an image suffix."""
    return casefold_path(name.removesuffix(image_suffix(name)))


def _level(path: str, name: str) -> int | None:
    """Return how far a path is from a name, 0 if equal; None if they are not similar."""
    wanted, base = casefold_path(name), base_name(name)
    equal = (
        path == name,
        casefold_path(path) == wanted,
        _stem(path) == wanted,
        base_name(path) == base,
        casefold_path(base_name(path)) == casefold_path(base),
        _stem(base_name(path)) == casefold_path(base),
    )
    return equal.index(True) if any(equal) else None


class ImageFiles:
    """Finds images by the names that a data set has for them.

    Args:
        places: folders (with the archives in them), tar files, zip files, or globs of them. Links
            and `..` may not lead out of them, because a downloaded table could name private photos.

    Raises DataError: a place does not exist, or an archive is damaged.
    """

    def __init__(self, places: Iterable[str | os.PathLike[str]]) -> None:
        self._folders: list[Path] = []
        self._archives: list[Path] = []
        for place in places:
            pattern = expanded(place)
            # A name with brackets may be a file, not a pattern.
            below = pattern.relative_to(pattern.anchor)
            paths = [pattern] if pattern.exists() else Path(pattern.anchor).glob(str(below))
            if not (paths := sorted(paths)):
                raise DataError(there_is_no("file or folder", pattern))
            for path in paths:
                if path.is_dir():
                    self._folders.append(path)
                    archives = (file for file in path.iterdir() if file.suffix.lower() in ARCHIVES)
                    self._archives += sorted(filter(Path.is_file, archives))
                else:
                    self._archives.append(path)
        self._members = [member for archive in self._archives for member in members(archive)]
        self._resolved = lru_cache(os.path.realpath)  # many images share a folder
        self._roots = [self._resolved(folder) for folder in self._folders]

    def split_of(self, image: Found) -> str | None:
        """Return the split that an image's folders, archive or place are named after."""
        name, path = image.name, Path(image.location.path)
        parents = [folder for folder in self._folders if folder in path.parents]
        if name.startswith("/") and parents:
            name = path.relative_to(parents[0]).as_posix()
        if split := split_in_folders(name):
            return split
        if not image.location.is_loose:
            return split_in_stem(path.stem)
        if len(self._folders) == 1:  # the name of one folder of photos may mean anything
            return None
        return next(filter(None, (split_named(folder.name) for folder in parents)), None)

    def find(self, name: str, split: str = "") -> Found | None:
        """Return the image with this path, or else the only one whose name is as similar.

        In this order: the path, also without a suffix; then the base name in any folder, also
        without a suffix. Case and Unicode form do not matter, but an exact name comes first. Images
        of another split than `split` come last. Returns None if no image matches, or if several
        different images match equally well.
        """
        name = to_posix(name)

        def rank(candidate: tuple[int, Found]) -> tuple[bool, int, bool, bool]:
            level, image = candidate
            of_image = self.split_of(image) if split else None
            is_other = of_image is not None and of_image != split
            return is_other, level, of_image is None, not image.location.is_loose

        places = (self._loose(folder / name) for folder in self._folders)
        candidates = [(0, Found(name, place)) for place in places if place]
        # Similar names come second, because walking folders is slow.
        if all(rank(candidate)[0] for candidate in candidates):
            candidates += self._similar(name)
        best = min(map(rank, candidates), default=None)
        images = [candidate[1] for candidate in candidates if rank(candidate) == best]
        locations = [*dict.fromkeys(image.location for image in images)]
        return images[0] if len(equal_images(locations)) == 1 else None

    def _similar(self, name: str) -> Iterator[tuple[int, Found]]:
        for path, place in self._by_stem.get(_stem(base_name(name)), ()):
            location = self._loose(place) if isinstance(place, Path) else place
            level = _level(path, name)
            if location and level is not None:
                yield level, Found(path, location)

    @cached_property
    def _by_stem(self) -> dict[str, list[tuple[str, Path | Location]]]:
        """All images by the stem of their base name, loose files first."""
        images: dict[str, list[tuple[str, Path | Location]]] = defaultdict(list)
        for folder in self._folders:
            for name, path in _images(folder):
                images[_stem(base_name(name))].append((name, path))
        for name, place in self._members:
            images[_stem(base_name(name))].append((name, place))
        return images

    def _loose(self, path: Path) -> Location | None:
        location = loose_file(path)
        return location if location and self._is_inside(path) else None

    def _is_inside(self, path: Path) -> bool:
        """Whether a file is in one of the folders, after resolving `..` and links."""
        folder = Path(self._resolved(path) if path.is_symlink() else path).parent
        return any(Path(self._resolved(folder)).is_relative_to(root) for root in self._roots)


def loose_file(path: Path) -> Location | None:
    """Return the location of a file, or None if there is no regular file."""
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a name with NUL
        return None
    is_file = stat.S_ISREG(status.st_mode)
    return Location(str(path), 0, status.st_size, None, status.st_mtime_ns) if is_file else None


def _images(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the images in a folder and its subfolders by their paths in it."""
    for parent, folders, files in os.walk(folder):  # skips unreadable folders
        folders[:] = sorted(n for n in folders if not (n.startswith(".") or is_system_folder(n)))
        above = Path(parent).relative_to(folder)
        for name in filter(image_suffix, files):
            yield (above / name).as_posix(), Path(parent, name)


def members(archive: Path) -> Iterator[Found]:
    """Yield the files in a tar or zip file, without hidden ones. Raises DataError."""
    read = _zip_members if zipfile.is_zipfile(archive) else _tar_members
    try:
        for found in read(archive):
            if not base_name(found.name).startswith("."):  # such as __MACOSX/._1.jpg
                yield found
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"{archive} cannot be read as a zip file or an uncompressed tar file: {error}"
        ) from error


def _zip_members(archive: Path) -> Iterator[Found]:
    with zipfile.ZipFile(archive) as file:
        for info in file.infolist():
            if not info.is_dir():
                place = Location(str(archive), 0, info.file_size, info.filename, info.CRC)
                yield Found(info.filename.removeprefix("./"), place)


def _tar_members(archive: Path) -> Iterator[Found]:
    stamp = archive.stat().st_mtime_ns
    for _, member in tar_members(archive):
        if member.isfile():
            place = Location(str(archive), member.offset_data, member.size, None, stamp)
            yield Found(member.name.removeprefix("./"), place)


def walk(folder: Path, *, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders, sorted by name, without hidden ones.

    Links to a parent folder are skipped; `above` has the device and inode of the parents.

    Raises DataError: a folder that is not of the system cannot be read.
    """
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir())
    except FileNotFoundError as error:
        raise DataError(there_is_no("folder", folder)) from error
    except NotADirectoryError as error:
        raise DataError(f"{folder} is a file: name its folder") from error
    except OSError as error:
        if any(map(is_system_folder, folder.parts)):
            return
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    if (identity := (status.st_dev, status.st_ino)) in above:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from walk(entry, above=above | {identity})
        else:
            yield entry
