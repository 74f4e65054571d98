"""Opening images: `open_image` is the only place where a photo is decoded.

It opens JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF and TIFF, with any EXIF orientation, transparency,
colour profile or bit depth. It returns the 8-bit sRGB picture that a viewer shows, or raises an
error that names the problem and the remedy.

The EXIF orientation is the only metadata that turns a photo. XMP may have an orientation too, which
browsers and photo viewers ignore. Pillow's `getexif` does not ignore it, and it reads all values of
an EXIF block, which may be gigabytes. So it is used only for images without XMP and EXIF.
"""

from __future__ import annotations

import errno
import io
import os
import re
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, NamedTuple

from PIL import ExifTags, Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from captioner import errors
from captioner.photos.colour import to_srgb
from captioner.photos.formats import TiffReader, check_size, read_header, with_end
from captioner.shared.paths import is_web_address

FileSource = str | os.PathLike[str] | bytes
"""A path, or the bytes of a file."""

MAX_PIXELS = 100_000_000

LARGEST_FILE = 1 << 30
"""The largest file that is read, in bytes."""

_LONGEST_EXIF = 1 << 16  # bytes of a block that are read; one JPEG segment holds as many
_TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def open_image(
    source: FileSource | Image.Image,
    *,
    name: str | None = None,
    at_least: int | None = None,
    max_pixels: int = MAX_PIXELS,
    admit: Callable[[int], None] | None = None,
) -> Image.Image:
    """Open an image as the 8-bit sRGB picture that a viewer shows.

    The EXIF orientation and the colour profile are applied, transparency is laid over white, and
    every colour mode and bit depth becomes RGB. Of several frames or pages, the first is opened.
    The picture is fully loaded, holds no file open and carries no metadata.

    Args:
        source: a path (links are not downloaded), the bytes of a file, or a PIL image, which is
            not changed.
        name: the name of the image in errors; None: its path, or "the image".
        at_least: decode a JPEG at a half, a quarter or an eighth of its size if both sides then
            still have at least this many pixels; info["size"] is its full size. None: full size.
        max_pixels: the limit of width times height, checked before decoding.
        admit: called with width times height before the pixels of a file are decoded; it may wait
            until there is memory for them.

    Raises ImageError: a subclass, see captioner.errors.
    """
    name = name or source_name(source)
    if isinstance(source, Image.Image):
        with _as_image_error(name):
            check_size(source.size, name, max_pixels)
            try:
                source.load()
            except (AssertionError, ValueError) as error:
                raise errors.ImageNotFoundError(
                    f"{name} cannot be loaded: caption it before it is closed"
                ) from error
            return _picture(source, orientation(source), name)
    with _stream(source, name) as stream, _as_image_error(name):
        image = read_header(stream, name, max_pixels)
        if admit is not None:
            admit(image.width * image.height)
        size = image.size
        loaded = _loaded(image, name, at_least)
        upright = 1 if isinstance(image, TiffReader) else orientation(loaded)  # Pillow turned it
        picture = _picture(loaded, upright, name)
        if at_least is not None:
            picture.info["size"] = size[::-1] if upright >= 5 else size
        return picture


def _loaded(image: ImageFile.ImageFile, name: str, at_least: int | None) -> ImageFile.ImageFile:
    """Decode the pixels; a JPEG may lack its end marker."""
    data = image.fp.getvalue() if isinstance(image.fp, io.BytesIO) else b""
    try:
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()
    except OSError:
        if not isinstance(image, JpegImageFile) or (whole := with_end(data)) is None:
            raise
        complete = JpegImageFile(io.BytesIO(whole))
        complete.info.update(image.info)  # its EXIF block is not in the data
        return _loaded(complete, name, at_least)
    return image


def source_name(source: FileSource | Image.Image) -> str:
    """Return the name of an image for errors."""
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source) or "''"
    label = getattr(source, "filename", getattr(source, "name", None))
    return label if isinstance(label, str) and label else "the image"


