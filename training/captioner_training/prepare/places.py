"""Where the original images lie: loose in folders, or inside tar and zip files."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from captioner.errors import DataError
from captioner.paths import expanded, there_is_no
from captioner.readers import IMAGE_SUFFIXES

__all__ = ["ImageFiles", "Location", "read_location", "walk"]

_ARCHIVES = (".tar", ".zip")
_TOLD = 5  # places; a data set in a hundred tar files would fill the screen


class Location(NamedTuple):
    """The bytes of one original image."""

    path: str  # of the file, or of the archive
    offset: int
    size: int
    member: str | None  # of a zip file, where they may be compressed
    stamp: int  # changes when the image does: modification time, or a zip file's own checksum


class ImageFiles:
    """Finds images by the names that a data set calls them.

    Args:
        places: folders, tar files, zip files, or globs of them. The archives that lie directly
            in a folder count as well, so that a folder of tar files can be named as it is.

    Raises:
        DataError: nothing is there, or an archive is damaged.

    """

    def __init__(self, places: Iterable[str | os.PathLike[str]]) -> None:
        self._folders: list[Path] = []
        self._archives: list[Path] = []
        self._members: dict[str, Location] = {}
        self._contested: dict[str, tuple[Location, Location]] = {}  # members that are not the same
        self._by_basename: dict[str, Location | None] = {}  # None: several have that name
        for place in places:
            pattern = expanded(place)
            # A name with brackets is itself before it is a pattern.
            paths = [pattern] if pattern.exists() else sorted(pattern.parent.glob(pattern.name))
            if not paths:
                raise DataError(there_is_no("file or folder", pattern))
            for path in paths:
                self._add(path)

    def _add(self, path: Path) -> None:
        if not path.is_dir():
            self._index(path)
            return
        self._folders.append(path)
        for archive in sorted(path.iterdir()):
            if archive.suffix.lower() in _ARCHIVES and archive.is_file():
                self._index(archive)

    def _index(self, path: Path) -> None:
        self._archives.append(path)
        try:
            members = _zip_members if zipfile.is_zipfile(path) else _tar_members
            for name, location in members(path):
                if (other := self._members.get(name)) and not _same(other, location):
                    self._contested[name] = (other, location)
                self._members[name] = location
                base = _base(name)
                self._by_basename[base] = None if base in self._by_basename else location
        except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
            raise DataError(
                f"{path} cannot be read as a zip file or an uncompressed tar file: {error}"
            ) from error

    def __str__(self) -> str:
        """Say where is looked."""
        folders = [f"{folder} and its subfolders" for folder in self._folders]
        places = [*folders, *map(str, self._archives)]
        more = len(places) - _TOLD
        return ", ".join(places[:_TOLD]) + (f" and {more} more places" if more > 0 else "")

    def find(self, name: str) -> Location | None:
        """Look for an image by its path; None: it is not there, or several different ones are."""
        name = name.replace("\\", "/") if "/" not in name else name  # a table from Windows
        if loose := self._beside(name):
            return loose[0] if all(_same(loose[0], other) for other in loose[1:]) else None
        inside = name.removeprefix("./")
        if inside in self._contested:
            return None
        return self._members.get(inside)

    def _beside(self, name: str) -> list[Location]:
        places = (_loose(folder / name) for folder in self._folders)
        return [place for place in places if place is not None]

    def find_elsewhere(self, name: str) -> Location | None:
        """Look for an image by its base name in all subfolders, then in the archives.

        In subfolders letters may be in the other case, and a name without a suffix is that of an
        image. None: there is not exactly one.
        """
        if found := self._named(name):
            return _loose(found[0]) if len(found) == 1 else None
        return self._by_basename.get(_base(name))

    def is_archive(self, path: str) -> bool:
        """Whether what lies at this path is a tar or zip file of images."""
        return Path(path) in self._archives

    def why_not(self, name: str) -> str:
        """Say what is known of an image that was not found: nothing, or that it has namesakes."""
        found = [*map(str, self._named(name))]
        found += [place.path for place in self._contested.get(name.removeprefix("./"), ())]
        return f" (which one of {found[0]}, {found[1]}?)" if len(found) > 1 else ""

    def _named(self, name: str) -> list[Path]:
        base = _base(name)
        return self._loose.get(base) or self._loose_alike.get(base.lower()) or []

    @cached_property
    def _loose(self) -> dict[str, list[Path]]:
        """The images of the folders and their subfolders by base name; read when needed."""
        names: dict[str, list[Path]] = defaultdict(list)
        for folder in self._folders:
            for parent, folders, files in os.walk(folder):  # what cannot be read is passed over
                folders[:] = sorted(one for one in folders if not one.startswith("."))
                for name in files:
                    if PurePosixPath(name).suffix.lower() in IMAGE_SUFFIXES:
                        names[name].append(Path(parent, name))
        return names

    @cached_property
    def _loose_alike(self) -> dict[str, list[Path]]:
        names: dict[str, list[Path]] = defaultdict(list)
        for name, paths in self._loose.items():
            names[name.lower()] += paths
            names[PurePosixPath(name).stem.lower()] += paths
        return names


def _base(name: str) -> str:
    return name.replace("\\", "/").rsplit("/", 1)[-1]


def _loose(path: Path) -> Location | None:
    try:
        status = path.stat()
    except (OSError, ValueError):  # ValueError: a name with NUL
        return None
    if not stat.S_ISREG(status.st_mode):
        return None
    return Location(str(path), 0, status.st_size, None, status.st_mtime_ns)


def _same(one: Location, other: Location) -> bool:
    """Whether two places hold the same image."""
    if one == other or one.size != other.size:
        return one == other
    try:
        return read_location(one) == read_location(other)
    except OSError:
        return False


def _tar_members(path: Path) -> Iterator[tuple[str, Location]]:
    stamp = path.stat().st_mtime_ns
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.isfile():
                place = Location(str(path), member.offset_data, member.size, None, stamp)
                yield member.name.removeprefix("./"), place
            tar.members = []  # type: ignore[attr-defined]  # or it keeps every member in memory


def _zip_members(path: Path) -> Iterator[tuple[str, Location]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                place = Location(str(path), 0, member.file_size, member.filename, member.CRC)
                yield member.filename.removeprefix("./"), place


def read_location(location: Location) -> bytes:
    """Read an original image.

    Raises:
        OSError: it cannot be read, or its archive says that it is damaged.

    """
    if location.member is None:
        with open(location.path, "rb") as file:  # noqa: PTH123 - one of a hundred thousand
            file.seek(location.offset)
            return file.read(location.size)
    try:
        return _open_zip(location.path).read(location.member)  # compares the checksum
    except (zipfile.BadZipFile, EOFError, ValueError, NotImplementedError) as error:
        raise OSError(str(error)) from error


@lru_cache(maxsize=4)
def _open_zip(path: str) -> zipfile.ZipFile:
    return zipfile.ZipFile(path)  # stays open as long as the worker: its directory is long


def walk(folder: Path, *, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders in the order of their names, none hidden.

    A link to a folder that it lies in is passed over.

    Args:
        folder: to be walked.
        above: device and inode of the folders that it lies in, as they were walked.

    Raises:
        DataError: a folder cannot be read.

    """
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir())
    except FileNotFoundError as error:
        raise DataError(there_is_no("folder", folder)) from error
    except NotADirectoryError as error:
        raise DataError(f"{folder} is a file: name the folder that it is in") from error
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    if (own := (status.st_dev, status.st_ino)) in above:
        return
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from walk(entry, above=above | {own})
        else:
            yield entry
