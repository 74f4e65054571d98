"""TIFF files: check the first directory before Pillow reads it."""

from __future__ import annotations

import io
import struct
from typing import BinaryIO, NamedTuple

from PIL import ExifTags, Image
from PIL.TiffImagePlugin import COMPRESSION_INFO, TiffImageFile

from captioner import errors

_SUBFILE, _COMPRESSION, _COLOURS, _TILE_WIDTH, _TILE_LENGTH, _SUB_DIRECTORIES = (
    254, 259, 262, 322, 323, 330,
)  # fmt: skip
_OLD_SUBFILE, _REDUCED = 255, 2  # of TIFF 5
_RAW = (32803, 34892)  # values of _COLOURS: a colour filter array, linear raw
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4,
          16: 8, 17: 8, 18: 8}  # fmt: skip
_USUAL_TILE = 1 << 20  # pixels; a tile may be larger than the picture
_OPTIONAL = (34925, 50000, 50001)  # LZMA, Zstandard and WebP: libtiff may lack these


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
    order, big, entries, is_last = _directory(stream)
    if big and order == ">":  # Pillow would read the offsets as in a classic TIFF
        raise errors.ImageFormatError(
            f"{name} is a big-endian BigTIFF, which is not supported: convert it to JPEG or PNG"
        )
    has_others = not is_last or any(entry.tag == _SUB_DIRECTORIES for entry in entries)
    is_reduced = (
        _number(entries, order, _SUBFILE, default=0) & 1
        or _number(entries, order, _OLD_SUBFILE, default=0) == _REDUCED
    )
    if _number(entries, order, _COLOURS) in _RAW or (is_reduced and has_others):
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
    compression = _number(entries, order, _COMPRESSION)
    if compression not in COMPRESSION_INFO:
        raise unsupported(name, compression)
    across, down = _number(entries, order, _TILE_WIDTH), _number(entries, order, _TILE_LENGTH)
    if across * down > max(max_pixels, _USUAL_TILE):
        raise errors.ImageTooLargeError(
            f"{name} has tiles of {across} x {down} pixels, more than the limit of "
            f"{max_pixels:,}: export it again"
        )
    stream.seek(0)
    return TiffReader(stream)


def unsupported(name: str, compression: int) -> errors.ImageFormatError:
    """Return the error for a compression that is not supported."""
    return errors.ImageFormatError(
        f"{name} is a TIFF with compression {compression} inside, which is not supported: "
        "convert it to JPEG or PNG"
    )


def optional_codec(image: TiffImageFile) -> int | None:
    """Return the compression of a TIFF if libtiff may be built without it, else None."""
    compression: int = image.tag_v2.get(_COMPRESSION, 1)
    return compression if compression in _OPTIONAL else None


def _directory(stream: BinaryIO) -> tuple[str, bool, list[_Entry], bool]:
    """Return the byte order, whether it is BigTIFF, and the first directory.

    Of the directory: its entries, and whether it is the last one.
    """
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
    is_last = not any(stream.read(8 if big else 4))  # the offset of the next one
    return order, big, [_Entry(*fields) for fields in struct.iter_unpack(entry, whole)], is_last


def _number(entries: list[_Entry], order: str, tag: int, default: int = 1) -> int:
    """Return the first number of a tag."""
    for entry in entries:
        if entry.tag == tag and entry.kind in (3, 4, 16):
            layout = {3: "H", 4: "I", 16: "Q"}[entry.kind]
            (value,) = struct.unpack_from(order + layout, entry.value)
            return int(value)
    return default
