"""The images of a split: where they lie, loose or inside tar files, and what is said of them."""

from __future__ import annotations

import os
import re
import tarfile
from collections.abc import Iterable
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image

from captioner.archives import tar_members
from captioner.errors import DataError, ImageError
from captioner.paths import expanded, there_is_no
from captioner.vision.image import open_image

__all__ = ["CaptionedImage", "ImageStore", "Member"]

_OPEN_FILES = 128  # tar files held open by a process; systems allow 256 and more
_BEGINNING = 4096  # bytes that tell images of one size apart

# English, German, French, Spanish, Italian, Portuguese; Chinese and Japanese share their signs.
_SIDED = re.compile(
    r"\b(left|right|links|rechts|(link|recht)e[nrsm]?|gauches?|droite?s?|(izquierd|derech)[oa]s?"
    r"|(sinistr|destr)[aeio]|(esquerd|direit)[oa]s?)\b|[左右]",
    re.IGNORECASE,
)


class Member(NamedTuple):
    """Where the bytes of an image lie inside a tar file."""

    path: Path
    offset: int
    size: int


class ImageStore:
    """Reads images by name from a folder, a tar file, or a glob of either ("train-*.tar").

    Only an index of names and positions is in memory, so the store travels cheaply to the worker
    processes of a loader. Each process opens a tar file once. A name never leads out of the
    folders: captions from somebody else are not to fetch the files that lie beside them.

    Raises DataError: nothing matches, or a tar file is damaged.
    """

    def __init__(self, pattern: str | os.PathLike[str]) -> None:
        self.pattern = expanded(pattern)
        self._identity: str | None = None
        self._descriptors: dict[Path, int] = {}
        self._members: dict[str, Member] = {}
        # "." is a folder, and "photos [2020]" no pattern.
        whole = self.pattern.is_dir() or self.pattern.is_file()
        found = [self.pattern] if whole else sorted(self.pattern.parent.glob(self.pattern.name))
        # train* is for train-00.tar and a folder train2017, and not for train.log.
        wide = not whole and has_magic(self.pattern.name)
        paths = [one for one in found if one.is_dir() or not wide or ".tar" in one.name.lower()]
        if not paths:
            raise DataError(there_is_no("folder or tar file", self.pattern))
        self._folders = [_normal(path) for path in paths if path.is_dir()]
        for path in paths:
            if not path.is_dir():
                self._index(path)

    @classmethod
    def from_members(
        cls, members: Iterable[tuple[str, Member]], *, pattern: Path, identity: str
    ) -> ImageStore:
        """Make a store of known members, told from others by `identity`: no tar file is scanned."""
        store = cls.__new__(cls)
        store.pattern, store._identity = pattern, identity
        store._descriptors, store._members, store._folders = {}, dict(members), []
        return store

    def _index(self, path: Path) -> None:
        try:
            for _, member in tar_members(path):
                if member.isfile():
                    self._add(member.name, Member(path, member.offset_data, member.size))
        except (tarfile.TarError, OSError) as error:
            raise DataError(
                f"{path} is not an uncompressed tar file, or is damaged: {error}"
            ) from error

    def _add(self, name: str, member: Member) -> None:
        known = self._members.setdefault(name, member)
        if known.path == member.path:  # of one tar file the last counts: what is newer is appended
            self._members[name] = member
        elif known.size != member.size or self._beginning(known) != self._beginning(member):
            raise DataError(
                f"{name} is in {known.path} and, as another image, in {member.path}: take one away"
            )

    def _beginning(self, member: Member) -> bytes:
        return self._bytes(member._replace(size=min(member.size, _BEGINNING)))

    def __contains__(self, name: str) -> bool:
        return name in self._members or self._path(name) is not None

    def leads_outside(self, name: str) -> bool:
        """Whether a name, absolute or with `..`, is that of a file outside of the folders."""
        return name not in self and any((folder / name).exists() for folder in self._folders)

    def size(self, name: str) -> int:
        """Give the bytes of an image file; 0 where there is none."""
        if name in self._members:
            return self._members[name].size
        path = self._path(name)
        return path.stat().st_size if path else 0

    def mark(self, name: str) -> str:
        """Tell an image file from any other that may come in its place under its name."""
        if self._identity is not None:
            return self._identity  # a prepared data set: its manifest has the hashes
        member = self._members.get(name)
        if (path := member.path if member else self._path(name)) is None:
            return ""
        status = path.stat()
        return f"{path.resolve()} {status.st_size} {status.st_mtime_ns}"

    def _path(self, name: str) -> Path | None:
        for folder in self._folders:
            path = _normal(folder / name)
            if path.is_relative_to(folder) and path.is_file():
                return path
        return None

    def read(self, name: str) -> bytes:
        """Read one image file. Raises DataError where there is none, or it cannot be read."""
        try:
            if member := self._members.get(name):
                data = self._bytes(member)
                if len(data) != member.size:
                    raise DataError(f"{member.path} ends inside {name}: copy or prepare it again")
                return data
            if found := self._path(name):
                return found.read_bytes()
        except OSError as error:
            raise DataError(f"{name} in {self.pattern} cannot be read: {error}") from error
        raise DataError(f"{self.pattern} has no image {name}")

    def _bytes(self, member: Member) -> bytes:
        if member.path not in self._descriptors:
            if len(self._descriptors) >= _OPEN_FILES:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[member.path] = os.open(member.path, os.O_RDONLY)
        # pread: forked workers share a descriptor's position, and must not move it.
        return os.pread(self._descriptors[member.path], member.size, member.offset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptors": {}}  # another process opens its own

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_descriptors", {}).values():
            os.close(descriptor)


@dataclass(frozen=True, kw_only=True)
class CaptionedImage:
    """An image and its captions."""

    name: str
    id: int | str
    store: ImageStore
    captions: tuple[str, ...]
    words: tuple[tuple[str, ...], ...]  # the captions, tokenized
    style: str = ""  # of the captions, where the model has several; "": its usual

    def open(self, *, at_least: int | None = None) -> Image.Image:
        """Open the image; see open_image. Raises DataError, which says which it is, and where."""
        try:
            return open_image(self.store.read(self.name), at_least=at_least)
        except ImageError as error:
            raise DataError(
                f"photo {self.name} in {self.store.pattern} cannot be used: {error.detail}, or "
                "take it out of the data"
            ) from error

    @property
    def sided(self) -> bool:
        """Whether a caption tells left from right, so that a mirrored image would make it lie."""
        return any(_SIDED.search(caption) for caption in self.captions)


def _normal(path: Path) -> Path:
    """Make a path absolute and free of `..`; its links may lead anywhere."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.resolve would follow links
