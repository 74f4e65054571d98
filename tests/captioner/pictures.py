"""Pictures for tests of opening images."""

from __future__ import annotations

import io
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

# Drawn as `draw` does, stored on its side and turned back; written by pillow-heif 1.8.1, whose
# encoder is no dependency of this project.
HEIC = Path(__file__).with_name("turned.heic").read_bytes()


def draw(width: int = 64, height: int = 48) -> Image.Image:
    """A picture that no turn or flip leaves as it is."""
    ramp = Image.linear_gradient("L")
    red = ramp.rotate(90).resize((width, height))
    green = ramp.resize((width, height))
    blue = Image.new("L", (width, height), 40)
    blue.paste(200, (0, 0, width // 3, height // 2))
    return Image.merge("RGB", (red, green, blue))


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    """The bytes of a picture as a file of a kind."""
    image.save(buffer := io.BytesIO(), kind, **options)
    return buffer.getvalue()


_INVERSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def exif(orientation: int) -> Image.Exif:
    """A tag that turns a picture."""
    tags = Image.Exif()
    tags[0x0112] = orientation
    return tags


def turned(kind: str, orientation: int, image: Image.Image | None = None, **options: Any) -> bytes:
    """A picture, by default the drawing, stored turned, with the tag that turns it back."""
    stored = image or draw()
    if orientation in _INVERSE:
        stored = stored.transpose(_INVERSE[orientation])
    return encode(stored, kind, exif=exif(orientation), **options)


def png(
    width: int, height: int, rows: bytes = b"", *more: bytes, depth: int = 8, colour: int = 2
) -> bytes:
    """A PNG of one IDAT, made by hand; `more`: chunks of type and data before it."""

    def chunk(body: bytes) -> bytes:
        return struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))

    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [header, *more, b"IDAT" + zlib.compress(rows), b"IEND"]
    return b"\x89PNG\r\n\x1a\n" + b"".join(map(chunk, chunks))


def tiff(
    array: np.ndarray,
    *,
    order: str,
    big: bool = False,
    packed: bytes | None = None,
    bits: int | None = None,
    compression: int = 1,
    strips: int = 1,
    more: tuple[tuple[int, int, list[int]], ...] = (),
    shared: list[tuple[int, int, int, int]] | None = None,
) -> bytes:
    """A TIFF or BigTIFF in either byte order, written by hand.

    more: further entries: tag, type and numbers; shared: tag, type, count and place of numbers.
    """
    height, width, *channels = array.shape
    samples = channels[0] if channels else 1
    layout, entry = ("Q", "HHQ") if big else ("I", "HHI")
    body = packed or array.astype(array.dtype.newbyteorder(order)).tobytes()
    start, room, wide = (16, 8, 16) if big else (8, 4, 4)
    length = len(body) // strips
    offsets = [start + strip * length for strip in range(strips)]
    entries = [
        (256, 4, [width]), (257, 4, [height]), (258, 3, [bits or 8 * array.itemsize] * samples),
        (259, 3, [compression]), (262, 3, [2 if samples == 3 else 1]), (273, wide, offsets),
        (277, 3, [samples]), (278, 4, [height // strips]), (279, wide, [length] * strips), *more,
    ]  # fmt: skip
    letters = {3: "H", 4: "I", 16: "Q"}
    directory = b""
    for tag, kind, numbers in entries:
        value = struct.pack(f"{order}{len(numbers)}{letters[kind]}", *numbers)
        if len(value) > room:
            place, body = start + len(body), body + value
            value = struct.pack(order + layout, place)
        directory += struct.pack(order + entry, tag, kind, len(numbers)) + value.ljust(room, b"\0")
    shared = shared or []
    directory += b"".join(struct.pack(order + entry + layout, *fields) for fields in shared)
    place, count = start + len(body), len(entries) + len(shared)
    mark = b"II" if order == "<" else b"MM"
    if big:
        head = mark + struct.pack(order + "HHHQ", 43, 8, 0, place)
        return head + body + struct.pack(order + "Q", count) + directory + bytes(8)
    head = mark + struct.pack(order + "HI", 42, place)
    return head + body + struct.pack(order + "H", count) + directory + bytes(4)


def profile(*primaries: tuple[float, float, float], gamma: float, space: bytes = b"RGB ") -> bytes:
    """An ICC profile of a display, or of grey where no primaries are given.

    Its tags are written out by hand (ICC.1:2001-04): the XYZ of the primaries, adapted to D50, and
    one gamma for all of them.
    """

    def fixed(value: float) -> bytes:
        return struct.pack(">i", round(value * 65536))

    white = (0.9642, 1.0, 0.8249)
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)
    tags = {b"wtpt": b"XYZ " + bytes(4) + b"".join(map(fixed, white))}
    for letter, xyz in zip((b"r", b"g", b"b"), primaries, strict=False):
        tags[letter + b"XYZ"] = b"XYZ " + bytes(4) + b"".join(map(fixed, xyz))
        tags[letter + b"TRC"] = curve
    if not primaries:
        tags[b"kTRC"] = curve
    return icc(tags, device=b"mntr", space=space, connection=b"XYZ ")


def icc(tags: dict[bytes, bytes], *, device: bytes, space: bytes, connection: bytes) -> bytes:
    """An ICC profile of these tags."""
    table, body, place = b"", b"", 128 + 4 + 12 * len(tags)
    for name, data in tags.items():
        table += struct.pack(">4sII", name, place + len(body), len(data))
        body += data
    header = struct.pack(
        ">I4sI4s4s4s12s4s4sI4s4s8sI3I4s44s",
        *(place + len(body), b"", 0x02400000, device, space, connection, b"", b"acsp", b"", 0, b""),
        *(b"", b"", 0, 0xF6D6, 0x10000, 0xD32D, b"", b""),
    )
    return header + struct.pack(">I", len(tags)) + table + body
