"""Find original images by name: loose in folders, or inside tar and zip files."""

from __future__ import annotations

import os
import stat
import tarfile
import unicodedata
import zipfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property, lru_cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from captioner.archives import tar_members
from captioner.errors import DataError
from captioner.paths import expanded, there_is_no
from captioner.vision.header import IMAGE_SUFFIXES
from captioner_training.prepare.locations import Location, read_location
from captioner_training.prepare.splits import splits_of_files

__all__ = [
    "Found",
    "ImageFiles",
    "base_name",
    "composed",
    "folded",
    "folders_of",
    "image_suffix",
    "slashed",
    "walk",
]

_ARCHIVES = (".tar", ".zip")
_NAMED = 5  # places; a data set in a hundred tar files would fill the screen


def _matches(pattern: Path) -> list[Path]:
    """List the paths that match a pattern with wildcards in any part."""
    return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


def composed(name: str) -> str:
    """Return a name in Unicode's NFC, in which names that look the same are equal."""
    return unicodedata.normalize("NFC", name)


def folded(name: str) -> str:
    """Return a name in lower case, composed."""
    return composed(composed(name).casefold())


def image_suffix(name: str) -> str:
    """Return the suffix of an image's name; "" if it has another one, or none."""
    suffix = PurePosixPath(name).suffix
    return suffix if suffix.lower() in IMAGE_SUFFIXES else ""


def stem(name: str) -> str:
    """Return a path in lower case, composed, without the suffix of an image."""
    return folded(name.removesuffix(image_suffix(name)))


def slashed(path: str) -> str:
    """Return a path with forward slashes; it may be one of Windows."""
    return (path if "/" in path else path.replace("\\", "/")).removeprefix("./")


def base_name(path: str) -> str:
    """Return the last part of a path."""
    return slashed(path).rpartition("/")[2]


def folders_of(path: str) -> str:
    """Return the folders before the base name, in lower case; "" if there are none."""
    return folded(slashed(path)).rpartition("/")[0]


class Found(NamedTuple):
    """An original image: its path in its folder or archive, and where its bytes are."""

    name: str
    location: Location


