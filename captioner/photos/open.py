"""Opening images: `open_image` is the only place where a photo is decoded.

It opens JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF and TIFF, with any EXIF orientation, transparency,
colour profile or bit depth. It returns the 8-bit sRGB picture that a viewer shows, or raises an
error that names the problem and the remedy.
"""

from __future__ import annotations

import errno
import io
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from PIL import Image, ImageFile
from PIL.JpegImagePlugin import JpegImageFile

from captioner import errors
from captioner.photos.colour import to_srgb
from captioner.photos.formats import TiffReader, check_size, read_header, with_end
from captioner.photos.orientation import orientation, turned
from captioner.shared.paths import is_web_address

FileSource = str | os.PathLike[str] | bytes
"""A path, or the bytes of a file."""

MAX_PIXELS = 100_000_000

LARGEST_FILE = 1 << 30
"""The largest file that is read, in bytes."""


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


def _stream(source: FileSource, name: str) -> BinaryIO:
    """Open a seekable file of at most one gigabyte; the caller closes it."""
    stream = io.BytesIO(source) if isinstance(source, bytes) else _file(source, name)
    try:
        if stream.seek(0, io.SEEK_END) > LARGEST_FILE:
            raise errors.ImageTooLargeError(
                f"{name} has more than {LARGEST_FILE:,} bytes: export it again, smaller"
            )
        stream.seek(0)
    except (OSError, errors.ImageError) as error:
        stream.close()
        if isinstance(error, errors.ImageError):
            raise
        raise errors.ImageNotFoundError(f"{name} cannot be read ({error}): try again") from error
    return stream


def _file(source: str | os.PathLike[str], name: str) -> BinaryIO:
    if isinstance(source, str) and is_web_address(source):
        raise errors.ImageNotFoundError(f"{name} is a link, not followed: download it first")
    try:
        file = open(source, "rb")  # noqa: PTH123, SIM115 - Path("") would be a folder
        if file.seekable():
            return file
        with file:
            return io.BytesIO(file.read(LARGEST_FILE + 1))
    except (OSError, ValueError) as error:  # ValueError: a path with NUL
        reason = getattr(error, "strerror", None) or error
        raise errors.ImageNotFoundError(
            f"{name} cannot be read ({reason}): check the path"
        ) from error


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
    picture = turned(to_srgb(image, name), upright)
    if picture is image:
        picture = image.copy()
    picture.info = {}  # its orientation must not be applied again
    return picture
