"""TIFF files: check the first directory before Pillow reads it."""

from __future__ import annotations

import io
import struct
from typing import BinaryIO, NamedTuple

from PIL import ExifTags, Image
from PIL.TiffImagePlugin import COMPRESSION_INFO, TiffImageFile

from captioner import errors

_SUBFILE, _OLD_SUBFILE, _COMPRESSION, _COLOURS = 254, 255, 259, 262  # tags
_TILE_WIDTH, _TILE_LENGTH, _SUB_DIRECTORIES = 322, 323, 330
_REDUCED = 2  # a value of _OLD_SUBFILE
_RAW = (32803, 34892)  # values of _COLOURS: a colour filter array, linear raw
_OLD_JPEG = 6  # a value of _COMPRESSION; raw photos have it for previews
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4,
          16: 8, 17: 8, 18: 8}  # fmt: skip
_USUAL_TILE = 1 << 20  # pixels; a tile may be larger than the picture


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

    `max_pixels` limits the pixels of a tile. Raises an ImageError, or for damaged files any
    exception of Pillow.
    """
    stream.seek(0)
    head = stream.read(16)
    order, big = "<" if head[:2] == b"II" else ">", 43 in head[2:4]
    if big and order == ">":  # Pillow would read the offsets as in a classic TIFF
        raise errors.ImageFormatError(
            f"{name} is a big-endian BigTIFF, which is not supported: convert it to JPEG or PNG"
        )
    entries, is_last = _directory(stream, head, order, big=big)
    has_parts = any(entry.tag == _SUB_DIRECTORIES for entry in entries)
    is_reduced = (
        _number(entries, order, _SUBFILE, default=0) & 1
        or _number(entries, order, _OLD_SUBFILE, default=0) == _REDUCED
    )
    compression = _number(entries, order, _COMPRESSION)
    is_canon = head[8:10] == b"CR"  # CR2
    is_raw = is_canon or _number(entries, order, _COLOURS) in _RAW
    is_preview = has_parts and compression == _OLD_JPEG  # ARW
    if is_raw or is_preview or (is_reduced and (has_parts or not is_last)):
        raise errors.ImageFormatError(
            f"{name} is a raw photo, or begins with a thumbnail: convert it to JPEG or PNG"
        )
    size = stream.seek(0, io.SEEK_END)
    values = sum(entry.length * _SIZES.get(entry.kind, 1) for entry in entries)
    if values > size:  # entries share bytes, and Pillow would copy each
        raise errors.ImageTooLargeError(
            f"{name} lists {values:,} bytes of metadata, but the file has only {size:,} bytes: "
            "export it again"
        )
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


def _directory(
    stream: BinaryIO, head: bytes, order: str, *, big: bool
) -> tuple[list[_Entry], bool]:
    """Return the entries of the first directory, and whether there are no further ones."""
    number, entry = (order + "Q", order + "HHQ8s") if big else (order + "H", order + "HHI4s")
    (place,) = struct.unpack_from(order + ("Q" if big else "I"), head, 8 if big else 4)
    stream.seek(place)
    (count,) = struct.unpack(number, stream.read(struct.calcsize(number)))
    width = struct.calcsize(entry)
    data = stream.read(min(count, 1 << 16) * width)
    whole = data[: len(data) // width * width]
    is_last = not any(stream.read(8 if big else 4))  # the offset of the next one
    return [_Entry(*fields) for fields in struct.iter_unpack(entry, whole)], is_last


def _number(entries: list[_Entry], order: str, tag: int, default: int = 1) -> int:
    """Return the first number of a tag."""
    for entry in entries:
        if entry.tag == tag and entry.kind in (3, 4, 16):
            layout = {3: "H", 4: "I", 16: "Q"}[entry.kind]
            (value,) = struct.unpack_from(order + layout, entry.value)
            return int(value)
    return default
