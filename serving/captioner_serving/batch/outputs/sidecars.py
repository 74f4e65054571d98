"""Sidecars: a file with the caption beside each photo.

A sidecar is replaced atomically. Writing it twice, as a resume may, changes nothing.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections import defaultdict
from contextlib import suppress
from typing import Any

from captioner.errors import DataError, OutputError
from captioner.photos.header import IMAGE_SUFFIXES
from captioner.photos.open import LARGEST_FILE
from captioner.shared.files import is_inside, replace_file
from captioner.shared.tables import decode_text
from captioner.shared.text import counted, json_line
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import Photo, PhotoFile, name_on_disk
from captioner_serving.batch.outputs.embedding import read_own_texts
from captioner_serving.batch.outputs.written import EarlierFiles, WrittenFiles, read_existing
from captioner_serving.batch.outputs.xmp import DESCRIPTION, merge_xmp, texts_in
from captioner_serving.batch.wording import Existing, combine, combine_keywords, sentence

_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_LARGEST = 1 << 26  # bytes; a sidecar is read into memory
_CONTENT = re.compile(r"[0-9]{1,15}-[0-9a-f]{1,8}")  # size and CRC-32, as the page writes them
_SIDECARS = (".txt", ".caption", ".json", ".xmp")
# Suffixes of raw photos, whose settings are in photo.xmp.
_RAW = (
    *(".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".fff", ".iiq", ".kdc"),
    *(".mef", ".mos", ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl"),
    *(".sr2", ".srf", ".srw", ".x3f"),
)
# The first bytes of JPEG, PNG, WebP, GIF, BMP, AVIF and HEIF, but not of raw formats.
_PHOTO = re.compile(
    rb"\xff\xd8\xff|\x89PNG|RIFF....WEBP|GIF8|BM|....ftyp(avi|hei|hev|mif1|msf1)", re.DOTALL
)


class SidecarWriter:
    """Writes the sidecars of photos; docs/sidecars.md describes their names and contents.

    Args:
        written: logs the files, if the records have a run.
        earlier: tells which sidecars are ours; a person's text replaces the text in these.

    Attributes:
        kept: the number of existing sidecars that were not changed.
        replaced: the number of sidecars that `existing="overwrite"` replaced.
        described: the number of photos without a sidecar whose own description is kept or extended.
        renamed: the number of sidecars with a longer name, because photos share a stem.
        withheld: the number of a person's texts that were not written, because of other texts.
        before: by photo, the texts of the XMP sidecar that a person's text replaced.
    """

    def __init__(
        self,
        config: BatchConfig,
        written: WrittenFiles | None,
        earlier: EarlierFiles | None = None,
    ) -> None:
        self._config, self._written, self._earlier = config, written, earlier
        self._folder = _Folder("")
        self.kept = self.replaced = self.renamed = self.described = self.withheld = 0
        self.before: dict[str, dict[str, str]] = {}

    def write(self, photo: Photo, record: dict[str, Any]) -> str | None:
        """Write the sidecar of a photo; return its path, or None if the photo needs no sidecar.

        Raises OutputError.
        """
        if photo.path is None:
            raise OutputError(f"{photo.name} is not a file on disk; it cannot have a sidecar")
        place = self._path(photo.path)
        path = os.path.realpath(place)
        if _is_same(path, photo.path):
            raise OutputError(f"{photo.name} would be its own sidecar: rename the photo")
        content = record.get("content")
        if isinstance(content, str) and _CONTENT.fullmatch(content):
            self._check_content(photo, path, content)
        else:
            content = None
        old = read_existing(path, kind="a sidecar", largest=_LARGEST)
        existing = self._config.existing
        is_by_person = existing == "skip" and "corrected" in record
        if is_by_person and old and self._earlier is not None and self._earlier.is_ours(path, old):
            existing = "overwrite"
        own: dict[str, str] = {}
        if self._config.sidecar == "xmp" and self._config.existing != "overwrite":
            own = read_own_texts(photo.path)
            self.described += old is None and DESCRIPTION in own
        new = self._content(path, old, record, own, existing)
        if is_by_person:
            self._count_withheld(path, old if new is None else new, record)
        if new is None or new == old:
            self.kept += new is None and old is not None
            return place if old is not None else None
        if not is_inside(path, os.path.dirname(place)):
            raise OutputError(
                f"{place} is a symbolic link to {path}, outside its folder: replace it with a file"
            )
        if self._written is not None:
            self._written.write(path, new, old=old, content=content)
        else:
            with replace_file(path) as file:
                file.write(new)
        self.replaced += self._config.existing == "overwrite" and bool((old or b"").strip())
        if is_by_person and self._config.sidecar == "xmp" and old:
            self.before[photo.path] = texts_in(old)
        return place

    def counts(self) -> dict[str, int]:
        """Return the counts of the summary."""
        longer = f"{counted(self.renamed, 'sidecar')} named photo.jpg.* (photos share a stem)"
        return {
            f"{counted(self.kept, 'sidecar')} unchanged": self.kept,
            f"{counted(self.replaced, 'sidecar')} overwritten": self.replaced,
            longer: self.renamed,
            f"{counted(self.described, 'photo')} with their own description": self.described,
        }

    def _check_content(self, photo: Photo, sidecar: str, content: str) -> None:
        """Refuse another photo of the same name; exiftool and --embed may have changed this one."""
        path = str(photo.path)
        if any(_has_content(name, content) for name in (path, f"{path}_original")):
            return
        if self._earlier is None or not self._earlier.has_content(sidecar, content):
            raise OutputError(
                f"{path} is not the photo that was captioned (its size or checksum differs from "
                f"{content}): check --root, or caption the photo again"
            )

    def _count_withheld(self, path: str, data: bytes | None, record: dict[str, Any]) -> None:
        """Count a person's text if the sidecar does not have it."""
        if record.get("caption_by", "person") == "person":
            whole = data and self._content(path, data, record, {}, "overwrite")
            self.withheld += data is None or whole not in (None, data)

    def _path(self, photo: str) -> str:
        """Return the sidecar's path, with the photo's stem, or its name if photos share a stem."""
        kind = self._config.sidecar
        if kind == "xmp" and os.path.lexists(f"{photo}.xmp"):  # the name that darktable uses
            return f"{photo}.xmp"
        folder, name = os.path.split(photo)
        if self._folder.path != folder:
            self._folder = _Folder(folder)
        stem, suffix = os.path.splitext(photo)
        if suffix and self._folder.has_sibling(name, raw=kind == "xmp"):
            self.renamed += 1
            return f"{photo}.{kind}"
        return f"{stem}.{kind}"

    def _content(
        self,
        path: str,
        old: bytes | None,
        record: dict[str, Any],
        own: dict[str, str],
        existing: Existing,
    ) -> bytes | None:
        """Return the new content; None keeps the existing sidecar."""
        config, caption = self._config, record["caption"]
        if config.sidecar == "xmp":
            is_worded = config.wording.template is not None or "corrected" in record
            caption = caption if is_worded else sentence(caption)
            return merge_xmp(
                old, caption, keywords=record.get("keywords", ()), language=config.language,
                existing=existing, path=path, own=own,
            )  # fmt: skip
        if old is not None and old.strip(b" \t\r\n\xef\xbb\xbf") and existing == "skip":
            return None
        before = None
        if old is not None:
            try:
                before = decode_text(old, name=path)[0].rstrip("\r\n")
            except DataError as error:
                raise OutputError(f"{path} is not text; it was not changed") from error
        if config.sidecar == "json":
            return json_line(record, indent=2).encode() + b"\n"
        if config.sidecar == "txt" and "keywords" in record:
            listed = combine_keywords(before, record["keywords"], existing)
            return listed.encode() + b"\n"
        return (combine(before, caption.rstrip("\n"), existing) or "").encode() + b"\n"


