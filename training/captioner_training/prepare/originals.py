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

from captioner.errors import DataError
from captioner.photos.header import IMAGE_SUFFIXES
from captioner.shared.archives import tar_members
from captioner.shared.paths import expanded, is_system_folder, there_is_no
from captioner_training.prepare.locations import Location, read_location
from captioner_training.prepare.splits import split_in_folders, split_in_stem, split_named

_ARCHIVES = (".tar", ".zip")
_SHOWN = 5  # places in a message


def _matches(pattern: Path) -> list[Path]:
    return sorted(Path(pattern.anchor).glob(str(pattern.relative_to(pattern.anchor))))


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


def folders_of(path: str) -> str:
    """Return the folders before the base name, in lower case; "" without folders."""
    return casefold_path(to_posix(path)).rpartition("/")[0]


class Found(NamedTuple):
    """An original image: its path in its folder or archive, and where its bytes are."""

    name: str
    location: Location


class ImageFiles:
    """Finds images by the names that a data set has for them.

    Args:
        places: folders (with the archives in them), tar files, zip files, or globs of them.
        links: follow links that lead out of the places. Leave this off for a downloaded table,
            which could name private photos. Names with `..` may never lead out.

    Raises DataError: a place does not exist, or an archive is damaged.
    """

    def __init__(self, places: Iterable[str | os.PathLike[str]], *, links: bool = False) -> None:
        self._folders: list[Path] = []
        self._archives: list[Path] = []
        self._used: set[Location] = set()
        for place in places:
            pattern = expanded(place)
            # A name with brackets may be a file, not a pattern.
            paths = [pattern] if pattern.exists() else _matches(pattern)
            if not paths:
                raise DataError(there_is_no("file or folder", pattern))
            for path in paths:
                if path.is_dir():
                    self._folders.append(path)
                    archives = (file for file in path.iterdir() if file.suffix.lower() in _ARCHIVES)
                    self._archives += sorted(filter(Path.is_file, archives))
                else:
                    self._archives.append(path)
        self._members = [member for archive in self._archives for member in _members(archive)]
        resolved: Callable[[Path], str] = os.path.abspath if links else os.path.realpath
        self._resolved = lru_cache(resolved)  # many images share a folder
        self._roots = [self._resolved(folder) for folder in self._folders]

    def __str__(self) -> str:
        folders = [f"{folder} and its subfolders" for folder in self._folders]
        places = [*folders, *map(str, self._archives)]
        more = len(places) - _SHOWN
        return ", ".join(places[:_SHOWN]) + (f" and {more} more places" if more > 0 else "")

    def split_of(self, image: Found) -> tuple[str, str] | None:
        """Return the split that an image's folders, archive or place are named after."""
        name, path = image.name, Path(image.location.path)
        parents = [folder for folder in self._folders if folder in path.parents]
        if name.startswith("/") and parents:
            name = path.relative_to(parents[0]).as_posix()
        if not name.startswith("/") and (split := split_in_folders(name)):
            return split, "folders"
        if not image.location.is_loose:
            return (split, "file names") if (split := split_in_stem(path.stem)) else None
        if len(self._folders) > 1:  # the name of one folder of photos may mean anything
            split = next(filter(None, (split_named(folder.name) for folder in parents)), None)
        return (split, "folders") if split else None

    def find(self, name: str, split: str | None = None) -> Found | None:
        """Return the image with this path, or else the only one whose name is as similar.

        In this order: the path, also without a suffix; then the base name in any folder, also
        without a suffix. Case and Unicode form do not matter, but an exact name comes first. Images
        of another split than `split` come last. Returns None if no image matches, or if several
        different images match equally well.
        """
        images = self._called(to_posix(name), split)
        locations = [image.location for image in images]
        self._used.update(locations)
        if images and all(_same(locations[0], location) for location in locations[1:]):
            return images[0]
        return None

    def _called(self, name: str, split: str | None) -> list[Found]:
        def rank(image: Found) -> int:
            """Return 0 for an image of `split`, 2 for one of another split, 1 for others."""
            of_image = self.split_of(image) if split else None
            return 1 if of_image is None else 0 if of_image[0] == split else 2

        # Exact paths first, because walking folders is slow.
        places = (self._loose(folder / name) for folder in self._folders)
        exact = [Found(name, place) for place in places if place]
        best = min(map(rank, exact), default=2)
        if best < 2:
            return [image for image in exact if rank(image) == best]
        near = defaultdict[tuple[int, ...], list[Found]](list)
        for path, place in self._by_stem.get(_stem(base_name(name)), ()):
            location = self._loose(place) if isinstance(place, Path) else place
            level = _level(path, name)
            if location and level is not None:
                of_split = rank(image := Found(path, location))
                is_exact = path == name, base_name(path) == base_name(name)
                order = (of_split == 2, level, not is_exact[0], not is_exact[1], of_split)
                near[*order, not location.is_loose].append(image)
        return near[min(near)] if near else exact

    def unused(self) -> list[str]:
        """Return the names of images that `find` has not returned, sorted.

        A folder may be a whole home folder, so only the common parent of its used images is
        searched. Archive members that were also found as unpacked files are not listed.
        """
        files = [place for place in self._used if place.is_loose]
        loose = {os.path.realpath(place.path) for place in files}
        unpacked = {(casefold_path(base_name(place.path)), place.size) for place in files}
        images = [
            name
            for name, place in self._members
            if image_suffix(name)
            and place not in self._used
            and (casefold_path(base_name(name)), place.size) not in unpacked
        ]
        for folder in self._folders:
            used = (Path(os.path.normpath(place.path)) for place in files)
            near = {path.parent for path in used if path.is_relative_to(folder)}
            below = _images(folder, Path(os.path.commonpath(near)) if near else folder)
            images += [name for name, path in below if os.path.realpath(path) not in loose]
        return sorted(name for name in images if base_name(name)[0] != ".")

    @cached_property
    def _by_stem(self) -> dict[str, list[tuple[str, Path | Location]]]:
        """All images by the stem of their base name, loose files first."""
        images: dict[str, list[tuple[str, Path | Location]]] = defaultdict(list)
        found: list[tuple[str, Path | Location]] = []
        for folder in self._folders:
            found += _images(folder, folder)
        for name, place in (*found, *self._members):
            images[_stem(base_name(name))].append((name, place))
        return images

    def _loose(self, path: Path) -> Location | None:
        try:
            status = path.stat()
        except (OSError, ValueError):  # ValueError: a name with NUL
            return None
        if not stat.S_ISREG(status.st_mode) or not self._is_inside(path):
            return None
        return Location(str(path), 0, status.st_size, None, status.st_mtime_ns)

    def _is_inside(self, path: Path) -> bool:
        """Whether a file is in one of the folders, after resolving `..` and links."""
        folder = Path(self._resolved(path) if path.is_symlink() else path).parent
        return any(Path(self._resolved(folder)).is_relative_to(root) for root in self._roots)


