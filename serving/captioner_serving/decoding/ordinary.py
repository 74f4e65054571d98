"""Ordinary JPEGs, which are decoded quickly and do not wait behind other photos."""

from __future__ import annotations

import struct

from captioner.photos.jpeg import START_OF_SCAN, segments

_PIXELS = 30_000_000  # phones write 12 to 24 million
_SEGMENTS = 1000  # segments before the pixels; cameras write a few
_BYTES = 4_000_000  # bytes before the pixels; a colour profile has 1 to 3 MB


def is_ordinary(data: bytes) -> bool:
    """Return whether a file is a baseline JPEG, grey or RGB, with one scan and little metadata.

    Its decoding time depends only on its pixels. A CMYK profile may take seconds to apply.
    """
    components = 0
    if not data.startswith(b"\xff\xd8"):
        return False
    for number, (marker, begin, _) in enumerate(segments(data[:_BYTES])):
        if marker == START_OF_SCAN:
            return 0 < components == int.from_bytes(data[begin : begin + 1])
        if number == _SEGMENTS:
            return False
        if marker == 0xC0 and begin + 6 <= len(data):
            height, width, components = struct.unpack_from(">xHHB", data, begin)
            if width * height > _PIXELS or components not in (1, 3):
                return False
        elif not (marker >= 0xE0 or marker in (0xC4, 0xDB, 0xDD)):
            return False  # progressive, lossless, arithmetic
    return False
