"""TIFF files: check the first directory before Pillow reads it; support big-endian BigTIFF."""

from __future__ import annotations

import io
import struct
from typing import BinaryIO, NamedTuple

from PIL import ExifTags, Image
from PIL.TiffImagePlugin import COMPRESSION_INFO, OPEN_INFO, TiffImageFile

from captioner import errors

__all__ = ["TiffReader", "open_tiff", "optional_codec"]

_COMPRESSION, _TILE_WIDTH, _TILE_LENGTH = 259, 322, 323
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4,
          16: 8, 17: 8, 18: 8}  # fmt: skip
_NARROW = {16: 4, 17: 9, 18: 13}  # from types of 8 bytes in BigTIFF to types of 4 bytes
_USUAL_TILE = 1 << 20  # pixels; a tile may be larger than the picture
_NAMES = {33003: "JPEG 2000", 33004: "JPEG 2000", 33005: "JPEG 2000", 34712: "JPEG 2000",
          22610: "JPEG XR", 34934: "JPEG XR", 34887: "LERC", 34933: "PNG", 50002: "JPEG XL",
          52546: "JPEG XL"}  # fmt: skip
_OPTIONAL = {34925: "LZMA", 50000: "Zstandard", 50001: "WebP"}  # libtiff may lack these

# 12-bit grey is packed the same way in both byte orders, but Pillow lists only one of them.
OPEN_INFO.setdefault((b"MM", 1, (1,), 1, (12,), ()), ("I;16", "I;12"))


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
    """Open a TIFF, classic or BigTIFF, in either byte order.

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
    size = stream.seek(0, io.SEEK_END)
    values = sum(entry.length * _SIZES.get(entry.kind, 1) for entry in entries)
    if values > size:  # entries share bytes, and Pillow would copy each
        raise errors.ImageTooLargeError(
            f"{name} lists {values:,} bytes of metadata, but the file has only {size:,} bytes: "
            "export it again"
        )
    compression = _number(entries, order, _COMPRESSION)
    if compression not in COMPRESSION_INFO:
        kind = _NAMES.get(compression, f"compression {compression}")
        raise errors.ImageFormatError(
            f"{name} is a TIFF with {kind} inside, which is not supported: "
            "convert it to JPEG or PNG"
        )
    across, down = _number(entries, order, _TILE_WIDTH), _number(entries, order, _TILE_LENGTH)
    if across * down > max(max_pixels, _USUAL_TILE):
        raise errors.ImageTooLargeError(
            f"{name} has tiles of {across} x {down} pixels, more than the limit of "
            f"{max_pixels:,}: export it again"
        )
    if big and order == ">":  # Pillow would read the offsets as in a classic TIFF
        stream = _classic(stream, entries)
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


def _classic(stream: BinaryIO, entries: list[_Entry]) -> BinaryIO:
    """Copy a big-endian BigTIFF and append a classic directory of its first picture."""
    stream.seek(0)
    data = bytearray(stream.read())
    directory = b""
    for entry in entries:
        kind, value = entry.kind, _value(data, entry)
        if kind in _NARROW:
            wide = struct.unpack(f">{entry.length}Q", value)
            kind, value = _NARROW[kind], struct.pack(f">{entry.length}I", *wide)
        if len(value) > 4:
            place, data = len(data), data + value + bytes(len(value) % 2)
            value = struct.pack(">I", place)
        directory += struct.pack(">HHI4s", entry.tag, kind, entry.length, value)
    data += bytes(len(data) % 2)
    data[:8] = struct.pack(">2sHI", b"MM", 42, len(data))
    data += struct.pack(">H", len(entries)) + directory + bytes(4)
    return io.BytesIO(data)


def _value(data: bytearray, entry: _Entry) -> bytes:
    size = entry.length * _SIZES.get(entry.kind, 1)
    if size <= 8:
        return entry.value[:size]
    (place,) = struct.unpack(">Q", entry.value)
    return bytes(data[place : place + size])
