"""Photos whose metadata is small on disk and large in memory: many entries, one value."""

from __future__ import annotations

import io
import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

from tests.captioner import pictures
from tests.captioner.pictures import HEIC, draw, encode


def exif(
    entries: int = 60_000, size: int = 2_000_000, *, orientation: int = 6, sub: bool = False
) -> bytes:
    """A TIFF block of so many entries that all point at the same bytes.

    sub: the entries stand in the EXIF directory, to which the first directory points.
    """
    first = [struct.pack("<HHIHH", 274, 3, 1, orientation, 0)]
    values = 8 + 2 * 2 + 12 * (entries + 2) + 8
    many = [struct.pack("<HHII", tag % 60_000 + 1000, 7, size, values) for tag in range(entries)]
    if sub:
        first.append(struct.pack("<HHII", 34665, 4, 1, 8 + 2 + 12 * 2 + 4))
        directories = _directory(first) + _directory(many)
    else:
        directories = _directory(first + many)
    return (b"II*\0" + struct.pack("<I", 8) + directories).ljust(values, b"\0") + bytes(size)


def _directory(entries: list[bytes]) -> bytes:
    return struct.pack("<H", len(entries)) + b"".join(entries) + bytes(4)


def jpeg(*, block: bytes | None = None, step: int = 65_000) -> bytes:
    """A JPEG whose EXIF is spread over as many segments as it takes."""
    block = exif() if block is None else block
    parts = [block[at : at + step] for at in range(0, len(block), step)]
    segments = [
        b"\xff\xe1" + struct.pack(">H", len(part) + 8) + b"Exif\0\0" + part for part in parts
    ]
    plain = _saved("JPEG")
    return plain[:2] + b"".join(segments) + plain[2:]


def comments() -> bytes:
    """A JPEG of a million segments."""
    plain = _saved("JPEG")
    return plain[:2] + b"\xff\xfe\0\2" * 1_000_000 + plain[2:]


def photoshop() -> bytes:
    """A JPEG of a million resources, of no bytes each."""
    resources = b"Photoshop 3.0\0" + b"8BIM\4\1\0\0\0\0\0\0" * 5000
    plain = _saved("JPEG")
    segment = b"\xff\xed" + struct.pack(">H", len(resources) + 2) + resources
    return plain[:2] + segment * 200 + plain[2:]


def png(*, chunk: bytes = b"eXIf", data: bytes | None = None, times: int = 1) -> bytes:
    """A PNG with a chunk before its pixels."""
    data = exif() if data is None else data
    one = struct.pack(">I", len(data)) + chunk + data
    one += struct.pack(">I", zlib.crc32(chunk + data))
    plain = _saved("PNG")
    return plain[:33] + one * times + plain[33:]


def tiff(*, big: bool = False, sub: bool = False, entries: int = 60_000) -> bytes:
    """A TIFF in whose directory, or in the one of EXIF, the entries stand."""
    grey, size = draw(64, 64).convert("L"), 2_000_000
    with Image.open(io.BytesIO(encode(grey, "TIFF", compression="tiff_lzw"))) as image:
        (offset,), (count,) = image.tag_v2[273], image.tag_v2[279]  # type: ignore[attr-defined]
        image.fp.seek(offset)
        pixels = image.fp.read(count)
    many = [(tag % 60_000 + 1000, 7, size, 8) for tag in range(entries)]

    def write(*more: tuple[int, int, list[int]], shared: list[tuple[int, ...]]) -> bytes:
        return pictures.tiff(
            np.asarray(grey), order="<", big=big, packed=pixels, compression=5,
            more=((274, 3, [6]), *more), shared=shared,
        )  # fmt: skip

    if not sub:
        return write(shared=many) + bytes(size)
    place = len(write((34665, 4, [1]), shared=[]))
    parts = [struct.pack("<HHII", *fields) for fields in many]
    return write((34665, 4, [place]), shared=[]) + _directory(parts) + bytes(size)


def webp() -> bytes:
    """A WebP with the block in its EXIF chunk."""
    return encode(draw(), "WEBP", exif=exif())


def avif() -> bytes:
    """An AVIF with the block in its Exif item."""
    # The writer would read the bomb itself: put it behind the file, and let the item say so.
    return _repointed(bytearray(encode(draw(), "AVIF", exif=exif(1, 10))), exif(orientation=1))


def heic() -> bytes:
    """A HEIC with the block in its Exif item."""
    return _repointed(bytearray(HEIC), exif(orientation=1))


def _repointed(data: bytearray, block: bytes) -> bytes:
    """Append the block, and point the item of type Exif to it."""
    item = data.index(b"Exif\0") - 4
    number = data[item : item + 2]
    place = data.index(b"iloc") + 4
    sizes = data[place + 4]
    assert data[place] in (0, 1) and sizes == 0x44, (data[place], sizes)
    base = data[place + 5] >> 4
    count = int.from_bytes(data[place + 6 : place + 8])
    at = place + 8
    for _ in range(count):
        own, at = data[at : at + 2], at + 2 + 2 * (data[place] == 1)
        at += 2 + base
        extents = int.from_bytes(data[at : at + 2])
        at += 2
        if own == number:
            data[at : at + 8] = struct.pack(">II", len(data), len(block) + 4)
        at += 8 * extents
    return bytes(data) + bytes(4) + block


def gif() -> bytes:
    """A GIF with a comment of 15 MB, in pieces of 255 bytes."""
    plain = _saved("GIF")
    place = plain.index(b",", 13 + 3 * 2 ** ((plain[10] & 7) + 1))
    comment = b"!\xfe" + (b"\xff" + bytes(255)) * 60_000 + b"\0"
    return plain[:place] + comment + plain[place:]


@cache
def _saved(kind: str) -> bytes:
    return encode(draw(), kind)


MAKERS = {
    "jpeg": jpeg,
    "jpeg, one segment": lambda: jpeg(block=exif(1000, 50_000)),
    "jpeg, small segments": lambda: jpeg(step=4),
    "jpeg, comments": comments,
    "jpeg, photoshop": photoshop,
    "jpeg, prefixes": lambda: jpeg(block=b"Exif\0\0" * 100_000),
    "png": png,
    "png, no turn": lambda: png(data=exif(size=1_000_000, orientation=1)),
    "png, prefixes": lambda: png(data=b"Exif\0\0" * 200_000),
    "png, empty chunks": lambda: png(chunk=b"teSt", data=b"", times=1_000_000),
    "png, empty pixels": lambda: png(chunk=b"IDAT", data=b"", times=1_000_000),
    "png, text": lambda: png(
        chunk=b"zTXt", data=b"a\0\0" + zlib.compress(bytes(1 << 20), 9), times=10_000
    ),
    "tiff": tiff,
    "tiff, few": lambda: tiff(entries=4000),
    "tiff, big": lambda: tiff(big=True),
    "tiff, exif": lambda: tiff(sub=True),
    "webp": webp,
    "avif": avif,
    "heic": heic,
    "gif": gif,
}
"""Every bomb by its name."""


@cache
def make(name: str) -> bytes:
    """Make one, once."""
    return MAKERS[name]()
