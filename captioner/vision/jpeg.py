"""JPEG files: read segments, refuse some files before decoding, add a missing end marker."""

from __future__ import annotations

import io
import random
import re
from collections.abc import Iterator

from PIL import Image, ImageChops
from PIL.JpegImagePlugin import JpegImageFile

from captioner import errors

__all__ = ["MAX_SCANS", "START_OF_SCAN", "JpegReader", "check_jpeg", "segments", "with_end"]

MAX_SCANS = 100
"""The maximum number of scans. A progressive JPEG has about ten; each takes as long as decoding the
picture once."""

_SEGMENTS = 10_000  # before the pixels; for each one Pillow copies all earlier ones

_RESOURCES = 10_000  # Photoshop writes about 30

_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
START_OF_SCAN = 0xDA
_PHOTOSHOP, _END = 0xED, b"\xff\xd9"
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}


class JpegReader(JpegImageFile):
    """Pillow's JPEG reader, but without reading EXIF values for the resolution."""

    def getexif(self) -> Image.Exif:
        """Return no entries; captioner.vision.orientation reads the block in `info`."""
        return Image.Exif()


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Iterate over the segments of a JPEG until the picture ends.

    Yields:
        The marker of a segment, and the start and end of its content.
    """
    place = 2
    while (match := _MARKER.search(data, place)) and match[1] != _END[1:]:
        begin = match.end() + 2
        place = match.end() + int.from_bytes(data[match.end() : begin], "big")
        yield match[1][0], begin, place


def check_jpeg(data: bytes, name: str) -> None:
    """Refuse a JPEG that is too slow to decode, or that Pillow cannot decode.

    Raises:
        ImageTooLargeError: too many segments or scans.
        ImageFormatError: the samples do not have 8 bits.
    """
    resources = 0
    for number, (marker, begin, end) in enumerate(segments(data)):
        if marker in _FRAMES and data[begin : begin + 1] not in (b"\x08", b""):
            raise errors.ImageFormatError(
                f"{name} is a JPEG of {data[begin]} bits per sample, which is not supported: "
                "convert it to JPEG or PNG"
            )
        resources += data.count(b"8BIM", begin, end) if marker == _PHOTOSHOP else 0
        if number > _SEGMENTS or resources > _RESOURCES:
            raise errors.ImageTooLargeError(
                f"{name} has more than {_SEGMENTS:,} metadata entries: export it again"
            )
        if marker == START_OF_SCAN:
            break
    # These bytes also occur in metadata and after the picture: count exactly only if many.
    if data.count(b"\xff\xda") > MAX_SCANS:
        scans = sum(marker == START_OF_SCAN for marker, _, _ in segments(data))
        if scans > MAX_SCANS:
            raise errors.ImageTooLargeError(
                f"{name} has its pixels in {scans:,} scans, more than the limit of {MAX_SCANS}: "
                "export it again"
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
    if b"\xff\xd9" in data[place:] or not _has_all_coefficients(data):
        return None
    noise = random.Random(0)
    padding = [bytes(noise.randrange(1, 255) for _ in range(64)) for _ in range(8)]
    # With all restart markers, because a decoder may wait for one.
    more = b"".join(part + bytes((0xFF, 0xD0 + index)) for index, part in enumerate(padding))
    pictures: list[Image.Image] = []
    for behind in (b"", more):
        pictures.append(picture := JpegReader(io.BytesIO(data + behind + _END)))
        picture.load()
    same = ImageChops.difference(*pictures).getbbox(alpha_only=False) is None
    return data + _END if same else None


def _has_all_coefficients(data: bytes) -> bool:
    """Whether the scans hold every coefficient of every component to its last bit."""
    components: set[int] = set()
    complete: set[tuple[int, int]] = set()
    for marker, begin, _ in segments(data):
        if marker in _FRAMES:
            count = data[begin + 5]
            components = {data[begin + 6 + 3 * index] for index in range(count)}
        elif marker == START_OF_SCAN:
            count = data[begin]
            names = [data[begin + 1 + 2 * index] for index in range(count)]
            first, last, approximation = data[begin + 1 + 2 * count : begin + 4 + 2 * count]
            if approximation & 15 == 0:
                complete |= {(name, at) for name in names for at in range(first, last + 1)}
    return complete >= {(name, at) for name in components for at in range(64)}
