"""Conversion of any image to 8-bit sRGB: profiles, CMYK, deep grey, transparency."""

from __future__ import annotations

import io
from contextlib import suppress
from functools import lru_cache
from typing import cast

from PIL import Image, ImageCms

from captioner import errors
from captioner.photos.cicp import from_cicp, from_gamma

_SPACES = {"RGB": "RGB ", "L": "GRAY", "CMYK": "CMYK"}  # the profile's colour space, by mode
_GAMMA = 0.45455  # of sRGB, in PNG's chunk gAMA; up to 5 % from it are ignored, as by libpng
_STEP = 51  # between the levels that are compared to find sRGB profiles


def to_srgb(image: Image.Image, name: str) -> Image.Image:
    """Convert an image of any mode to sRGB, with transparency laid over white.

    An embedded ICC profile is applied with perceptual intent, as in browsers. A damaged profile, or
    one of another colour space than the pixels, is ignored. Without a profile, colours described by
    numbers are converted.

    Raises ImageFormatError: pixels are outside their range.
    """
    if image.mode == "La":
        image = image.convert("LA")
    if image.mode == "F" or image.mode.startswith("I"):
        grey, hidden = _grey(image, name)
        picture = _to_rgb(grey, image)
        return picture if hidden is None else _composite(picture, hidden)
    if image.has_transparency_data and not _is_unused(image):
        return _over_white(image)
    plain = image
    if image.mode not in ("L", "RGB", "CMYK", "LAB"):
        plain = image.convert("L" if image.mode in ("1", "LA") else "RGB")
    return _to_rgb(plain, image)


def _to_rgb(plain: Image.Image, source: Image.Image) -> Image.Image:
    """Convert to RGB, by the profile or the numbers of `source` if it has any."""
    profile, numbers = source.info.get("icc_profile"), source.info.get("cicp")
    if plain.mode in ("L", "RGB") and numbers:
        return from_cicp(plain.convert("RGB"), *numbers)
    if not profile and plain.mode in ("L", "RGB"):
        gamma = source.info.get("gamma", _GAMMA)
        if "srgb" not in source.info and 0.1 <= gamma <= 10 and abs(gamma / _GAMMA - 1) > 0.05:
            return from_gamma(plain, gamma).convert("RGB")
    if profile and plain.mode in _SPACES and (transform := _transform(bytes(profile), plain.mode)):
        return ImageCms.applyTransform(plain, transform) or plain
    return plain.convert("RGB")


@lru_cache(maxsize=8)
def _transform(profile: bytes, mode: str) -> ImageCms.ImageCmsTransform | None:
    """Return the transform of a profile to sRGB; None if it is sRGB, damaged or does not fit."""
    with suppress(ImageCms.PyCMSError, ImportError, OSError, TypeError, ValueError):
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if source.profile.xcolor_space != _SPACES[mode]:
            return None
        srgb, intent = ImageCms.createProfile("sRGB"), ImageCms.Intent.PERCEPTUAL
        transform = ImageCms.buildTransform(source, srgb, mode, "RGB", intent)
        return None if mode == "RGB" and _is_identity(transform) else transform
    return None


def _is_identity(transform: ImageCms.ImageCmsTransform) -> bool:
    """Whether a transform changes no colour by more than rounding does."""
    levels = range(0, 256, _STEP)
    colours = bytes(v for r in levels for g in levels for b in levels for v in (r, g, b))
    probe = Image.frombytes("RGB", (len(colours) // 3, 1), colours)
    after = ImageCms.applyTransform(probe, transform)
    if after is None:
        return False
    return all(abs(a - b) <= 1 for a, b in zip(colours, after.tobytes(), strict=True))


def _grey(image: Image.Image, name: str) -> tuple[Image.Image, Image.Image | None]:
    """Convert a grey image of 16 or 32 bits to 8 bits.

    Returns the image, and its opacity or None if no level is transparent. Pillow's own conversion
    is not used, because it clips levels above 255.
    """
    deep = image if image.mode == "F" else image.convert("I")
    low, high = cast(tuple[float, float], deep.getextrema())
    if not (low >= 0 and high <= (255 if deep.mode == "F" else 65535)):  # or NaN
        raise errors.ImageFormatError(
            f"{name} has pixels from {low:g} to {high:g}; floats run from 0 to 1 or from 0 to 255, "
            "integers to 65535: convert it to 8 bits"
        )
    if deep.mode == "F":
        scale = 255.0 if high <= 1 else 1.0
        return deep.point(lambda value: value * scale + 0.5).convert("L"), None
    bits = getattr(image, "tag_v2", {}).get(258)  # TIFF's BitsPerSample
    white = 4095 if bits == (12,) else 65535
    if image.mode == "I" and high <= 255:  # Pillow's 32-bit mode, often made from 8 bits
        white = 255
    levels = [min(255, (value * 510 + white) // (2 * white)) for value in range(65536)]
    grey = deep.point(levels, "L")
    hidden = image.info.get("transparency")
    if not isinstance(hidden, int):
        return grey, None
    return grey, deep.point([255 * (value != hidden) for value in range(65536)], "L")


def _is_unused(image: Image.Image) -> bool:
    """Whether the opacity of a BMP is 0 everywhere, because the fourth byte is unused."""
    return (
        image.format == "BMP"
        and image.mode == "RGBA"
        and image.getchannel("A").getextrema() == (0, 0)
    )


def _over_white(image: Image.Image) -> Image.Image:
    source, transparent = image, image.info.get("transparency")
    if image.mode == "P":
        image = image.copy()  # Pillow writes the transparency into the palette it converts from
    elif image.mode == "RGB" and isinstance(transparent, tuple) and max(transparent) > 255:
        # A 16-bit PNG: Pillow converted the pixels to 8 bits, but not the transparent colour.
        image = image.copy()
        image.info["transparency"] = tuple(value >> 8 for value in transparent)
    layered = image.convert("RGBA")
    plain = layered.convert("RGB")
    if source.mode in ("L", "LA"):
        plain = layered.getchannel("R")
    return _composite(_to_rgb(plain, source), layered.getchannel("A"))


def _composite(picture: Image.Image, opacity: Image.Image) -> Image.Image:
    """Lay a picture over white."""
    white = Image.new("RGB", picture.size, "white")
    white.paste(picture, mask=opacity)
    return white