@contextmanager
def _stream(source: FileSource, name: str) -> Iterator[BinaryIO]:
    """Open a seekable file of at most LARGEST_FILE bytes."""
    if isinstance(source, str) and is_web_address(source):
        raise errors.ImageNotFoundError(f"{name} is a link, not followed: download it first")
    stream: BinaryIO
    try:
        if isinstance(source, bytes):
            stream = io.BytesIO(source)
        else:  # not with Path, because Path("") is a folder
            stream = open(source, "rb")  # noqa: PTH123, SIM115
            if not stream.seekable():
                with stream:  # a pipe: its writer need not wait until the photo is decoded
                    stream = io.BytesIO(stream.read(LARGEST_FILE + 1))
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        reason = getattr(error, "strerror", None) or error
        raise errors.ImageNotFoundError(
            f"{name} cannot be read ({reason}): check the path"
        ) from error
    with stream:
        try:
            size = stream.seek(0, io.SEEK_END)
            stream.seek(0)
        except OSError as error:
            raise errors.ImageNotFoundError(
                f"{name} cannot be read ({error}): try again"
            ) from error
        if size > LARGEST_FILE:
            raise errors.ImageTooLargeError(
                f"{name} has more than {LARGEST_FILE:,} bytes: export it again, smaller"
            )
        yield stream


@contextmanager
def _as_image_error(name: str) -> Iterator[None]:
    """Turn the decoders' exceptions into an ImageError.

    On damaged data Pillow's readers raise almost any exception (SyntaxError, struct.error,
    zlib.error, EOFError, OverflowError, AssertionError), so all but MemoryError are caught.
    """
    try:
        yield
    except (errors.ImageError, MemoryError):
        raise
    except Exception as error:
        raise _diagnosis(error, name) from error


def _diagnosis(error: Exception, name: str) -> errors.ImageError:
    reason = str(error)
    # Pillow's own OSErrors have no number. EINVAL and EOVERFLOW come from damaged offsets.
    number = error.errno if isinstance(error, OSError) else None
    if number not in (None, errno.EINVAL, errno.EOVERFLOW):
        return errors.ImageNotFoundError(f"{name} cannot be read ({reason}): try again")
    if isinstance(error, Image.DecompressionBombError):
        return errors.ImageTooLargeError(
            f"{name} is too large ({reason}): make it smaller, or export it again"
        )
    if "not identified by this driver" in reason:
        return errors.ImageEmptyError(f"{name} has no pixels: save or export it again")
    if re.search("unknown|unsupported|not supported|cannot handle", reason, re.IGNORECASE):
        return errors.ImageFormatError(
            f"{name} has pixels ({reason}) that are not supported: convert it to JPEG or PNG"
        )
    return errors.ImageTruncatedError(f"{name} is cut off or damaged: copy or download it again")


def _picture(image: Image.Image, upright: int, name: str) -> Image.Image:
    """Convert a loaded image to sRGB and turn it by its EXIF orientation; return a new image."""
    picture = to_srgb(image, name)
    if upright in _TURNS:
        picture = picture.transpose(_TURNS[upright])
    elif picture is image:
        picture = image.copy()
    picture.info = {}  # its orientation must not be applied again
    return picture


class ExifEntry(NamedTuple):
    """An entry of an EXIF directory."""

    tag: int
    kind: int  # of the values
    number: int  # of the values
    value: bytes  # four bytes: the values, or their offset in `block`
    order: str  # "<" or ">"
    block: bytes


def exif_entries(block: bytes) -> Iterator[ExifEntry]:
    """Return the entries of the first directory of an EXIF block, until it is damaged."""
    with suppress(struct.error):
        block = block[:_LONGEST_EXIF].removeprefix(b"Exif\0\0")
        order = "<" if block[:2] == b"II" else ">"
        (place,) = struct.unpack_from(order + "I", block, 4)
        (count,) = struct.unpack_from(order + "H", block, place)
        for at in range(place + 2, place + 2 + 12 * count, 12):
            tag, kind, number, value = struct.unpack_from(order + "HHI4s", block, at)
            yield ExifEntry(tag, kind, number, value, order, block)


def orientation(image: Image.Image) -> int:
    """Return the EXIF orientation, 1 to 8, of an image of Pillow's readers or made in memory."""
    block, value = image.info.get("exif", b""), 1
    if block and isinstance(block, bytes):
        for entry in exif_entries(block):
            is_turn = entry.tag == ExifTags.Base.Orientation and entry.number == 1
            if is_turn and entry.kind in (3, 4):
                (value,) = struct.unpack_from(entry.order + " HI"[entry.kind - 2], entry.value)
                break
    elif not image.info.keys() & {"xmp", "XML:com.adobe.xmp"}:
        with suppress(Exception):  # metadata may be damaged
            value = image.getexif().get(ExifTags.Base.Orientation, 1)
    return value if value in _TURNS else 1
