"""PNG files: separate the chunks that define the pixels from all others.

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

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_CHUNKS = 100_000  # encoders write at least 8 kB per chunk
_PROFILE = 1 << 24  # bytes of a colour profile; the largest in use have 3 MB


def read_png(data: bytes, name: str) -> tuple[io.BytesIO, dict[str, Any]]:
    """Split a PNG into pixels and metadata.

    Args:
        data: the file.
        name: the name of the file in errors.

    Returns:
        A PNG with only its critical chunks and transparency, and Pillow's `info` entries `exif` and
        `icc_profile` if the file has them.

    Raises:
        ImageTooLargeError: the file has too many chunks.
        ImageTruncatedError: the checksum of a pixel chunk is wrong.
    """
    chunks, pixels, info = [], [], {}
    place, number = len(_SIGNATURE), 0
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        body = data[place + 8 : place + 8 + length]
        place += 12 + length
        if (number := number + 1) > _CHUNKS:
            raise errors.ImageTooLargeError(
                f"{name} has more than {_CHUNKS:,} chunks: export it again"
            )
        if kind == b"IEND":
            break
        is_sound = place <= len(data) and _checksum(kind, body) == data[place - 4 : place]
        if kind == b"IDAT":
            if not is_sound and place <= len(data):
                raise errors.ImageTruncatedError(
                    f"{name} is damaged (checksum of its pixels): copy or download it again"
                )
            pixels.append(body)
        elif kind[:1].isupper() or (kind == b"tRNS" and is_sound):
            chunks.append(data[place - 12 - length : place])
        elif is_sound and kind == b"eXIf":
            info["exif"] = body
        elif is_sound and kind == b"iCCP" and (profile := _profile(body)):
            info["icc_profile"] = profile
    stream = io.BytesIO()
    stream.write(b"".join([_SIGNATURE, *chunks]))
    for kind, body in ((b"IDAT", b"".join(pixels)), (b"IEND", b"")):
        stream.write(struct.pack(">I", len(body)) + kind)
        stream.write(body)
        stream.write(_checksum(kind, body))
    stream.seek(0)
    return stream, info


def _checksum(kind: bytes, body: bytes) -> bytes:
    return zlib.crc32(body, zlib.crc32(kind)).to_bytes(4, "big")


def _profile(body: bytes) -> bytes | None:
    """Decompress a colour profile; None if it is damaged or too large."""
    _, _, packed = body.partition(b"\0")
    try:
        unpacking = zlib.decompressobj()
        profile = unpacking.decompress(packed[1:], _PROFILE)
        return profile if unpacking.eof else None
    except zlib.error:
        return None
