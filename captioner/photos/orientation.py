"""The EXIF orientation of an image: the only metadata that turns a photo.

XMP may have an orientation too, which browsers and photo viewers ignore. Pillow's `getexif` does
not ignore it, and it reads all values of an EXIF block, which may be gigabytes. So `getexif` is
used only for images without XMP and EXIF.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

from PIL import ExifTags, Image

_LONGEST = 1 << 16  # bytes of a block that are read; one JPEG segment holds as many

_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class ExifEntry(NamedTuple):
    """An entry of an EXIF directory."""

    tag: int
    kind: int  # of the values
    number: int  # of the values
    value: bytes  # four bytes: the values, or their offset in `block`
    order: str  # "<" or ">"
    block: bytes


def exif_entries(block: bytes) -> Iterator[ExifEntry]:
    """Return the entries of the first directory of an EXIF block, until it is damaged."""
    with suppress(struct.error):
        block = block[:_LONGEST].removeprefix(b"Exif\0\0")
        order = "<" if block[:2] == b"II" else ">"
        (place,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, place)
        for at in range(place + 2, place + 2 + 12 * count, 12):
            tag, kind, number, value = struct.unpack_from(order + "HHI4s", block, at)
            yield ExifEntry(tag, kind, number, value, order, block)


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, of an image of Pillow's readers or made in memory."""
    block, value = image.info.get("exif", b""), 1
    if block and isinstance(block, bytes):
        for entry in exif_entries(block):
            is_turn = entry.tag == ExifTags.Base.Orientation and entry.number == 1
            if is_turn and entry.kind in (3, 4):
                (value,) = struct.unpack_from(entry.order + " HI"[entry.kind - 2], entry.value)
                break
    elif not image.info.keys() & {"xmp", "XML:com.adobe.xmp"}:
        with suppress(Exception):  # metadata may be damaged
            value = image.getexif().get(ExifTags.Base.Orientation, 1)
    return value if value in _TURNS else 1


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Turn an image upright, given its orientation; 1 returns the image itself."""
    turn = _TURNS.get(orientation)
    return image if turn is None else image.transpose(turn)
