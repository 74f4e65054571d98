"""Where the original images lie: loose in folders, or inside tar and zip files."""

from __future__ import annotations

import os
import stat
import tarfile
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path
from typing import NamedTuple

from captioner.errors import DataError
from captioner.paths import expanded, there_is_no
from captioner_training.prepare.names import base_name, composed, folded, image_suffix, stem

__all__ = ["Found", "ImageFiles", "Location", "read_location", "walk"]

_ARCHIVES = (".tar", ".zip")
_TOLD = 5  # places; a data set in a hundred tar files would fill the screen


class Location(NamedTuple):
    """The bytes of one original image."""

    path: str  # of the file, or of the archive
    offset: int
    size: int
    member: str | None  # of a zip file, where they may be compressed
    stamp: int  # changes when the image does: modification time, or a zip file's own checksum

    @property
    def is_loose(self) -> bool:
        """Whether it is a file by itself: in archives a header comes before."""
        return self.member is None and self.offset == 0


class Found(NamedTuple):
    """An original image: its path in its folder or archive, and where its bytes are."""

    name: str
    location: Location


class ImageFiles:
    """Finds images by the names that a data set calls them.

    Args:
        places: folders, tar files, zip files, or globs of them. The archives that lie directly
            in a folder count as well, so that a folder of tar files can be named as it is.
        links: whether a link in a folder may lead out of all of them. A name never may: a table
            from somebody else is not to fetch the photos that lie beside the folder.

    Raises:
        DataError: nothing is there, or an archive is damaged.

    """

    def __init__(self, places: Iterable[str | os.PathLike[str]], *, links: bool = False) -> None:
        self._folders: list[Path] = []
        self._archives: list[Path] = []
        self._members: list[Found] = []
        self._spelled: dict[tuple[int, int, str], Location] = {}
        for place in places:
            pattern = expanded(place)
            # A name with brackets is itself before it is a pattern.
            paths = [pattern] if pattern.exists() else sorted(pattern.parent.glob(pattern.name))
            if not paths:
                raise DataError(there_is_no("file or folder", pattern))
            for path in paths:
                self._add(path)
        resolved: Callable[[Path], str] = os.path.abspath if links else os.path.realpath
        self._resolved = lru_cache(resolved)  # most images share their folder with others
        self._roots = [self._resolved(folder) for folder in self._folders]

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
            self._members += members(path)
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

    def find(self, name: str) -> Found | None:
        """Look for an image by its path; where it is not, for the one that is called most like it.

        That is a path with other capital letters or with a suffix, then one with the same base
        name. None: nothing is, or several different ones are.
        """
        found = self._called(name)
        same = bool(found) and all(_same(found[0].location, one.location) for one in found[1:])
        return found[0] if same else None

    def why_not(self, name: str) -> str:
        """Say what is known of an image that was not found: nothing, or why it was not taken."""
        for folder in self._folders:
            path = folder / _slashed(name)
            if path.is_file() and not self._is_inside(path):
                return f" (outside: {os.path.realpath(path)})"
        found = self._called(name)
        if len(found) < 2:
            return ""
        return f" (which one of {found[0].location.path}, {found[1].location.path}?)"

    def _called(self, name: str) -> list[Found]:
        path = _slashed(name)
        # First as it is written: folders are not walked without need.
        places = (self._loose(folder / path) for folder in self._folders)
        return [Found(path, place) for place in places if place] or self._nearest(path)

    def _nearest(self, name: str) -> list[Found]:
        near: dict[tuple[int, bool], list[Found]] = defaultdict(list)
        for path, place in self._known.get(stem(base_name(name)), ()):
            location = self._loose(place) if isinstance(place, Path) else place
            distance = _distance(path, name)
            if location and distance is not None:
                near[distance, not location.is_loose].append(Found(path, location))
        return near[min(near)] if near else []

    @cached_property
    def _known(self) -> dict[str, list[tuple[str, Path | Location]]]:
        """All images by the stems of their base names, loose ones first; read when needed."""
        known: dict[str, list[tuple[str, Path | Location]]] = defaultdict(list)
        for folder in self._folders:
            for parent, folders, files in os.walk(folder):  # what cannot be read is passed over
                folders[:] = sorted(one for one in folders if not one.startswith("."))
                above = Path(parent).relative_to(folder)
                for name in filter(image_suffix, files):
                    known[stem(name)].append(((above / name).as_posix(), Path(parent, name)))
        for member in self._members:
            known[stem(base_name(member.name))].append(member)
        return known

    def _loose(self, path: Path) -> Location | None:
        try:
            status = path.stat()
        except (OSError, ValueError):  # ValueError: a name with NUL
            return None
        if not stat.S_ISREG(status.st_mode) or not self._is_inside(path):
            return None
        place = Location(str(path), 0, status.st_size, None, status.st_mtime_ns)
        # What the file system takes for two spellings of one name is one place.
        return self._spelled.setdefault((status.st_dev, status.st_ino, folded(str(path))), place)

    def _is_inside(self, path: Path) -> bool:
        """Whether a file lies in one of the folders, after all `..` and links."""
        folder = Path(self._resolved(path) if path.is_symlink() else path).parent
        return any(Path(self._resolved(folder)).is_relative_to(root) for root in self._roots)


def _slashed(name: str) -> str:
    path = name.replace("\\", "/") if "/" not in name else name  # a table from Windows
    return path.removeprefix("./")


def _distance(path: str, name: str) -> int | None:
    """Say how far a path is from the name of an image: 0 is the same, None something else."""
    equal = (
        is_equal
        for one, other in ((path, name), (base_name(path), base_name(name)))
        for is_equal in (
            one == other,
            composed(one) == composed(other),
            folded(one) == folded(other),
            stem(one) == folded(other),
        )
    )
    return next((at for at, is_equal in enumerate(equal) if is_equal), None)


def _same(one: Location, other: Location) -> bool:
    """Whether two places hold the same image."""
    if one == other or one.size != other.size:
        return one == other
    try:
        return read_location(one) == read_location(other)
    except OSError:
        return False


def _tar_members(path: Path) -> Iterator[Found]:
    stamp = path.stat().st_mtime_ns
    with tarfile.open(path, "r:") as tar:
        for member in tar:
            if member.isfile():
                place = Location(str(path), member.offset_data, member.size, None, stamp)
                yield Found(member.name.removeprefix("./"), place)
            tar.members = []  # type: ignore[attr-defined]  # or it keeps every member in memory


def _zip_members(path: Path) -> Iterator[Found]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if not member.is_dir():
                place = Location(str(path), 0, member.file_size, member.filename, member.CRC)
                yield Found(member.filename.removeprefix("./"), place)


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
