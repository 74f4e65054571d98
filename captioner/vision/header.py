"""What a file says of itself before any pixel of it is decoded, and how much it may say.

Pillow's readers are used without `Image.open`, which measures pictures against a limit that belongs
to the whole process, and says so with a warning, which no thread can catch for itself alone.
"""

from __future__ import annotations

import io
import os
import re
import struct
from typing import BinaryIO

from PIL import ExifTags, Image, ImageFile, features
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from captioner import errors
from captioner.vision.metadata import check_png, lean_iso, lean_jpeg, lean_tiff, segments

__all__ = ["IMAGE_SUFFIXES", "MAX_SCANS", "check_size", "is_ordinary", "read_header"]

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".heic", ".heif", ".hif", ".bmp",
    ".gif", ".tif", ".tiff",
)  # fmt: skip
"""What files are called that can be read, in small letters."""

MAX_SCANS = 100
"""A progressive JPEG has about ten; each costs as much as decoding the whole picture."""

_BLOCKS = 10_000  # of 255 bytes at most: comments and the like in a GIF

_ORDINARY = 30_000_000  # pixels; phones have 12 to 24 million, decoded at a half in 65 to 130 ms
_SEGMENTS = 1000  # before the pixels; a reader takes its time for each, and cameras write a few
_BESIDE = 4_000_000  # bytes before the pixels; a profile has one to three

_USUAL_TILE = 1 << 20  # pixels; a tile may be larger than the picture

# What files begin with. MPO, from many phones, is JPEG with more pictures behind the first: JPEG's
# reader shows the first, whatever has become of the list of the others.
_READERS: dict[bytes, type[ImageFile.ImageFile]] = {
    rb"\xff\xd8\xff": JpegImageFile,
    rb"\x89PNG\r\n\x1a\n": PngImageFile,
    rb"RIFF....WEBP": WebPImageFile,
    rb"....ftyp(avif|avis|mif1|msf1)": AvifImageFile,
    rb"BM": BmpImageFile,
    rb"GIF8[79]a": GifImageFile,
    rb"II[*+]\0|MM\0\*": TiffImageFile,
}
_HEIC = rb"....ftyp(hei[cxms]|hev[cxms]|(mif1|msf1)....(....)*hei[cxms])"


def read_header(stream: BinaryIO, name: str, max_pixels: int) -> ImageFile.ImageFile:
    """Read the size, and of the metadata what is needed; the pixels stay in a stream.

    Args:
        stream: stands where the image begins.
        name: what errors call the image.
        max_pixels: width times height of the largest image to decode, and of the largest part
            that a decoder holds at once.

    Raises:
        ImageEmptyError, ImageFormatError, ImageTooLargeError: as open_image says.
        Exception: what Pillow's readers raise on damaged files.
    """
    head = stream.read(64)
    if not head:
        raise errors.ImageEmptyError(f"{name} is empty (0 bytes): copy or download it again")
    reader = _reader(head, name)
    if reader.format in ("WEBP", "AVIF") and not features.check(reader.format.lower()):
        raise errors.ImageFormatError(f"{name} is {reader.format}: install a Pillow that reads it")
    if reader.format == "GIF":
        # Pillow allocates and measures a GIF's frame while it reads the header: be there first.
        for limit in (max_pixels, Image.MAX_IMAGE_PIXELS or max_pixels):
            check_size(_gif_size(stream, name), name, limit)
    image = reader(_lean(stream, reader.format, name))
    check_size(image.size, name, max_pixels)
    if isinstance(image, TiffImageFile):
        _check_tiles(image, name, max_pixels)
        # Pillow's limit is for memory not there yet. (image.size has the EXIF turn in it.)
        size = image.tag_v2[ExifTags.Base.ImageWidth], image.tag_v2[ExifTags.Base.ImageLength]
        image.im = Image.new(image.mode, size, None).im
    return image


def _reader(head: bytes, name: str) -> type[ImageFile.ImageFile]:
    if re.match(_HEIC, _first_box(head), re.DOTALL):
        # Only here: few photos need it, and it is a library of its own.
        from pi_heif.as_plugin import HeifImageFile

        reader: type[ImageFile.ImageFile] = HeifImageFile
        return reader
    for begin, known in _READERS.items():
        if re.match(begin, head, re.DOTALL):
            return known
    raise errors.ImageFormatError(
        f"{name} is not a JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF or TIFF image: convert it to one"
    )


