"""Sidecars: a file with the caption beside each photo, which is never opened for writing itself.

A sidecar is the old one or wholly the new one; and writing it twice, as a run that was killed and
goes on may, changes nothing.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from captioner.errors import OutputError
from captioner.terminal import json_line
from captioner.vision.header import IMAGE_SUFFIXES
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import Photo, PhotoFile
from captioner_serving.batch.outputs.written import Write, read_existing
from captioner_serving.batch.outputs.xmp import merge_xmp
from captioner_serving.batch.wording import combine

__all__ = ["SidecarWriter", "find_photo", "is_fatal"]

_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_LARGEST = 1 << 26  # bytes; a sidecar is read into memory


class SidecarWriter:
    """Writes PHOTO's sidecar: photo.jpg -> photo.txt, photo.caption, photo.json or photo.xmp.

    A photo.jpg.xmp, as darktable names it, is used where there is one. `kept` counts the sidecars
    that were there already and stayed as they were. Photos that differ only in their suffix
    (photo.jpg, photo.png) have sidecars named by both, photo.jpg.txt; `apart` counts those.
    """

    def __init__(self, config: BatchConfig, write: Write) -> None:
        self._config = config
        self._write = write
        self.kept = self.apart = 0

    def write(self, photo: Photo, record: dict[str, Any]) -> None:
        """Write the sidecar of a photo, or raise the OutputError that is the photo's."""
        if photo.path is None:
            raise OutputError(f"{photo.name} is not a file of its own: it can have no sidecar")
        # A link is written through, not replaced.
        place = self._path(photo.path)
        path = os.path.realpath(place)
        if _is_same(path, photo.path):
            raise OutputError(f"{photo.name} would be its own sidecar: rename the photo")
        old = read_existing(path, kind="a sidecar", largest=_LARGEST)
        new = self._content(path, old, record)
        if new is None or new == old:
            self.kept += new is None
            return
        if not _is_inside(path, os.path.dirname(place)):
            raise OutputError(
                f"{place} is a link that leads out of its folder, to {path}: nothing was "
                "written there; put a file in the place of the link"
            )
        self._write(path, new, old=old)

    def _path(self, photo: str) -> str:
        """Name the sidecar: by the photo's stem, or by its whole name where a sibling shares it."""
        kind = self._config.sidecar
        if kind == "xmp" and os.path.lexists(f"{photo}.xmp"):
            return f"{photo}.xmp"
        if _has_sibling(photo):
            self.apart += 1
            return f"{photo}.{kind}"
        return f"{os.path.splitext(photo)[0]}.{kind}"

    def _content(self, path: str, old: bytes | None, record: dict[str, Any]) -> bytes | None:
        """Make what the sidecar shall hold; None leaves the one that is there alone."""
        config, caption = self._config, record["caption"]
        if config.sidecar == "xmp":
            return merge_xmp(
                old, caption, language=config.language, existing=config.existing, path=path
            )
        if old is not None and config.existing == "skip":
            return None
        if old is not None and b"\0" in old:
            raise OutputError(f"{path} is not text: it was left as it is")
        if config.sidecar == "json":
            return json_line(record, indent=2).encode() + b"\n"
        try:
            before = None if old is None else old.decode("utf-8-sig").rstrip("\r\n")
        except UnicodeDecodeError as error:
            if config.existing != "overwrite":
                raise OutputError(f"{path} is not UTF-8 text: it was left as it is") from error
            before = None
        return (combine(before, caption, config.existing) or "").encode("utf-8", "replace") + b"\n"


def is_fatal(error: OutputError) -> bool:
    """Whether what happened to a file will happen to the next one too."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FATAL


def find_photo(name: str, root: str | None) -> PhotoFile:
    """Find the photo of a record, which has to be there, and below the root."""
    file = os.path.join(root or "", name)
    # Records may be another person's, and a folder on the way be a link.
    if root is not None and not _is_inside(os.path.dirname(file), root):
        raise OutputError(
            f"{name} leads out of the folder {root}: leave --root out if you trust the records"
        )
    if not os.path.isfile(file):  # Path.is_file would raise on a name that is too long
        raise OutputError(
            f"{file} is not a file here, so a sidecar has no place; --root says where relative "
            "names start"
        )
    return PhotoFile(name=name, file=file)


def _is_inside(path: str | os.PathLike[str], folder: str) -> bool:
    """Whether a path leads into a folder or below it, links followed."""
    real = os.path.realpath(folder)
    return os.path.commonpath((os.path.realpath(path), real)) == real


def _has_sibling(photo: str) -> bool:
    """Whether another photo beside this one has the same name but for the suffix."""
    stem, own = os.path.splitext(photo)
    return own.lower() in IMAGE_SUFFIXES and any(
        os.path.lexists(sibling := f"{stem}{suffix}")
        # Where case makes no difference, photo.jpg is found as photo.JPG too.
        and not (known == own.lower() and _is_same(sibling, photo))
        for known in IMAGE_SUFFIXES
        for suffix in (known, known.upper())
        if suffix != own
    )


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # a link to nowhere, or gone
        return False