class ImageFiles:
    """Finds images by the names that a data set calls them.

    Args:
        places: folders, tar files, zip files, or globs of them, and archives directly in a folder.
        links: whether a link in a folder may lead out of all places. A name never may: a
            downloaded table must not fetch private photos.

    Raises DataError: nothing is there, or an archive is damaged.
    """

    def __init__(self, places: Iterable[str | os.PathLike[str]], *, links: bool = False) -> None:
        self._folders: list[Path] = []
        self._archives: list[Path] = []
        self._spelled: dict[tuple[int, int, str], Location] = {}
        self._used: set[Location] = set()
        for place in places:
            pattern = expanded(place)
            # A name with brackets is itself before it is a pattern.
            paths = [pattern] if pattern.exists() else _matches(pattern)
            if not paths:
                raise DataError(there_is_no("file or folder", pattern))
            for path in paths:
                if path.is_dir():
                    self._folders.append(path)
                    archives = [one for one in path.iterdir() if one.suffix.lower() in _ARCHIVES]
                    self._archives += sorted(filter(Path.is_file, archives))
                else:
                    self._archives.append(path)
        self._members = [member for archive in self._archives for member in _members(archive)]
        resolved: Callable[[Path], str] = os.path.abspath if links else os.path.realpath
        self._resolved = lru_cache(resolved)  # most images share their folder with others
        self._roots = [self._resolved(folder) for folder in self._folders]

    def __str__(self) -> str:
        folders = [f"{folder} and its subfolders" for folder in self._folders]
        places = [*folders, *map(str, self._archives)]
        more = len(places) - _NAMED
        return ", ".join(places[:_NAMED]) + (f" and {more} more places" if more > 0 else "")

    def split_of(self, location: Location) -> tuple[str, str] | None:
        """Return the split that an archive or folder, one of several places, is named for."""
        if not location.is_loose:
            return self._place_splits.get(location.path)
        parents = map(str, Path(location.path).parents)
        return next(filter(None, map(self._place_splits.get, parents)), None)

    @cached_property
    def _place_splits(self) -> dict[str, tuple[str, str] | None]:
        places = [*self._folders, *self._archives]
        return dict(zip(map(str, places), splits_of_files(places), strict=True))

    def find(self, name: str) -> Found | None:
        """Find an image by its path, then the one with the most similar name.

        That is a path in another case or without a suffix, then one with the same base name.
        None: there is none, or several different ones.
        """
        found = self._called(name)
        same = bool(found) and all(_same(found[0].location, one.location) for one in found[1:])
        self._used.update(one.location for one in found)
        return found[0] if same else None

    def has(self, name: str) -> bool:
        """Whether one or several images have this name."""
        return bool(self._called(name))

    def unused(self) -> list[str]:
        """Return the names of images that `find` has not returned, sorted.

        A folder is searched from the common folder of those that were found: it may be a home
        folder. Packed copies of a photo that lies unpacked beside the archive are left out.
        """
        loose = {os.path.realpath(place.path) for place in self._used if place.is_loose}
        unpacked = {(folded(base_name(one.path)), one.size) for one in self._used if one.is_loose}

        def is_used(name: str, place: Path | Location) -> bool:
            if isinstance(place, Location):
                return place in self._used or (folded(base_name(name)), place.size) in unpacked
            return os.path.realpath(place) in loose

        each: list[tuple[str, Path | Location]] = [
            one for one in self._members if image_suffix(one.name)
        ]
        for folder in self._folders:
            used = (Path(os.path.normpath(one.path)) for one in self._used if one.is_loose)
            near = {path.parent for path in used if path.is_relative_to(folder)}
            each += _images(folder, Path(os.path.commonpath(near)) if near else folder)
        return sorted(
            name for name, place in each if base_name(name)[0] != "." and not is_used(name, place)
        )

    def why_not(self, name: str) -> str:
        """Return why an image was not found, in parentheses; "" if unknown."""
        for folder in self._folders:
            path = folder / slashed(name)
            if path.is_file() and not self._is_inside(path):
                return f" (outside: {os.path.realpath(path)})"
        found = self._called(name)
        if len(found) < 2:
            return ""
        return f" (which one of {found[0].location.path}, {found[1].location.path}?)"

    def _called(self, name: str) -> list[Found]:
        name = slashed(name)
        # First as it is written: folders are not walked without need.
        exact = (self._loose(folder / name) for folder in self._folders)
        if found := [Found(self._below(name), place) for place in exact if place]:
            return found
        near = defaultdict[tuple[tuple[bool, ...], bool], list[Found]](list)
        for path, known in self._known.get(stem(base_name(name)), ()):
            location = self._loose(known) if isinstance(known, Path) else known
            distance = _distance(path, name)
            if location and distance is not None:
                near[distance, not location.is_loose].append(Found(path, location))
        return near[min(near)] if near else []

    def _below(self, name: str) -> str:
        """Return an absolute name relative to the folder that it lies in."""
        for folder in self._folders if name.startswith("/") else ():
            if (path := Path(name)).is_relative_to(folder):
                return path.relative_to(folder).as_posix()
        return name

    @cached_property
    def _known(self) -> dict[str, list[tuple[str, Path | Location]]]:
        """All images by the stems of their base names, loose ones first; read when needed."""
        known: dict[str, list[tuple[str, Path | Location]]] = defaultdict(list)
        for folder in self._folders:
            for name, path in _images(folder, folder):
                known[stem(path.name)].append((name, path))
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


def _images(folder: Path, top: Path) -> Iterator[tuple[str, Path]]:
    """List the images below `top`, by their paths as seen from the folder that this lies in."""
    for parent, folders, files in os.walk(top):  # what cannot be read is passed over
        folders[:] = sorted(one for one in folders if not one.startswith("."))
        above = Path(parent).relative_to(folder)
        for name in filter(image_suffix, files):
            yield (above / name).as_posix(), Path(parent, name)


def _distance(path: str, name: str) -> tuple[bool, ...] | None:
    """Return the distance of a path from the name of an image; None: another image."""
    equal = [
        is_equal
        for one, other in ((path, name), (base_name(path), base_name(name)))
        for is_equal in (
            one == other,
            composed(one) == composed(other),
            folded(one) == folded(other),
            stem(one) == folded(other),
        )
    ]
    return tuple(not is_equal for is_equal in equal) if any(equal) else None


def _same(one: Location, other: Location) -> bool:
    """Whether two locations hold the same bytes."""
    if one == other or one.size != other.size:
        return one == other
    try:
        return read_location(one) == read_location(other)
    except OSError:
        return False


def _members(archive: Path) -> Iterator[Found]:
    """List the files inside an archive. Raises DataError."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                for one in file.infolist():
                    if not one.is_dir():
                        place = Location(str(archive), 0, one.file_size, one.filename, one.CRC)
                        yield Found(one.filename.removeprefix("./"), place)
            return
        stamp = archive.stat().st_mtime_ns
        for _, member in tar_members(archive):
            if member.isfile():
                place = Location(str(archive), member.offset_data, member.size, None, stamp)
                yield Found(member.name.removeprefix("./"), place)
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DataError(
            f"{archive} cannot be read as a zip file or an uncompressed tar file: {error}"
        ) from error


def walk(folder: Path, *, above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Path]:
    """Yield the files of a folder and its subfolders in the order of their names, none hidden.

    A link to a folder that it lies in is passed over: `above` has the device and inode of those.
    Raises DataError where a folder cannot be read.
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
