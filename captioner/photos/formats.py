"""Image files: recognise the format, check the header, and drop metadata before Pillow reads it.

For some metadata Pillow's time and memory have no limit. Pillow's readers are used without
`Image.open`, whose pixel limit is global to the process and is reported by a warning that a thread
cannot catch alone.
"""

from __future__ import annotations

import io
import random
import re
import struct
import zlib
from collections.abc import Iterator
from itertools import islice
from typing import Any, BinaryIO

from PIL import ExifTags, Image, ImageChops, ImageFile, features
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import COMPRESSION_INFO, ImageFileDirectory_v2, TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from captioner import errors
from captioner.photos.cicp import PRIMARIES, TRANSFERS, read_nclx

IMAGE_SUFFIXES = (
    ".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".avif", ".heic", ".heif", ".hif", ".bmp",
    ".gif", ".tif", ".tiff",
)  # fmt: skip
"""The suffixes of files that can be read, in lower case."""

MAX_SCANS = 100
"""The maximum number of scans. A progressive JPEG has about ten; each takes as long as decoding the
picture once."""
START_OF_SCAN = 0xDA

_JPEG_SEGMENTS = 10_000  # cameras and Photoshop write a few hundred at most
_JPEG_MARKER = re.compile(rb"\xff([^\x00\x01\xd0-\xd8\xff])", re.DOTALL)
_JPEG_END = b"\xff\xd9"
_JPEG_KEPT = (b"JFIF", b"ICC_PROFILE\0", b"Adobe")  # the application segments that are kept

_PNG_CHUNKS = 100_000  # encoders write at least 8 kB per chunk
_PNG_KEPT = {b"gAMA": 4, b"sRGB": 1}  # their lengths; Pillow refuses shorter ones
_PNG_PROFILE = 1 << 24  # bytes of a colour profile; the largest in use have 3 MB

_GIF_BLOCKS = 10_000  # for each block of a comment Pillow copies all earlier ones

_TIFF_RAW = (32803, 34892)  # PhotometricInterpretation: a colour filter array, linear raw
_TIFF_OLD_JPEG = 6  # a Compression; raw photos have it for previews
_TIFF_TILE = 1 << 20  # pixels; a tile may be larger than the picture

# The EXIF and XMP items of an AVIF or HEIC, which are skipped: the container has the orientation,
# and readers would copy all values of the EXIF. Items whose type is not ASCII crash pi_heif.
_ISO_METADATA = re.compile(
    rb"(\0\0..infe(?:\x02\0\0.{5}|\x03\0\0.{7}))"
    rb"(?:Exif|mime|(?=.{0,3}[\x80-\xff])....)",
    re.DOTALL,
)

_LFS = b"version https://git-lfs"
_HTML = (b"<!doctype html", b"<html", b"<head", b"<body")


class TiffReader(TiffImageFile):
    """Pillow's TIFF reader. It applies the orientation and reads no other EXIF metadata."""

    def getexif(self) -> Image.Exif:
        """Return the orientation only."""
        exif = Image.Exif()
        if value := self.tag_v2.get(ExifTags.Base.Orientation):
            exif[ExifTags.Base.Orientation] = value
        return exif


class _GifReader(GifImageFile):
    """Pillow's GIF reader with limits of the blocks before the pixels, and of the size.

    Pillow compares the size with its own limit and allocates while it reads the header.
    """

    _blocks = 0

    def __init__(self, stream: BinaryIO, name: str, max_pixels: int) -> None:
        self._limit = name, min(max_pixels, Image.MAX_IMAGE_PIXELS or max_pixels)
        super().__init__(stream)

    def __setattr__(self, key: str, value: Any) -> None:
        if key == "_size" and 0 not in value:
            check_size(value, *self._limit)
        super().__setattr__(key, value)

    def data(self) -> bytes | None:
        self._blocks += 1
        if self._blocks > _GIF_BLOCKS:
            raise Image.DecompressionBombError(f"more than {_GIF_BLOCKS:,} blocks of metadata")
        return super().data()