def _images(folder: Path, top: Path) -> Iterator[tuple[str, Path]]:
    """Yield the images below `top` by their paths relative to `folder`."""
    for parent, folders, files in os.walk(top):  # skips unreadable folders
        folders[:] = sorted(n for n in folders if not (n.startswith(".") or is_system_folder(n)))
        above = Path(parent).relative_to(folder)
        for name in filter(image_suffix, files):
            yield (above / name).as_posix(), Path(parent, name)


def _stem(name: str) -> str:
    """Return a path in lower case and NFC form, without an image suffix."""
    return casefold_path(name.removesuffix(image_suffix(name)))


def _level(path: str, name: str) -> int | None:
    """Return 0 if a path has this name, 1 without its suffix, 2 and 3 for base names; else None."""
    wanted, base = casefold_path(name), casefold_path(base_name(name))
    equal = (
        casefold_path(path) == wanted,
        _stem(path) == wanted,
        casefold_path(base_name(path)) == base,
        _stem(base_name(path)) == base,
    )
    return equal.index(True) if any(equal) else None


def _same(a: Location, b: Location) -> bool:
    if a == b or a.size != b.size:
        return a == b
    try:
        return read_location(a) == read_location(b)
    except OSError:
        return False


def _members(archive: Path) -> Iterator[Found]:
    """Yield the files in an archive. Raises DataError."""
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as file:
                for info in file.infolist():
                    if not info.is_dir():
                        place = Location(str(archive), 0, info.file_size, info.filename, info.CRC)
                        yield Found(info.filename.removeprefix("./"), place)
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
    """Yield the files of a folder and its subfolders, sorted by name.

    Hidden files and folders, and system folders of a NAS or trash, are skipped.

    Links to a parent folder are skipped; `above` has the device and inode of the parents.

    Raises DataError: a folder cannot be read.
    """
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir())
    except FileNotFoundError as error:
        raise DataError(there_is_no("folder", folder)) from error
    except NotADirectoryError as error:
        raise DataError(f"{folder} is a file: name its folder") from error
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    if (identity := (status.st_dev, status.st_ino)) in above:
        return
    for entry in entries:
        if entry.name.startswith(".") or is_system_folder(entry.name):
            continue
        if entry.is_dir():
            yield from walk(entry, above=above | {identity})
        else:
            yield entry
