"""Sidecars: a file with the caption beside each photo.

A sidecar is replaced atomically. Writing it twice, as a resume may, changes nothing.
"""

from __future__ import annotations

import errno
import os
import re
import zlib
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from captioner.errors import DataError, OutputError
from captioner.photos.formats import IMAGE_SUFFIXES
from captioner.shared.files import is_inside, replace_file
from captioner.shared.tables import decode_text
from captioner.shared.text import counted, json_line
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import (
    Photo,
    PhotoFile,
    name_on_disk,
    open_quietly,
)
from captioner_serving.batch.outputs.embedding import embed, read_own_texts
from captioner_serving.batch.outputs.formats import is_persons
from captioner_serving.batch.outputs.written import WrittenFiles, read_existing
from captioner_serving.batch.outputs.xmp import DESCRIPTION, merge_xmp
from captioner_serving.batch.wording import Existing, combine, combine_keywords, sentence

_FATAL = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG}
_PHOTO = re.compile(
    rb"\xff\xd8\xff|\x89PNG|RIFF....WEBP|GIF8|BM|....ftyp(avi|hei|hev|mif1|msf1)", re.DOTALL
)
_CONTENT = re.compile(r"[0-9]{1,15}-[0-9a-f]{1,8}")
# Suffixes of raw photos, whose settings are in photo.xmp.
_RAW = (
    *(".3fr", ".arw", ".cr2", ".cr3", ".crw", ".dcr", ".dng", ".erf", ".fff", ".iiq", ".kdc"),
    *(".mef", ".mos", ".mrw", ".nef", ".nrw", ".orf", ".pef", ".raf", ".raw", ".rw2", ".rwl"),
    *(".sr2", ".srf", ".srw", ".x3f"),
)