# MPO, from many phones, is a JPEG followed by more pictures. The JPEG reader opens the first, even
# if the list of the others is damaged.
_READERS: dict[bytes, type[ImageFile.ImageFile]] = {
    rb"\xff\xd8\xff": JpegImageFile,
    rb"\x89PNG\r\n\x1a\n": PngImageFile,
    rb"RIFF....WEBP": WebPImageFile,
    rb"....ftyp(avif|avis|mif1|msf1)": AvifImageFile,
    rb"BM": BmpImageFile,
    rb"GIF8[79]a": _GifReader,
    rb"II[*+]\0|MM\0[*+]": TiffReader,
}
_HEIC = rb"....ftyp(hei[cxms]|hev[cxms]|(mif1|msf1)....(....)*hei[cxms])"


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
    stream.seek(0)
    info: dict[str, Any] = {}
    if reader is JpegImageFile:
        stream, info = _read_jpeg(stream.read(), name)
    elif reader is PngImageFile:
        stream, info = _read_png(stream.read(), name)
    elif reader is TiffReader:
        _check_tiff(stream, name, max_pixels)
    elif reader.format in ("AVIF", "HEIF"):
        data = stream.read()
        stream, info = io.BytesIO(_ISO_METADATA.sub(rb"\1skip", data)), {"cicp": read_nclx(data)}
    is_gif = reader is _GifReader
    image = _GifReader(stream, name, max_pixels) if is_gif else reader(stream)
    image.info.update(info)
    check_size(image.size, name, max_pixels)
    if isinstance(image, TiffReader):
        # Allocated here, because Pillow would apply its own limit. image.size may be turned.
        size = image.tag_v2[ExifTags.Base.ImageWidth], image.tag_v2[ExifTags.Base.ImageLength]
        image.im = Image.new(image.mode, size, None).im
    return image


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
    reason = _not_a_photo(head) or (
        "is not a JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF or TIFF image: convert it to one"
    )
    raise errors.ImageFormatError(f"{name} {reason}")


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


def _unsupported(name: str, what: str) -> errors.ImageFormatError:
    return errors.ImageFormatError(
        f"{name} is a {what}, which is not supported: convert it to JPEG or PNG"
    )


def _too_many(name: str, parts: str) -> errors.ImageTooLargeError:
    return errors.ImageTooLargeError(f"{name} has more than {parts}: export it again")


# --- JPEG -----------------------------------------------------------------------------------------


