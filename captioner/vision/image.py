"""The one way to open an image.

Whatever a photo is (JPEG, PNG, WebP, AVIF, HEIC, BMP, GIF or TIFF; turned by EXIF, transparent,
CMYK, 16 bits deep), `open_image` gives the 8-bit RGB picture that a viewer would see, or one error
that says what is wrong and what to do about it.
"""

from __future__ import annotations

import errno
import io
import math
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO, cast

from PIL import ExifTags, Image, ImageCms

from captioner import errors
from captioner.paths import is_web_address
from captioner.vision.header import check_size, read_header
from captioner.vision.metadata import shorten_exif

__all__ = ["LARGEST_FILE", "MAX_PIXELS", "FileSource", "image_bytes", "open_image", "source_name"]

FileSource = str | os.PathLike[str] | bytes
"""A path, or what is in a file."""

MAX_PIXELS = 100_000_000

LARGEST_FILE = 1 << 30
"""Bytes; more is a disk image, a film, or has no end, and would take all memory."""

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
    """Open an image as the 8-bit RGB picture that a viewer would see.

    The EXIF turn is applied, transparency is laid over white, and every colour mode and bit depth
    becomes RGB. Of several frames or pages it is the first. The picture is fully loaded, holds no
    file open and carries no metadata.

    Args:
        source: a path (a str is always one; links are never followed), the bytes of a file, or a
            PIL image, left unchanged.
        name: what errors call it; None: its path, or "the image".
        at_least: pixels; a JPEG may be decoded at a half, a quarter or an eighth of its size as
            long as both sides keep this many. None: full size.
        max_pixels: width times height of the largest image to decode; the header tells.
        admit: called with width times height before the pixels of a file are decoded; it may wait
            until there is memory for them.

    Raises ImageError of the kind that captioner.errors says.
    """
    name = name or source_name(source)
    if isinstance(source, Image.Image):
        with _as_image_error(name):
            check_size(source.size, name, max_pixels)
            source.load()
            return _picture(source, name)
    with _stream(source, name) as stream, _as_image_error(name):
        image = read_header(stream, name, max_pixels)
        if admit is not None:
            admit(image.width * image.height)
        if at_least is not None:
            image.draft(None, (at_least, at_least))
        image.load()  # before the turn is asked for: a PNG may have its EXIF behind its pixels
        shorten_exif(image)
        return _picture(image, name)


def image_bytes(source: FileSource) -> bytes:
    """Read a file whole, without a look at what is in it; one gigabyte at most, or ImageError."""
    if isinstance(source, bytes):
        return bytes(source)  # and no class of its own, which another process may not know
    name = source_name(source)
    with _stream(source, name) as stream, _as_image_error(name):
        data = stream.read(LARGEST_FILE + 1)
    if len(data) > LARGEST_FILE:
        raise errors.ImageTooLargeError(
            f"{name} has more than {LARGEST_FILE:,} bytes: is it a photo? Export it again, smaller"
        )
    return data


def source_name(source: FileSource | Image.Image) -> str:
    """Say what the errors call the image."""
    if isinstance(source, str | os.PathLike):
        return os.fsdecode(source) or "''"
    label = getattr(source, "filename", getattr(source, "name", None))
    return label if isinstance(label, str) and label else "the image"


def _stream(source: FileSource, name: str) -> BinaryIO:
    """Open a file that can be sought in; the caller closes it."""
    if isinstance(source, bytes):
        return io.BytesIO(source)
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
    """Turn what the decoders raise into an ImageError.

    Damaged data takes Pillow's readers along paths that nobody planned, and they end in almost any
    exception (SyntaxError, struct.error, zlib.error, EOFError, OverflowError, AssertionError, ...),
    so the list is "all but those that are not about the image".
    """
    try:
        yield
    except (errors.ImageError, MemoryError):
        raise
    except Exception as error:
        raise _diagnosis(error, name) from error


