"""Write description, alt text and keywords into JPEG files.

The new file replaces the photo atomically and has the same pixels, dates and owner. Writing twice
changes nothing.
"""

from __future__ import annotations

import os
import stat
from typing import Any

from captioner.closing import Closing
from captioner.errors import OutputError
from captioner.files import copy_stat, replace_file, sync_folder, writing
from captioner.vision.image import LARGEST_FILE
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.outputs.exiftool import ExifTool, ExifToolError
from captioner_serving.batch.outputs.written import Write, read_existing
from captioner_serving.batch.outputs.xmp import legal_text, merge_languages, missing_keywords
from captioner_serving.batch.wording import sentence

# The tags of texts, each with an older tag whose text is used if the tag is missing.
_TEXTS = {"XMP-dc:Description": "IPTC:Caption-Abstract", "XMP-iptcCore:AltTextAccessibility": ""}
_KEYWORDS, _OLD_KEYWORDS = "XMP-dc:Subject", "IPTC:Keywords"
_JPEG = b"\xff\xd8\xff"


class Embedder(Closing):
    """Writes texts into photos, merged with existing texts as in XMP sidecars.

    The original is kept as photo.jpg_original, which `exiftool -restore_original` restores. If
    photo.jpg_original exists, it is older and is not overwritten.

    Attributes:
        kept: the number of photos that needed no change.
        replaced: the number of photos that were written.
    """

    def __init__(self, config: BatchConfig, write: Write) -> None:
        self._config, self._write = config, write
        self._tool = ExifTool()
        self.kept = self.replaced = 0

    def close(self) -> None:
        """Stop exiftool."""
        self._tool.close()

    def write(self, photo: Photo, record: dict[str, Any]) -> None:
        """Write the texts of a record into its photo.

        Raises OutputError: the photo is not a writable JPEG file, or exiftool cannot write it.
        """
        path = photo.path
        if path is None:
            raise OutputError(f"{photo.name} is not a file on disk; texts cannot be embedded")
        old = _read(path)
        try:
            changes = self._changes(self._tool.read(old), record)
            new = self._tool.write(old, changes) if changes else old
        except ExifToolError as error:
            raise OutputError(
                f"exiftool cannot write {photo.name} ({error}): use --sidecar xmp"
            ) from error
        if new == old:
            self.kept += 1
            return
        if self._config.backup:
            _keep_original(path, old)
        self._write(path, new, old=old, keep_stat=True)
        self.replaced += 1

    def _changes(self, texts: dict[str, Any], record: dict[str, Any]) -> list[tuple[str, str]]:
        config, changes = self._config, []
        caption = record["caption"] if config.plain else sentence(record["caption"])
        for tag, older in _TEXTS.items():
            present = {
                key.removeprefix(tag).removeprefix("-").lower() or "x-default": str(text)
                for key, text in texts.items()
                if key == tag or key.startswith(f"{tag}-")
            }
            if not present and older in texts:
                present = {"x-default": str(texts[older])}
            merged = merge_languages(
                present, legal_text(caption), language=config.language, existing=config.existing
            )
            changes += [(f"{tag}-{language}=", text) for language, text in merged.items()]
        old = _listed(texts.get(_KEYWORDS))
        keywords = missing_keywords(old, map(legal_text, record.get("keywords", ())))
        if keywords and not old:
            iptc = _listed(texts.get(_OLD_KEYWORDS))
            keywords = [*iptc, *missing_keywords(iptc, keywords)]
        return [*changes, *((f"{_KEYWORDS}+=", keyword) for keyword in keywords)]


def _read(path: str) -> bytes:
    """Read a photo for embedding.

    Raises OutputError: it is not a writable JPEG file, or cannot be read.
    """
    if os.path.islink(path):
        raise OutputError(
            f"{path} is a symbolic link: texts can only be embedded in the file itself; name that "
            "file instead"
        )
    data = read_existing(path, kind="a photo", largest=LARGEST_FILE)
    if data is None:
        raise OutputError(f"{path} no longer exists: texts cannot be embedded")
    if not data.startswith(_JPEG):
        raise OutputError(f"{path} is not a JPEG file: texts cannot be embedded; use --sidecar xmp")
    if not (os.access(path, os.W_OK) and os.stat(path).st_mode & stat.S_IWUSR):
        raise OutputError(f"{path} is read-only: make it writable to embed texts")
    return data


def _keep_original(path: str, data: bytes) -> None:
    """Keep the original under another name, as a hard link if possible."""
    original = f"{path}_original"
    if os.path.lexists(original):
        return
    try:
        os.link(path, original)
    except (OSError, AttributeError):
        with replace_file(original) as file:
            file.write(data)
        with writing(original):
            copy_stat(path, original)
    with writing(original):
        sync_folder(os.path.dirname(path) or ".")


def _listed(value: Any) -> list[str]:
    """Return the items of a tag; exiftool returns a list of one item as the item."""
    values = [] if value is None else value if isinstance(value, list) else [value]
    return list(map(str, values))
