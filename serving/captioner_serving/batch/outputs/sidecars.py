"""Sidecars: a file with the caption beside each photo, which is never opened for writing itself.

A sidecar is the old one or wholly the new one; and writing it twice, as a run that was killed and
goes on may, changes nothing.
"""

from __future__ import annotations

import errno
import os
from typing import Any

from captioner.errors import OutputError
from captioner.files import replace_file
from captioner.json_line import json_line
from captioner.readers import IMAGE_SUFFIXES
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.journal.written import WrittenFiles
from captioner_serving.batch.outputs.existing import read_existing
from captioner_serving.batch.outputs.merging import combine
from captioner_serving.batch.outputs.xmp import merge_xmp

__all__ = ["SidecarWriter", "is_fatal", "is_inside"]

_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_LARGEST = 1 << 26  # bytes; a sidecar is read into memory


class SidecarWriter:
    """Writes PHOTO's sidecar: photo.jpg -> photo.txt, photo.caption, photo.json or photo.xmp.

    A photo.jpg.xmp, as darktable names it, is used where there is one. `kept` counts the sidecars
    that were there already and stayed as they were. Photos that differ only in their suffix
    (photo.jpg, photo.png) have sidecars named by both, photo.jpg.txt; `apart` counts those.
    Each is noted in `written`, where a run keeps that.
    """

    def __init__(self, config: BatchConfig, written: WrittenFiles | None = None) -> None:
        self._config = config
        self._written = written
        self.kept = self.apart = 0

    def write(self, photo: Photo, record: dict[str, Any]) -> None:
        """Write the sidecar of a photo.

        Raises:
            OutputError: the photo is inside an archive or at a URL, the folder cannot be written,
                a sidecar that is there cannot be read, or is a link to another folder.

        """
        if photo.path is None:
            raise OutputError(f"{photo.name} is not a file of its own: it can have no sidecar")
        # A link is written through, not replaced.
        place = self._path(photo.path)
        path = os.path.realpath(place)
        try:
            if os.path.exists(path) and os.path.samefile(path, photo.path):
                raise OutputError(f"{photo.name} would be its own sidecar: rename the photo")
            old = read_existing(path, kind="a sidecar", largest=_LARGEST)
        except OSError as error:
            raise OutputError(f"{path} cannot be read: {error.strerror}") from error
        new = self._content(path, old, record)
        if new is None or new == old:
            self.kept += new is None
        else:
            if not is_inside(path, os.path.dirname(place)):
                raise OutputError(
                    f"{place} is a link that leads out of its folder, to {path}: nothing was "
                    "written there; put a file in the place of the link"
                )
            part = self._written.note(path, new, old=old) if self._written else None
            with replace_file(path, part=part) as file:
                file.write(new)

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


def _has_sibling(photo: str) -> bool:
    """Whether another photo beside this one has the same name but for the suffix."""
    stem, own = os.path.splitext(photo)
    return own.lower() in IMAGE_SUFFIXES and any(
        os.path.lexists(sibling := f"{stem}{suffix}")
        # Where case makes no difference, photo.jpg is found as photo.JPG too.
        and not (known == own.lower() and _same(sibling, photo))
        for known in IMAGE_SUFFIXES
        for suffix in (known, known.upper())
        if suffix != own
    )


def _same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # a link to nowhere, or gone
        return False


def is_inside(path: str | os.PathLike[str], folder: str) -> bool:
    """Whether a path leads into a folder or below it, links followed."""
    real = os.path.realpath(folder)
    return os.path.commonpath((os.path.realpath(path), real)) == real
