"""Attention maps: one picture per photo, in a separate folder."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from captioner.drawing.saving import encode_image
from captioner.errors import ConfigError, ImageError, OutputError
from captioner.files import IS_WINDOWS, digest, is_inside, sync_folder, writing
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.outputs.written import Write, read_existing

if TYPE_CHECKING:
    from PIL import Image

    from captioner.caption import Caption

_LONGEST = 200  # bytes of a file name; file systems take 255
_LARGEST = 1 << 30  # bytes of an existing map, which is read into memory


class MapWriter:
    """Draws the map of a photo: the overlay of the word with the highest gate, or a contact sheet.

    The folders of maps mirror those of photos: the map of a/b.jpg is DIR/a/b.jpg.png.
    """

    def __init__(self, config: BatchConfig, write: Write) -> None:
        self._write = write
        self._kind, self._head = config.maps, config.head
        self._folder = config.maps_to or "."
        self._photos: dict[Path, str] = {}

    def write(self, photo: Photo, caption: Caption, open_photo: Callable[[], Image.Image]) -> None:
        """Draw the map of one photo; overwrite an older map of it.

        Raises OutputError: the map cannot be written, the photo cannot be read again, or the path
            is in the folder of the photo, a symbolic link, or the map of another photo.
        """
        path = _path(self._folder, photo.name)
        if photo.path is not None and _is_beside(path, photo.path):
            raise OutputError(f"{path} would be beside the photos: choose another folder for maps")
        if self._photos.setdefault(path, photo.name) != photo.name:
            raise OutputError(
                f"{path} is already the map of {self._photos[path]}: choose another folder for maps"
            )
        if path.is_symlink():
            raise OutputError(
                f"{path} is a symbolic link: remove it, or choose another folder for maps"
            )
        with writing(path.parent):
            _make_folder(path.parent)
        old = read_existing(path, kind="a map", largest=_LARGEST)
        new = self._draw(photo.name, caption, open_photo)
        if new != old:
            self._write(path, new, old=old)

    def _draw(self, name: str, caption: Caption, open_photo: Callable[[], Image.Image]) -> bytes:
        try:
            if self._kind == "overlay" and caption.words:
                picture = caption.overlay(photo=open_photo(), head=self._head, labelled=True)
            else:
                picture = caption.contact_sheet(photo=open_photo(), head=self._head)
            return encode_image(picture, ".png")
        except (ImageError, ConfigError, OSError, ValueError) as error:
            raise OutputError(f"{name} cannot be drawn: {error}") from error


def check_maps_folder(folder: str, sources: Sequence[str]) -> None:
    """Refuse a folder for maps that is a file, or that is inside an input folder."""
    if os.path.exists(folder) and not os.path.isdir(folder):
        raise OutputError(f"{folder} is not a folder: choose another folder for maps")
    for source in filter(os.path.isdir, sources):
        for place in (folder, _path(folder, source).with_suffix("")):
            if is_inside(place, source):
                raise ConfigError(
                    f"maps_to is {folder}, which puts the maps into the input {source}, so that "
                    "the next run would caption them: choose a folder outside it"
                )


def _make_folder(folder: Path) -> None:
    new = list(takewhile(lambda parent: not parent.exists(), (folder, *folder.parents)))
    folder.mkdir(parents=True, exist_ok=True)
    for parent in new:
        sync_folder(parent.parent)  # a power cut could remove it otherwise


def _path(folder: str, name: str) -> Path:
    """Return the path of the map of a photo; `..` becomes the folder `_up_`."""
    name = name.replace("://", "/")
    if IS_WINDOWS:
        name = name.replace("\\", "/").replace(":", "")
    parts = ["_up_" if part == ".." else part for part in name.split("/") if part not in ("", ".")]
    short = [_short(part) for part in parts] or ["photo"]
    return Path(folder, *short[:-1], f"{short[-1]}.png")


def _is_beside(path: Path, photo: str) -> bool:
    return os.path.realpath(path.parent) == os.path.realpath(os.path.dirname(photo))


def _short(part: str) -> str:
    raw = os.fsencode(part)
    if len(raw) <= _LONGEST:
        return part
    return f"{os.fsdecode(raw[:_LONGEST])}~{digest(raw).hex()[:8]}"