def segments(data: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the marker of each segment of a JPEG, and the start and end of its content."""
    place = 2
    while (match := _JPEG_MARKER.search(data, place)) and match[1] != _JPEG_END[1:]:
        begin = match.end() + 2
        place = match.end() + int.from_bytes(data[match.end() : begin], "big")
        yield match[1][0], begin, place


def _read_jpeg(data: bytes, name: str) -> tuple[io.BytesIO, dict[str, Any]]:
    """Return a JPEG without comments and most application segments, and its EXIF for `info`."""
    pieces, info = [data[:2]], dict[str, Any]()
    for number, (marker, begin, end) in enumerate(segments(data)):
        if number == _JPEG_SEGMENTS:
            raise _too_many(name, f"{_JPEG_SEGMENTS:,} metadata entries")
        if marker == START_OF_SCAN:
            pieces.append(data[begin - 4 :])
            break
        if marker < 0xE0 or data.startswith(_JPEG_KEPT, begin):
            pieces.append(data[begin - 4 : end])
        elif marker == 0xE1 and data.startswith(b"Exif\0\0", begin):
            info.setdefault("exif", data[begin:end])
    # These bytes also occur in metadata and after the picture: count exactly only if many.
    if data.count(b"\xff\xda") > MAX_SCANS:
        markers = [marker for marker, _, _ in islice(segments(data), _JPEG_SEGMENTS + 1)]
        if markers.count(START_OF_SCAN) > MAX_SCANS or len(markers) > _JPEG_SEGMENTS:
            raise _too_many(name, f"{MAX_SCANS} scans")
    return io.BytesIO(b"".join(pieces)), info


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
    if _JPEG_END in data[place:]:
        return None
    noise = random.Random(0)
    padding = [bytes(noise.randrange(1, 255) for _ in range(64)) for _ in range(8)]
    # With all restart markers, because a decoder may wait for one.
    more = b"".join(part + bytes((0xFF, 0xD0 + index)) for index, part in enumerate(padding))
    pictures = [JpegImageFile(io.BytesIO(data + rest + _JPEG_END)) for rest in (b"", more)]
    is_whole = ImageChops.difference(*pictures).getbbox(alpha_only=False) is None
    return data + _JPEG_END if is_whole else None


# --- PNG ------------------------------------------------------------------------------------------


def _read_png(data: bytes, name: str) -> tuple[io.BytesIO, dict[str, Any]]:
    """Return a PNG without most metadata, and the profile and numbers of its colours for `info`.

    Pillow treats all chunks alike: it rejects a photo for a bad checksum in a comment or for more
    than a megabyte of text, and accepts a bad checksum of pixels. The PNG specification
    (section 13) asks for the opposite.
    """
    view, place, number = memoryview(data), 8, 0
    pieces, info = [view[:place]], dict[str, Any]()
    while place + 8 <= len(data):
        length, kind = struct.unpack_from(">I4s", data, place)
        start, place = place, place + 12 + length
        if (number := number + 1) > _PNG_CHUNKS:
            raise _too_many(name, f"{_PNG_CHUNKS:,} chunks")
        is_sound = zlib.crc32(view[start + 4 : place - 4]).to_bytes(4) == data[place - 4 : place]
        if kind == b"IDAT" and not is_sound and place <= len(data):
            raise errors.ImageTruncatedError(
                f"{name} is damaged (checksum of its pixels): copy or download it again"
            )
        is_kept = is_sound and (kind == b"tRNS" or _PNG_KEPT.get(kind) == length)
        if kind[:1].isupper() or is_kept:
            pieces.append(view[start:place])
        elif kind == b"cICP" and is_sound and length == 4:
            if data[start + 8] in PRIMARIES and data[start + 9] in TRANSFERS:
                info["cicp"] = data[start + 8], data[start + 9]
        elif kind == b"eXIf" and is_sound:
            info.setdefault("exif", data[start + 8 : place - 4])
        elif kind == b"iCCP" and is_sound and "icc_profile" not in info:
            info["icc_profile"] = _profile(data[start + 8 : place - 4])
        if kind == b"IEND":
            break
    return io.BytesIO(b"".join(pieces)), info


def _profile(body: bytes) -> bytes | None:
    """Decompress a colour profile; None if it is damaged or too large."""
    _, _, packed = body.partition(b"\0")
    try:
        unpacking = zlib.decompressobj()
        profile = unpacking.decompress(packed[1:], _PNG_PROFILE)
        return profile if unpacking.eof else None
    except zlib.error:
        return None


# --- TIFF -----------------------------------------------------------------------------------------


class _ReadOnce:
    """A file that limits the bytes read to its size, because entries of a TIFF may share bytes."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.seek, self.tell, self._read, self._name = file.seek, file.tell, file.read, name
        self._left = self._size = file.seek(0, io.SEEK_END)

    def read(self, count: int) -> bytes:
        self._left -= count
        if self._left < 0:
            raise errors.ImageTooLargeError(
                f"{self._name} lists more metadata than its {self._size:,} bytes: export it again"
            )
        return self._read(count)


def _check_tiff(stream: BinaryIO, name: str, max_pixels: int) -> None:
    """Check the first directory of a TIFF, classic or BigTIFF; `max_pixels` limits a tile."""
    head = stream.read(16)
    if head[:4] == b"MM\0+":  # Pillow would read the offsets as in a classic TIFF
        raise _unsupported(name, "big-endian BigTIFF")
    tags = ImageFileDirectory_v2(head if 43 in head[2:4] else head[:8])
    file: Any = _ReadOnce(stream, name)
    file.seek(tags.next)
    tags.load(file)
    has_parts = ExifTags.Base.SubIFDs in tags
    compression = tags.get(ExifTags.Base.Compression, 1)
    is_reduced = (
        tags.get(ExifTags.Base.NewSubfileType, 0) & 1 or tags.get(ExifTags.Base.SubfileType) == 2
    )
    if (
        head[8:10] == b"CR"  # CR2
        or tags.get(ExifTags.Base.PhotometricInterpretation) in _TIFF_RAW
        or (has_parts and compression == _TIFF_OLD_JPEG)  # ARW
        or (is_reduced and (has_parts or tags.next))
    ):
        raise errors.ImageFormatError(
            f"{name} is a raw photo, or begins with a thumbnail: convert it to JPEG or PNG"
        )
    if compression not in COMPRESSION_INFO:
        raise _unsupported(name, f"TIFF with compression {compression} inside")
    across, down = tags.get(ExifTags.Base.TileWidth, 1), tags.get(ExifTags.Base.TileLength, 1)
    if across * down > max(max_pixels, _TIFF_TILE):
        raise errors.ImageTooLargeError(
            f"{name} has tiles of {across} x {down} pixels, more than the limit of "
            f"{max_pixels:,}: export it again"
        )
    stream.seek(0)
