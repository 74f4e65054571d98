"""TIFF files: check the first directory before Pillow reads it."""

from __future__ import annotations

import io
import struct
from typing import BinaryIO, NamedTuple

from PIL import ExifTags, Image
from PIL.TiffImagePlugin import COMPRESSION_INFO, TiffImageFile

from captioner import errors

_COMPRESSION, _TILE_WIDTH, _TILE_LENGTH = 259, 322, 323
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4,
          16: 8, 17: 8, 18: 8}  # fmt: skip
_USUAL_TILE = 1 << 20  # pixels; a tile may be larger than the picture
_OPTIONAL = {34925: "LZMA", 50000: "Zstandard", 50001: "WebP"}  # libtiff may lack these


class TiffReader(TiffImageFile):
    """Pillow's TIFF reader. It applies the orientation and reads no other EXIF metadata."""

    def getexif(self) -> Image.Exif:
        """Return the orientation only."""
        exif = Image.Exif()
        if value := self.tag_v2.get(ExifTags.Base.Orientation):
            exif[ExifTags.Base.Orientation] = value
        return exif


class _Entry(NamedTuple):
    tag: int
    kind: int
    length: int
    value: bytes  # 4 bytes, 8 in BigTIFF: the value or its offset


def open_tiff(stream: BinaryIO, name: str, max_pixels: int) -> TiffReader:
    """Open a TIFF, classic in either byte order or little-endian BigTIFF.

    Args:
        stream: the file, at its beginning.
        name: the name of the file in errors.
        max_pixels: the maximum number of pixels of a tile.

    Raises:
        ImageFormatError: the compression is not supported.
        ImageTooLargeError: tiles are too large, or entries of the directory share bytes.
        Exception: any exception of Pillow, for damaged files.
    """
    order, big, entries = _directory(stream)
    if big and order == ">":  # Pillow would read the offsets as in a classic TIFF
        raise errors.ImageFormatError(
            f"{name} is a big-endian BigTIFF, which is not supported: convert it to JPEG or PNG"
        )
    size = stream.seek(0, io.SEEK_END)
    values = sum(entry.length * _SIZES.get(entry.kind, 1) for entry in entries)
    if values > size:  # entries share bytes, and Pillow would copy each
        raise errors.ImageTooLargeError(
            f"{name} lists {values:,} bytes of metadata, but the file has only {size:,} bytes: "
            "export it again"
        )
    compression = _number(entries, order, _COMPRESSION)
    if compression not in COMPRESSION_INFO:
        raise errors.ImageFormatError(
            f"{name} is a TIFF with compression {compression} inside, which is not supported: "
            "convert it to JPEG or PNG"
        )
    across, down = _number(entries, order, _TILE_WIDTH), _number(entries, order, _TILE_LENGTH)
    if across * down > max(max_pixels, _USUAL_TILE):
        raise errors.ImageTooLargeError(
            f"{name} has tiles of {across} x {down} pixels, more than the limit of "
            f"{max_pixels:,}: export it again"
        )
    stream.seek(0)
    return TiffReader(stream)


def optional_codec(image: TiffImageFile) -> str | None:
    """Return the compression of a TIFF if libtiff may be built without it, else None."""
    return _OPTIONAL.get(image.tag_v2.get(_COMPRESSION, 1))


def _directory(stream: BinaryIO) -> tuple[str, bool, list[_Entry]]:
    """Return the byte order, whether it is BigTIFF, and the entries of the first directory."""
    stream.seek(0)
    head = stream.read(16)
    order = "<" if head[:2] == b"II" else ">"
    big = 43 in head[2:4]
    number, entry = (order + "Q", order + "HHQ8s") if big else (order + "H", order + "HHI4s")
    (place,) = struct.unpack_from(order + ("Q" if big else "I"), head, 8 if big else 4)
    stream.seek(place)
    (count,) = struct.unpack(number, stream.read(struct.calcsize(number)))
    width = struct.calcsize(entry)
    data = stream.read(min(count, 1 << 16) * width)
    whole = data[: len(data) // width * width]
    return order, big, [_Entry(*fields) for fields in struct.iter_unpack(entry, whole)]


def _number(entries: list[_Entry], order: str, tag: int) -> int:
    """Return the first number of a tag; 1, the default, if it is missing."""
    for entry in entries:
        if entry.tag == tag and entry.kind in (3, 4, 16):
            layout = {3: "H", 4: "I", 16: "Q"}[entry.kind]
            (value,) = struct.unpack_from(order + layout, entry.value)
            return int(value)
    return 1
