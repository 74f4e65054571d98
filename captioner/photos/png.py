"""PNG files: keep the chunks that define the pixels, drop all others.

Pillow treats all chunks alike: it rejects a photo for a bad checksum in a comment or for more than
a megabyte of text, and accepts a bad checksum of pixels. The PNG specification (section 13) asks
for the opposite.
"""

from __future__ import annotations

import io
import struct
import zlib
from typing import Any

from captioner import errors
from captioner.photos.cicp import Colours

_CHUNKS = 100_000  # encoders write at least 8 kB per chunk
_PROFILE = 1 << 24  # bytes of a colour profile; the largest in use have 3 MB
_METADATA = (b"eXIf", b"cICP", b"iCCP", b"sRGB", b"gAMA")


def read_png(data: bytes, name: str) -> tuple[io.BytesIO, dict[str, Any]]:
    """Split a PNG into pixels and metadata.

    Returns:
        A PNG with only its critical chunks and transparency, and the entries of `info` that the
        metadata gives: `exif`, and one of `cicp`, `icc_profile` and `gamma`.
    """
    view, place, number = memoryview(data), 8, 0
    pieces, metadata = [view[:place]], dict[bytes, bytes]()
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        start, place = place, place + 12 + length
        if (number := number + 1) > _CHUNKS:
            raise errors.ImageTooLargeError(
                f"{name} has more than {_CHUNKS:,} chunks: export it again"
            )
        is_sound = zlib.crc32(view[start + 4 : place - 4]).to_bytes(4) == data[place - 4 : place]
        if kind == b"IDAT" and not is_sound and place <= len(data):
            raise errors.ImageTruncatedError(
                f"{name} is damaged (checksum of its pixels): copy or download it again"
            )
        if kind[:1].isupper() or (kind == b"tRNS" and is_sound):
            pieces.append(view[start:place])
        elif kind in _METADATA and is_sound:
            metadata.setdefault(kind, data[start + 8 : place - 4])
        if kind == b"IEND":
            break
    return io.BytesIO(b"".join(pieces)), _info(metadata)


def _info(metadata: dict[bytes, bytes]) -> dict[str, Any]:
    """Return Pillow's `info` of the chunks: of several with colours, the first of _METADATA."""
    exif = metadata.pop(b"eXIf", b"")
    info: dict[str, Any] = {"exif": exif} if exif else {}
    numbers, gamma = metadata.get(b"cICP", b""), metadata.get(b"gAMA", b"")
    colours = Colours(numbers[0], numbers[1], numbers[3] == 0) if len(numbers) == 4 else None
    if colours is not None and colours.is_known():
        info["cicp"] = None if colours.is_srgb() else colours
    elif profile := _profile(metadata.get(b"iCCP", b"")):
        info["icc_profile"] = profile
    elif len(gamma) == 4 and b"sRGB" not in metadata:
        info["gamma"] = int.from_bytes(gamma) / 100_000
    return info


def _profile(body: bytes) -> bytes | None:
    """Decompress a colour profile; None if it is damaged or too large."""
    _, _, packed = body.partition(b"\0")
    try:
        unpacking = zlib.decompressobj()
        profile = unpacking.decompress(packed[1:], _PROFILE)
        return profile if unpacking.eof else None
    except zlib.error:
        return None
