"""The header of an image file: its format, its size, and checks before decoding.

Pillow's readers are used without `Image.open`, whose pixel limit is global to the process and is
reported by a warning that a thread cannot catch alone.
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
from PIL.WebPImagePlugin import WebPImageFile

from captioner import errors
from captioner.photos.cicp import read_nclx
from captioner.photos.jpeg import read_jpeg
from captioner.photos.png import read_png
from captioner.photos.tiff import TiffReader, open_tiff

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".heic", ".heif", ".hif", ".bmp",
    ".gif", ".tif", ".tiff",
)  # fmt: skip
"""The suffixes of files that can be read, in lower case."""

_GIF_BLOCKS = 10_000  # for each block of a comment Pillow copies all earlier ones

# MPO, from many phones, is a JPEG followed by more pictures. The JPEG reader opens the first, even
# if the list of the others is damaged.
_READERS: dict[bytes, type[ImageFile.ImageFile]] = {
    rb"\xff\xd8\xff": JpegImageFile,
    rb"\x89PNG\r\n\x1a\n": PngImageFile,
    rb"RIFF....WEBP": WebPImageFile,
    rb"....ftyp(avif|avis|mif1|msf1)": AvifImageFile,
    rb"BM": BmpImageFile,
    rb"GIF8[79]a": GifImageFile,
    rb"II[*+]\0|MM\0[*+]": TiffReader,
}
_HEIC = rb"....ftyp(hei[cxms]|hev[cxms]|(mif1|msf1)....(....)*hei[cxms])"

# The EXIF and XMP items of an AVIF or HEIC, which are skipped: the container has the orientation,
# and readers would copy all values of the EXIF. Items whose type is not ASCII crash pi_heif.
_ISO_METADATA = re.compile(
    rb"(\0\0..infe(?:\x02\0\0.{5}|\x03\0\0.{7}))"
    rb"(?:Exif|mime|(?=.{0,3}[\x80-\xff])....)",
    re.DOTALL,
)

_LFS = b"version https://git-lfs"
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body")


def read_header(stream: BinaryIO, name: str, max_pixels: int) -> ImageFile.ImageFile:
    """Read the format, the size and the metadata, without decoding the pixels.

    `max_pixels` limits width times height of the image and of its tiles. Raises an ImageError, or
    for damaged files any exception of Pillow.
    """
    head = stream.read(4096)
    if not head:
        raise errors.ImageEmptyError(f"{name} is empty (0 bytes): copy or download it again")
    reader = _reader(head, name)
    if reader.format in ("WEBP", "AVIF") and not features.check(reader.format.lower()):
        raise errors.ImageFormatError(f"{name} is {reader.format}: install a Pillow that reads it")
    image = _open(reader, stream, name, max_pixels)
    check_size(image.size, name, max_pixels)
    if isinstance(image, TiffReader):
        # Allocated here, because Pillow would apply its own limit. image.size may be turned.
        size = image.tag_v2[ExifTags.Base.ImageWidth], image.tag_v2[ExifTags.Base.ImageLength]
        image.im = Image.new(image.mode, size, None).im
    return image


def _open(
    reader: type[ImageFile.ImageFile], stream: BinaryIO, name: str, max_pixels: int
) -> ImageFile.ImageFile:
    stream.seek(0)
    if reader is JpegImageFile:
        pixels, info = read_jpeg(stream.read(), name)
        image: ImageFile.ImageFile = JpegImageFile(pixels)
        image.info.update(info)
        return image
    if reader is PngImageFile:
        pixels, info = read_png(stream.read(), name)
        image = PngImageFile(pixels)
        image.info.update(info)
        return image
    if reader is TiffReader:
        return open_tiff(stream, name, max_pixels)
    if reader.format in ("AVIF", "HEIF"):
        data = stream.read()
        image = reader(io.BytesIO(_ISO_METADATA.sub(rb"\1skip", data)))
        image.info["cicp"] = read_nclx(data)
        return image
    if reader is GifImageFile:
        # Pillow allocates and measures a GIF's frame while it reads the header.
        for limit in (max_pixels, Image.MAX_IMAGE_PIXELS or max_pixels):
            check_size(_gif_size(stream, name), name, limit)
        stream.seek(0)
    return reader(stream)


def _reader(head: bytes, name: str) -> type[ImageFile.ImageFile]:
    first_box = head[: max(16, int.from_bytes(head[:4]))]  # of an ISO file: lists its brands
    if re.match(_HEIC, first_box, re.DOTALL):
        # Imported here because few photos need it.
        from pi_heif.as_plugin import HeifImageFile

        reader: type[ImageFile.ImageFile] = HeifImageFile
        return reader
    for pattern, candidate in _READERS.items():
        if re.match(pattern, head, re.DOTALL):
            return candidate
    if reason := _not_a_photo(head):
        raise errors.ImageFormatError(f"{name} {reason}")
    raise errors.ImageFormatError(
        f"{name} is not a JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF or TIFF image: convert it to one"
    )


def _not_a_photo(head: bytes) -> str | None:
    """Return the kind and the remedy of a file that replaces a photo; None for others."""
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    while text.startswith(b"<!--") and b"-->" in text:
        text = text.partition(b"-->")[2].lstrip()
    if text.startswith(_LFS):
        return "is a Git LFS pointer, not the photo: run git lfs pull"
    if text.startswith(_HTML):
        return "is an HTML page, not a photo: download the photo itself"
    is_plist = text.startswith(b"bplist00") or (text.startswith(b"<?xml") and b"<plist" in text)
    if is_plist and b"nsurl" in text:
        return "is an iCloud placeholder, not the photo: download it in Finder or Files"
    return None


def check_size(size: tuple[int, int], name: str, max_pixels: int) -> None:
    """Refuse an image with no pixels or with more than `max_pixels`."""
    width, height = size
    if width * height == 0:
        raise errors.ImageEmptyError(f"{name} has no pixels: save or export it again")
    if width * height > max_pixels:
        raise errors.ImageTooLargeError(
            f"{name} has {width} x {height} pixels, more than the limit of {max_pixels:,}: "
            "make it smaller, or raise the limit with --max-pixels or max_pixels"
        )


def _gif_size(stream: BinaryIO, name: str) -> tuple[int, int]:
    """Return the size that Pillow will allocate: the screen, or a larger first frame."""
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
                if (blocks := blocks + 1) > _GIF_BLOCKS:
                    raise errors.ImageTooLargeError(
                        f"{name} has more than {_GIF_BLOCKS:,} blocks: export it again"
                    )
        elif block == b",":
            left, top, across, down = struct.unpack("<4H", stream.read(8))
            return max(width, left + across), max(height, top + down)
    return width, height