def _lean(stream: BinaryIO, kind: str | None, name: str) -> BinaryIO:
    """Give a stream at its beginning that says little but pixels."""
    stream.seek(0)
    if kind == "JPEG":
        data = stream.read()
        _check_scans(data, name)
        return io.BytesIO(lean_jpeg(data, name))
    if kind in ("AVIF", "HEIF"):
        return io.BytesIO(lean_iso(stream.read()))
    if kind == "PNG":
        check_png(stream, name)
    elif kind == "TIFF":
        stream = lean_tiff(stream, name)
    stream.seek(0)
    return stream


def _first_box(head: bytes) -> bytes:
    """Cut off what follows the first box of an ISO file: its brands end there."""
    return head[: max(16, int.from_bytes(head[:4], "big"))]


def check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    """Refuse an image of no pixels, or of too many.

    Raises ImageEmptyError, ImageTooLargeError: the detail has the name and the size.
    """
    width, height = size
    if width * height == 0:
        raise errors.ImageEmptyError(f"{name} has no pixels: save or export it again")
    if width * height > max_pixels:
        raise errors.ImageTooLargeError(
            f"{name} has {width} x {height} pixels, more than the limit of {max_pixels:,}: "
            "make it smaller, or raise the limit with --max-pixels or max_pixels"
        )


def _gif_size(stream: BinaryIO, name: str) -> tuple[int, int]:
    """Size a GIF as Pillow will: its screen, grown by a first frame that reaches beyond.

    Pillow puts comments together piece by piece, and copies them for each.
    """
    stream.seek(6)
    width, height, flags = struct.unpack("<HHBxx", stream.read(7))
    blocks = 0
    if flags & 0x80:
        stream.seek(6 << (flags & 7), os.SEEK_CUR)  # the palette: three bytes a colour
    while (block := stream.read(1)) not in (b"", b";"):
        if block == b"!":
            stream.read(1)
            while (length := stream.read(1)) not in (b"", b"\0"):
                stream.seek(length[0], os.SEEK_CUR)
                if (blocks := blocks + 1) > _BLOCKS:
                    raise errors.ImageTooLargeError(
                        f"{name} is in more than {_BLOCKS:,} pieces: export it again"
                    )
        elif block == b",":
            left, top, across, down = struct.unpack("<4H", stream.read(8))
            return max(width, left + across), max(height, top + down)
    return width, height


def _check_scans(data: bytes, name: str) -> None:
    """Refuse a JPEG whose few bytes would be decoded over and over again."""
    # Bytes that look like a scan's marker may stand in metadata, or behind the picture.
    if data.count(b"\xff\xda") <= MAX_SCANS:
        return
    if (scans := sum(marker == 0xDA for marker, _, _ in segments(data))) > MAX_SCANS:
        raise errors.ImageTooLargeError(
            f"{name} has its pixels in {scans:,} scans, more than the limit of {MAX_SCANS}: "
            "export it again"
        )


def _check_tiles(image: TiffImageFile, name: str, max_pixels: int) -> None:
    """Refuse tiles that are larger than any picture: one is held whole while it is decoded.

    A strip is as wide as the picture, and libtiff takes it for no higher.
    """
    across, down = (image.tag_v2.get(tag, 1) for tag in (322, 323))  # TileWidth, TileLength
    if across * down > max(max_pixels, _USUAL_TILE):
        raise errors.ImageTooLargeError(
            f"{name} has tiles of {across} x {down} pixels, more than the limit of "
            f"{max_pixels:,}: export it again"
        )


def is_ordinary(data: bytes) -> bool:
    """Whether a file is a JPEG that is decoded in one pass, and not very large.

    That is: baseline, grey or of three colours (inks may have a profile, which takes time), all of
    them in its first scan, at which a decoder stops, with little before it. Its time goes with
    its pixels and nothing else.
    """
    colours = 0
    if not data.startswith(b"\xff\xd8"):
        return False
    for number, (marker, begin, _) in enumerate(segments(data[:_BESIDE])):
        if marker == 0xDA:
            return 0 < colours == int.from_bytes(data[begin : begin + 1])
        if number == _SEGMENTS:
            return False
        if marker == 0xC0 and begin + 6 <= len(data):
            height, width, colours = struct.unpack_from(">xHHB", data, begin)
            if width * height > _ORDINARY or colours not in (1, 3):
                return False
        elif not (marker >= 0xE0 or marker in (0xC4, 0xDB, 0xDD)):
            return False  # progressive, lossless, arithmetic
    return False
