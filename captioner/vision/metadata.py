"""What a file says beside its pixels, cut down before Pillow copies it.

EXIF is a directory whose entries point at their values: sixty thousand entries may point at the
same two megabytes, and Pillow would copy them for each. All that is wanted here is how the picture
is turned, and the profile of its inks. So a reader is given a file that says little else.
"""

from __future__ import annotations

import io
import os
import re
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO

from PIL import ExifTags, Image, TiffTags

from captioner import errors

__all__ = ["check_png", "lean_iso", "lean_jpeg", "lean_tiff", "segments", "shorten_exif"]

_PIECES = 100_000  # segments or chunks; no writer makes so many, and each takes a reader its time
_ENTRIES = 4096  # of a TIFF's directory; libtiff reads no more
_SMALL = 1 << 16  # bytes of a value that may be whatever it is
_VALUES = 1 << 23  # bytes of all values together; the places of 100 megapixels in tiles are half

_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
_SCAN, _APP1 = 0xDA, 0xE1
_BESIDE = {*range(0xE0, 0xF0), 0xFE}  # segments that say something beside the pixels
# Of these JFIF's and Adobe's say how the colours are stored.
_WANTED = {0xE0: b"", _APP1: b"http://ns.adobe.com/xap/1.0/\0", 0xE2: b"ICC_PROFILE\0", 0xEE: b""}
_ITEM = re.compile(rb"(infe(?:\x02.{7}|\x03.{9}))(?:Exif|mime)", re.DOTALL)
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 6: 1, 7: 1, 8: 2, 9: 4, 11: 4, 13: 4}  # others have 8 bytes
_LARGE = {273, 279, 320, 324, 325, 347, 34675}  # where the pixels are, palette, tables, profile


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Walk through a JPEG from marker to marker, as a decoder does, until the picture ends.

    Yields:
        the marker, and where what follows it begins and ends.
    """
    place = 2
    while (found := _MARKER.search(data, place)) and found[1] != b"\xd9":
        begin = found.end() + 2
        place = found.end() + int.from_bytes(data[found.end() : begin], "big")
        yield found[1][0], begin, place


def lean_jpeg(data: bytes, name: str) -> bytes:
    """Leave out of a JPEG what neither its pixels, its turn nor its inks need.

    Raises ImageTooLargeError: it is in too many pieces.
    """
    kept, turned = [data[:2]], False
    for number, (marker, begin, end) in enumerate(segments(data)):
        if marker == _SCAN:
            kept.append(data[begin - 4 :])
            break
        _check_pieces(number, name)
        content = data[begin:end]
        if marker == _APP1 and content.startswith(b"Exif\0\0"):
            if turned:
                continue  # the first begins with the directory
            content, turned = _only_turn(content), True
        elif marker in _BESIDE and not content.startswith(_WANTED.get(marker, ())):
            continue
        kept.append(struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content)
    return b"".join(kept)


def check_png(stream: BinaryIO, name: str) -> None:
    """Refuse a PNG in more pieces than a reader should go through.

    Raises ImageTooLargeError: it is.
    """
    stream.seek(8)
    number = 0
    while len(head := stream.read(8)) == 8 and not head.endswith(b"IEND"):
        _check_pieces(number := number + 1, name)
        stream.seek(int.from_bytes(head[:4], "big") + 4, os.SEEK_CUR)


def lean_iso(data: bytes) -> bytes:
    """Rename the EXIF and XMP of an AVIF or HEIC: how it is turned stands elsewhere."""
    return _ITEM.sub(rb"\1skip", data)


def lean_tiff(stream: BinaryIO, name: str) -> BinaryIO:
    """Empty the values in a TIFF's directory that are large, or directories, and no pixels.

    Raises ImageTooLargeError: the others are still too many, or too large.
    """
    stream.seek(0)
    head = stream.read(16)
    order, big = "<" if head[:2] == b"II" else ">", head[2] == 43
    number, entry = (order + "Q", order + "HHQQ") if big else (order + "H", order + "HHII")
    (place,) = struct.unpack_from(order + ("Q" if big else "I"), head, 8 if big else 4)
    stream.seek(place)
    (count,) = struct.unpack(number, stream.read(struct.calcsize(number)))
    if count > _ENTRIES:
        raise errors.ImageTooLargeError(
            f"{name} has a directory of {count:,} entries, more than the limit of {_ENTRIES:,}: "
            "export it again"
        )
    size = struct.calcsize(entry)
    directory = stream.read(count * size)
    total, emptied = 0, []
    for at in range(0, len(directory) - size + 1, size):
        tag, kind, values, _ = struct.unpack_from(entry, directory, at)
        length = values * _SIZES.get(kind, 8)
        if tag in TiffTags.TAGS_V2_GROUPS or (length > _SMALL and tag not in _LARGE):
            emptied.append(place + struct.calcsize(number) + at + 4)
        else:
            total += length
    if total > _VALUES:
        raise errors.ImageTooLargeError(
            f"{name} has {total:,} bytes in its directory, more than the limit of {_VALUES:,}: "
            "export it again"
        )
    if emptied:
        stream.seek(0)
        stream = io.BytesIO(stream.read())
        for at in emptied:
            stream.seek(at)
            stream.write(bytes(8 if big else 4))
    return stream


def shorten_exif(image: Image.Image) -> None:
    """Leave of the EXIF of a picture that is loaded how it is turned."""
    profile = image.info.pop("Raw profile type exif", None)  # ImageMagick's, before PNG had EXIF
    block = image.info.get("exif")
    if block is None and profile is not None:
        with suppress(ValueError):
            block = bytes.fromhex("".join(profile.split("\n")[3:]))
    if block is not None:
        image.info["exif"] = _only_turn(block)


def _only_turn(block: bytes) -> bytes:
    """Make an EXIF block with one entry, or none."""
    turn = None
    with suppress(struct.error):
        while block.startswith(b"Exif\0\0"):
            block = block[6:]
        order = "<" if block[:2] == b"II" else ">"
        (place,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, place)
        for at in range(place + 2, place + 2 + 12 * count, 12):
            tag, kind, values = struct.unpack_from(order + "HHI", block, at)
            if tag == ExifTags.Base.Orientation and values == 1 and kind in (3, 4):
                (turn,) = struct.unpack_from(order + "xxxHI"[kind], block, at + 8)
    entries = b"" if turn is None else struct.pack("<HHII", ExifTags.Base.Orientation, 4, 1, turn)
    return b"Exif\0\0II*\0" + struct.pack("<IH", 8, len(entries) // 12) + entries + bytes(4)


def _check_pieces(number: int, name: str) -> None:
    if number > _PIECES:
        raise errors.ImageTooLargeError(
            f"{name} is in more than {_PIECES:,} pieces: export it again"
        )