def is_fatal(error: OutputError) -> bool:
    """Return whether the next file will fail too: the disk is full or broken."""
    return isinstance(error.__cause__, OSError) and error.__cause__.errno in _FATAL


def find_photo(name: str, root: str | None) -> PhotoFile:
    """Return the photo of a record. Raises OutputError: it does not exist, or is outside `root`."""
    file = os.path.join(root or "", name_on_disk(name, root))
    # Records may be untrusted, and a folder in the path may be a symbolic link.
    if root is not None and not is_inside(os.path.dirname(file), root):
        raise OutputError(
            f"{name} is outside the folder {root}: leave out --root if you trust the records"
        )
    if not os.path.isfile(file):  # Path.is_file would raise on a name that is too long
        raise OutputError(
            f"there is no photo {file} for a sidecar: set the base folder of names with --root"
        )
    return PhotoFile(name=name, file=file)


class _Folder:
    """The names in a folder, grouped by stem. The folder is listed once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._names: set[str] = set()
        self._by_stem: dict[str, list[str]] = defaultdict(list)
        with suppress(OSError):
            self._names.update(os.listdir(path or "."))
        for name in self._names:
            stem, suffix = os.path.splitext(name)
            if suffix.lower() not in _SIDECARS:
                self._by_stem[stem].append(name)
        self._by_stem = {stem: names for stem, names in self._by_stem.items() if len(names) > 1}

    def has_sibling(self, name: str, *, raw: bool) -> bool:
        """Return whether another photo, or with `raw` a raw photo, would have the same sidecar."""
        stem = os.path.splitext(name)[0]
        siblings = {*self._by_stem.get(stem, ()), *self._names.intersection((stem,))}
        siblings.discard(f"{name}_original")  # a backup of exiftool
        photo = os.path.join(self.path, name)
        return any(
            ((raw and path.lower().endswith(_RAW)) or _is_photo(path)) and not _is_same(path, photo)
            for path in (os.path.join(self.path, sibling) for sibling in siblings - {name})
        )


def _is_photo(path: str) -> bool:
    if path.lower().endswith(IMAGE_SUFFIXES):
        return True
    try:
        head = read_existing(path, kind="a photo", largest=LARGEST_FILE, head=32)
    except OutputError:
        return False
    return _PHOTO.match(head or b"") is not None


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # a broken link or a missing file
        return False


def _has_content(path: str, content: str) -> bool:
    """Return whether a file has this size and CRC-32."""
    size, _, wanted = content.partition("-")
    with suppress(OSError), open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != int(size):
            return False
        checksum = 0
        while part := file.read(1 << 20):
            checksum = zlib.crc32(part, checksum)
        return checksum == int(wanted, 16)
    return False
