"""Pictures of the attention, one a photo, in a folder of their own."""

from __future__ import annotations

import os
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.drawing.saving import drawn_from, encode_image
from captioner.errors import ConfigError, ImageError, OutputError
from captioner.files import digest, sync_folder, writing
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.outputs.written import Write, read_existing

if TYPE_CHECKING:
    from captioner.caption import Caption

__all__ = ["MapWriter", "check_maps_folder"]

_LONGEST = 200  # bytes of a file name; file systems take 255
_LARGEST = 1 << 30  # bytes of a map, which has its photo's size; it is read into memory


class MapWriter:
    """Draws each photo's overlay (of the word that drew most on it) or sheet of all words.

    The folder mirrors the photos': a/b.jpg is drawn into DIR/a/b.jpg.png.
    """

    def __init__(self, config: BatchConfig, write: Write) -> None:
        self._write = write
        self._kind, self._head = config.maps, config.head
        self._folder = config.maps_to or "."

    def write(self, photo: Photo, caption: Caption) -> None:
        """Draw one photo.

        Raises OutputError: the picture cannot be written, the photo not be read again, or
        somebody's file is in the picture's place.
        """
        path = _path(self._folder, photo.name)
        if photo.path is not None and _same_folder(path, photo.path):
            raise OutputError(f"{path} would lie among the photos: name another folder for maps")
        with writing(path.parent):
            _make_folder(path.parent)
        source = digest(os.path.normpath(photo.name)).hex()
        old = _existing(path, source)
        new = self._drawn(photo.name, caption, source)
        if new != old:
            self._write(path, new, old=old)

    def _drawn(self, name: str, caption: Caption, source: str) -> bytes:
        try:
            if self._kind == "overlay" and caption.words:
                picture = caption.overlay(head=self._head)
            else:
                picture = caption.contact_sheet(head=self._head)
            return encode_image(picture, ".png", source=source)
        except (ImageError, ConfigError, OSError, ValueError) as error:
            raise OutputError(f"{name} cannot be drawn: {error}") from error


def check_maps_folder(folder: str, sources: Sequence[str]) -> None:
    """Refuse a folder that cannot hold the maps, or whose maps the next run would caption."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise OutputError(f"{folder} is not a folder: choose another one for the maps")
    for source in filter(os.path.isdir, sources):
        photos = os.path.realpath(source)
        for place in (folder, _path(folder, source).with_suffix("")):
            if os.path.commonpath((photos, os.path.realpath(place))) == photos:
                raise ConfigError(
                    f"maps_to {folder}: the maps would lie in {source}, and the next run would "
                    "caption them too; name a folder outside of it"
                )


def _make_folder(folder: Path) -> None:
    new = list(takewhile(lambda one: not one.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for one in new:
        sync_folder(one.parent)  # or a power cut could take it, and the maps in it


def _path(folder: str, name: str) -> Path:
    parts = [part for part in name.replace("://", "/").split("/") if part not in ("", ".", "..")]
    short = [_short(part) for part in parts] or ["photo"]
    return Path(folder, *short[:-1], f"{short[-1]}.png")


def _existing(path: Path, source: str) -> bytes | None:
    """Read the map that an earlier run left of this photo; None where there is none."""
    old = read_existing(path, kind="a map", largest=_LARGEST)
    theirs = None if old is None else drawn_from(old)
    if path.is_symlink() or (old is not None and theirs is None):
        raise OutputError(
            f"{path} is there already, and is no map that Captioner drew: move it away, or "
            "name another folder for maps"
        )
    if theirs and theirs != source:  # "": of a version that did not note it
        raise OutputError(f"{path} is the map of another photo: name another folder for maps")
    return old


def _same_folder(one: Path, other: str) -> bool:
    return os.path.realpath(one.parent) == os.path.realpath(os.path.dirname(other))


def _short(part: str) -> str:
    raw = os.fsencode(part)
    if len(raw) <= _LONGEST:
        return part
    return f"{os.fsdecode(raw[:_LONGEST])}~{digest(raw).hex()[:8]}"