class SidecarWriter:
    """Writes the sidecars of photos; docs/sidecars.md describes their names and contents.

    Attributes:
        log: logs the files, if the records have a run; it may be replaced between two photos.
        counts: the numbers of sidecars by what happened to them; see `summary`.
    """

    def __init__(self, config: BatchConfig, log: WrittenFiles | None = None) -> None:
        self._config, self.log = config, log
        self._folder: tuple[str | None, dict[str, list[str]]] = None, {}
        self.counts: Counter[str] = Counter()
        self._to_embed: dict[str, tuple[str, str]] = {}  # sidecars and names by photo

    def embed(self) -> dict[str, OutputError]:
        """Embed the sidecars written since the last call; return errors by the photo's name."""
        waiting, self._to_embed = self._to_embed, {}
        sidecars = {path: sidecar for path, (sidecar, _) in waiting.items()}
        errors = embed(sidecars, self.counts, self._config.existing)
        return {waiting[path][1]: error for path, error in errors.items()}

    def write(self, photo: Photo, record: dict[str, Any]) -> None:
        """Write the sidecar of a photo, unless it needs none. Raises OutputError."""
        if photo.path is None:
            raise OutputError(f"{photo.name} is not a file on disk; it cannot have a sidecar")
        place = self._path(photo.path)
        path = os.path.realpath(place)
        if _is_same(path, photo.path):
            raise OutputError(f"{photo.name} would be its own sidecar: rename the photo")
        _check_content(photo.path, record.get("content"))
        old = read_existing(path)
        own, existing = {}, self._config.existing
        if self._config.sidecar == "xmp" and existing != "overwrite":
            own = read_own_texts(photo.path)
            self.counts["described"] += old is None and DESCRIPTION in own
        new = self._content(path, old, record, own, existing)
        if existing == "skip" and is_persons(record):
            data = old if new is None else new
            whole = data and self._content(path, data, record, {}, "overwrite")
            self.counts["withheld"] += data is None or whole not in (None, data)
        if new is not None and new != old:
            if not is_inside(path, os.path.dirname(place)):
                raise OutputError(
                    f"{place} is a symbolic link to {path}, outside its folder: replace it with a "
                    "file"
                )
            if self.log is not None:
                self.log.write(path, new, old=old)
            else:
                with replace_file(path) as file:
                    file.write(new)
            self.counts["replaced"] += existing == "overwrite" and bool((old or b"").strip())
        self.counts["kept"] += new is None and old is not None
        self.counts["written"] += new is not None
        if self._config.embed and (new is not None or old is not None):
            self._to_embed[photo.path] = place, photo.name

    def summary(self) -> dict[str, int]:
        """Return the counts of the summary."""
        counts = self.counts
        longer = f"{counted(counts['renamed'], 'sidecar')} named photo.jpg.* (photos share a stem)"
        return {
            f"{counted(counts['kept'], 'sidecar')} unchanged": counts["kept"],
            f"{counted(counts['replaced'], 'sidecar')} overwritten": counts["replaced"],
            longer: counts["renamed"],
            f"{counts['withheld']:,} by a person not written, because the photos have other texts "
            "(--existing overwrite replaces them)": counts["withheld"],
            f"{counted(counts['described'], 'photo')} with their own description":
                counts["described"],
            f"{counted(counts['embedded'], 'photo')} with new texts embedded": counts["embedded"],
            f"{counts['left']:,} without (not a writable JPEG, a link, or described)":
                counts["left"],
        }  # fmt: skip

    def _path(self, photo: str) -> str:
        """Return the sidecar's path, with the photo's stem, or its name if photos share a stem."""
        kind = self._config.sidecar
        if kind == "xmp" and os.path.lexists(f"{photo}.xmp"):  # the name that darktable uses
            return f"{photo}.xmp"
        stem, suffix = os.path.splitext(photo)
        siblings = [stem] if suffix and _is_photo(stem) else []
        siblings += self._siblings(stem, (*IMAGE_SUFFIXES, *(_RAW if kind == "xmp" else ())))
        if any(not _is_same(sibling, photo) for sibling in siblings):
            self.counts["renamed"] += 1
        elif suffix.lower() in IMAGE_SUFFIXES:
            return f"{stem}.{kind}"
        return f"{photo}.{kind}"

    def _siblings(self, stem: str, suffixes: tuple[str, ...]) -> Iterator[str]:
        """Yield the photos with a stem, if there are several. A folder is listed once."""
        folder, base = os.path.split(stem)
        if self._folder[0] != folder:
            names = defaultdict(list)
            with suppress(OSError):
                for name in os.listdir(folder or "."):
                    if name.lower().endswith((*IMAGE_SUFFIXES, *_RAW)):
                        names[os.path.splitext(name)[0]].append(name)
            self._folder = folder, {key: group for key, group in names.items() if len(group) > 1}
        for name in self._folder[1].get(base, ()):
            if name.lower().endswith(suffixes):
                yield os.path.join(folder, name)

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
    return PhotoFile(name=name, path=file)


def _is_photo(path: str) -> bool:
    """Return whether a file without a suffix begins like a photo."""
    with suppress(OSError), open(path, "rb", opener=open_quietly) as file:
        return _PHOTO.match(file.read(32)) is not None
    return False


def _is_same(path: str, other: str) -> bool:
    try:
        return os.path.samefile(path, other)
    except OSError:  # a broken link or a missing file
        return False


def _check_content(path: str, content: object) -> None:
    """Refuse another photo of the same name. `content`: size and CRC-32, as the page writes them.

    exiftool may have changed the photo since, but then keeps the original.
    """
    if not isinstance(content, str) or not _CONTENT.fullmatch(content):
        return
    size, _, wanted = content.partition("-")
    for name in (path, f"{path}_original"):
        with suppress(OSError), open(name, "rb") as file:
            if os.fstat(file.fileno()).st_size == int(size):
                checksum = 0
                while part := file.read(1 << 20):
                    checksum = zlib.crc32(part, checksum)
                if checksum == int(wanted, 16):
                    return
    raise OutputError(
        f"{path} is not the photo that was captioned (its size or checksum differs from "
        f"{content}): check --root, restore {path}_original if the photo changed by --embed, or "
        "caption the photo again"
    )
