"""The images of a split, as files or inside tar files, with their captions."""

from __future__ import annotations

import io
import os
import re
import tarfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

from captioner.errors import DataError, ImageError
from captioner.generation.beam_search import Hypothesis
from captioner.photos.open import open_image
from captioner.shared.archives import tar_members
from captioner.shared.paths import absolute, expanded, there_is_no

_OPEN_FILES = 128  # tar files that a process keeps open

# Left and right in English, German, French, Spanish, Italian, Portuguese, Chinese and Japanese.
_SIDED = re.compile(
    r"\b(left|right|links|rechts|(link|recht)e[nrsm]?|gauches?|droite?s?|(izquierd|derech)[oa]s?"
    r"|(sinistr|destr)[aeio]|(esquerd|direit)[oa]s?)\b|[左右]",
    re.IGNORECASE,
)


class Member(NamedTuple):
    """The bytes of an image: a file, or a part of a tar file."""

    path: Path
    offset: int
    size: int


def add_member(tar: tarfile.TarFile, name: str, data: bytes) -> int:
    """Append a file to a tar file and return the offset of its bytes."""
    member = tarfile.TarInfo(name)  # time and owner are 0
    member.size = len(data)
    offset: int = tar.offset + tarfile.BLOCKSIZE  # short names need one block of header
    tar.addfile(member, io.BytesIO(data))
    return offset


class ImageStore:
    """Reads images by name from a folder, a tar file, or a glob of either ("train-*.tar").

    Names outside the folders are refused, so that a downloaded data set cannot read other files.
    """

    def __init__(self, pattern: str | os.PathLike[str]) -> None:
        self.pattern = expanded(pattern)
        self._identity: str | None = None
        self._descriptors: dict[Path, int] = {}
        self._members: dict[str, Member] = {}
        if self.pattern.exists():  # a name such as "photos [2020]" is not a glob then
            paths = [self.pattern]
        else:  # train* matches train-00.tar and the folder train2017, but not train.log
            matches = sorted(self.pattern.parent.glob(self.pattern.name))
            paths = [path for path in matches if path.is_dir() or ".tar" in path.name.lower()]
        if not paths:
            raise DataError(there_is_no("folder or tar file", self.pattern))
        self._folders = [absolute(path) for path in paths if path.is_dir()]
        for path in paths:
            if not path.is_dir():
                self._index(path)

    @classmethod
    def from_members(
        cls, members: Iterable[tuple[str, Member]], *, pattern: Path, identity: str
    ) -> ImageStore:
        """Build a store from an index, without reading tar files; `identity` is its token."""
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
        first = self._members.setdefault(name, member)
        if first.path == member.path:  # as in tar, the last member of a name counts
            self._members[name] = member
        elif first.size != member.size or self._bytes(first) != self._bytes(member):
            raise DataError(
                f"{first.path} and {member.path} have different images named {name}: remove one"
            )

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def leads_outside(self, name: str) -> bool:
        """Whether a name is absolute or has `..`, and leads to a file outside the folders."""
        return name not in self and any((folder / name).exists() for folder in self._folders)

    def size(self, name: str) -> int:
        """Return the size of an image file in bytes; 0 if there is none."""
        member = self._find(name)
        return member.size if member else 0

    def cache_token(self, name: str) -> str:
        """Return a string that changes when an image file is replaced."""
        if self._identity is not None:
            return self._identity  # a prepared data set has hashes in its manifest
        if (member := self._find(name)) is None:
            return ""
        status = member.path.stat()
        return f"{member.path.resolve()} {status.st_size} {status.st_mtime_ns}"

    def _find(self, name: str) -> Member | None:
        if name in self._members:
            return self._members[name]
        for folder in self._folders:
            path = absolute(folder / name)
            if path.is_relative_to(folder) and path.is_file():
                return Member(path, 0, path.stat().st_size)
        return None

    def read(self, name: str) -> bytes:
        """Read an image file. Raises DataError: it does not exist or cannot be read."""
        try:
            if (member := self._find(name)) is None:
                raise DataError(f"{self.pattern} has no image {name}")
            if name not in self._members:
                return member.path.read_bytes()
            data = self._bytes(member)
        except OSError as error:
            raise DataError(f"{name} in {self.pattern} cannot be read: {error}") from error
        if len(data) != member.size:
            raise DataError(f"{member.path} ends inside {name}: copy or prepare it again")
        return data

    def _bytes(self, member: Member) -> bytes:
        if member.path not in self._descriptors:
            if len(self._descriptors) >= _OPEN_FILES:
                os.close(self._descriptors.pop(next(iter(self._descriptors))))
            self._descriptors[member.path] = os.open(member.path, os.O_RDONLY)
        # Not seek and read: forked workers share the descriptor and its position.
        return os.pread(self._descriptors[member.path], member.size, member.offset)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_descriptors": {}}  # other processes open their own

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
    style: str = ""  # style of the captions; "": the default of the model

    def open(self, *, at_least: int | None = None) -> Image.Image:
        """Open the image; see open_image. Raises DataError."""
        try:
            return open_image(self.store.read(self.name), at_least=at_least)
        except ImageError as error:
            raise DataError(
                f"photo {self.name} in {self.store.pattern} cannot be used: {error.detail}, or "
                "remove it from the data"
            ) from error

    @property
    def mentions_left_or_right(self) -> bool:
        """Whether a caption mentions left or right, so that the image must not be mirrored."""
        return any(_SIDED.search(caption) for caption in self.captions)


@dataclass(frozen=True, kw_only=True)
class Captioned:
    """An image with its generated caption.

    attention: (words, rows, columns); None without attention.
    effects: the effect of each word in the deletion test, in nats; None if it was not run.
    """

    image: CaptionedImage
    hypothesis: Hypothesis
    words: list[str]
    attention: Tensor | None
    effects: Sequence[float] | None = None
