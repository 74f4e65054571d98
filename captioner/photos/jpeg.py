"""JPEG files: drop metadata, refuse some files before decoding, add a missing end marker."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator
from typing import Any

from PIL import Image, ImageChops
from PIL.JpegImagePlugin import JpegImageFile

from captioner import errors

MAX_SCANS = 100
"""The maximum number of scans. A progressive JPEG has about ten; each takes as long as decoding the
picture once."""

_SEGMENTS = 10_000  # cameras and Photoshop write a few hundred at most

_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
START_OF_SCAN = 0xDA
_END = b"\xff\xd9"
_EXIF = 0xE1
_KEPT = {0xE0: b"JFIF", 0xE2: b"ICC_PROFILE\0", 0xEE: b"Adobe"}  # by marker
_NEVER = b"\0" * 13  # longer than any identifier
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the marker of each segment of the picture, and the start and end of its content."""
    place = 2
    while (match := _MARKER.search(data, place)) and match[1] != _END[1:]:
        begin = match.end() + 2
        place = match.end() + int.from_bytes(data[match.end() : begin], "big")
        yield match[1][0], begin, place


def read_jpeg(data: bytes, name: str) -> tuple[io.BytesIO, dict[str, Any]]:
    """Drop the metadata of a JPEG, for which Pillow's time and memory have no limit.

    Returns:
        A JPEG without comments and application segments, except JFIF, Adobe and the colour profile;
        and Pillow's `info` entry `exif` with the first EXIF segment, if there is one.
    """
    pieces, info = [data[:2]], dict[str, Any]()
    for number, (marker, begin, end) in enumerate(segments(data)):
        if number == _SEGMENTS:
            raise errors.ImageTooLargeError(
                f"{name} has more than {_SEGMENTS:,} metadata entries: export it again"
            )
        if marker in _FRAMES and data[begin : begin + 1] not in (b"\x08", b""):
            raise errors.ImageFormatError(
                f"{name} is a JPEG of {data[begin]} bits per sample, which is not supported: "
                "convert it to JPEG or PNG"
            )
        if marker == START_OF_SCAN:
            _check_scans(data, name)
            pieces.append(data[begin - 4 :])
            break
        if marker == _EXIF and data[begin : begin + 6] == b"Exif\0\0":
            info.setdefault("exif", data[begin:end])
        if marker < 0xE0 or data[begin : begin + 12].startswith(_KEPT.get(marker, _NEVER)):
            pieces.append(data[begin - 4 : end])
    return io.BytesIO(b"".join(pieces)), info


def _check_scans(data: bytes, name: str) -> None:
    """Raise ImageTooLargeError if a JPEG has more than MAX_SCANS scans."""
    # These bytes also occur in metadata and after the picture: count exactly only if many.
    if data.count(b"\xff\xda") <= MAX_SCANS:
        return
    scans = 0
    for number, (marker, _, _) in enumerate(segments(data)):
        scans += marker == START_OF_SCAN
        if scans > MAX_SCANS or number == _SEGMENTS:
            raise errors.ImageTooLargeError(
                f"{name} has its pixels in more than {MAX_SCANS} scans: export it again"
            )


def with_end(data: bytes) -> bytes | None:
    """Add the end marker that a JPEG lacks; return None if pixels are missing too.

    A decoder fills missing pixels from the bytes that follow. So the file is decoded twice, with
    different bytes after its end. The results are equal only if no pixel is missing.
    """
    place, data = 2, data.rstrip(b"\xff")
    for _, _, end in segments(data):
        if end > len(data):  # cut inside a segment
            return None
        place = end
    if b"\xff\xd9" in data[place:]:
        return None
    noise = random.Random(0)
    padding = [bytes(noise.randrange(1, 255) for _ in range(64)) for _ in range(8)]
    # With all restart markers, because a decoder may wait for one.
    more = b"".join(part + bytes((0xFF, 0xD0 + index)) for index, part in enumerate(padding))
    pictures: list[Image.Image] = []
    for behind in (b"", more):
        pictures.append(picture := JpegImageFile(io.BytesIO(data + behind + _END)))
        picture.load()
    same = ImageChops.difference(*pictures).getbbox(alpha_only=False) is None
    return data + _END if same else None