def _diagnosis(error: Exception, name: str) -> errors.ImageError:
    reason = str(error)
    # Pillow's own OSErrors have no number; EINVAL and EOVERFLOW are a seek to a damaged offset.
    number = error.errno if isinstance(error, OSError) else None
    if number not in (None, errno.EINVAL, errno.EOVERFLOW):
        return errors.ImageNotFoundError(f"{name} cannot be read ({reason}): try again")
    if isinstance(error, Image.DecompressionBombError):
        return errors.ImageTooLargeError(f"{name} has too many pixels ({reason}): make it smaller")
    if "not identified by this driver" in reason:
        return errors.ImageEmptyError(f"{name} has no pixels: save or export it again")
    if re.search("unknown|unsupported|not supported", reason, re.IGNORECASE):
        return errors.ImageFormatError(
            f"{name} has pixels of a kind that is not read ({reason}): convert it to JPEG or PNG"
        )
    return errors.ImageTruncatedError(f"{name} is cut off or damaged: copy or download it again")


def _picture(image: Image.Image, name: str) -> Image.Image:
    """Convert and turn what is loaded; the result shares nothing with `image`."""
    turn = _turn(image)
    picture = _to_rgb(image, name)
    if turn is not None:
        picture = picture.transpose(turn)
    elif picture is image:
        picture = image.copy()
    picture.info = {}  # or the picture, opened or saved again, would be turned twice
    return picture


def _turn(image: Image.Image) -> Image.Transpose | None:
    with suppress(Exception):  # damaged metadata, sound pixels: show them as they are
        return _TURNS.get(image.getexif().get(ExifTags.Base.Orientation, 1))
    return None


def _to_rgb(image: Image.Image, name: str) -> Image.Image:
    if image.mode == "CMYK":
        return _cmyk_to_rgb(image)
    if image.mode == "F" or image.mode.startswith("I"):
        return _deep_to_rgb(image, name)
    if image.has_transparency_data:
        return _over_white(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def _cmyk_to_rgb(image: Image.Image) -> Image.Image:
    """Go by the embedded profile where it is sound: inks differ a lot between presses."""
    with suppress(ImageCms.PyCMSError, ImportError, KeyError, OSError, TypeError, ValueError):
        inks, screen = io.BytesIO(image.info["icc_profile"]), ImageCms.createProfile("sRGB")
        if converted := ImageCms.profileToProfile(image, inks, screen, outputMode="RGB"):
            return converted
    return image.convert("RGB")


def _deep_to_rgb(image: Image.Image, name: str) -> Image.Image:
    """Grey of 16 or 32 bits; Pillow's own conversion would clip all above 255 to white."""
    deep = image if image.mode == "F" else image.convert("I")
    low, high = cast(tuple[float, float], deep.getextrema())
    if not (math.isfinite(low) and math.isfinite(high)):
        raise errors.ImageFormatError(f"{name} has NaN or infinite pixels: convert it to 8 bits")
    if deep.mode == "F" or low < 0 or high > 65535:
        scale = 255 / (high - low) if high > low else 0.0
        offset = 0.5 - low * scale
        return deep.convert("F").point(lambda value: value * scale + offset).convert("RGB")
    if image.mode == "I" and high <= 255:
        return image.convert("RGB")  # 8-bit values in a wide array, as numpy users have them
    grey = deep.point([(value + 128) // 257 for value in range(65536)], "L")
    if isinstance(hidden := image.info.get("transparency"), int):
        shown = deep.point([255 * (value != hidden) for value in range(65536)], "L")
        grey = Image.composite(grey, Image.new("L", grey.size, 255), shown)
    return grey.convert("RGB")


def _over_white(image: Image.Image) -> Image.Image:
    transparent = image.info.get("transparency")
    if image.mode == "P":
        image = image.copy()  # Pillow writes the transparency into the palette it converts from
    elif image.mode == "RGB" and isinstance(transparent, tuple) and max(transparent) > 255:
        # A 16-bit PNG: Pillow has brought the pixels down to 8 bits, but not this colour.
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in transparent)
    elif image.mode == "La":
        image = image.convert("LA")
    layered = image.convert("RGBA")
    picture = Image.new("RGB", layered.size, "white")
    picture.paste(layered, mask=layered.getchannel("A"))
    return picture
