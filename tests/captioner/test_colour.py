"""Colour profiles: converted colours are compared with the numbers in the profile."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioner.photos import colour
from captioner.photos.open import open_image
from tests.captioner.pictures import draw, encode, profile

# XYZ of red, green and blue, adapted to D50, as published in the profiles of these spaces.
SRGB = ((0.43607, 0.22249, 0.01392), (0.38515, 0.71687, 0.09708), (0.14307, 0.06061, 0.71410))
P3 = ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407))
PROPHOTO = ((0.79767, 0.28804, 0.0), (0.13519, 0.71188, 0.0), (0.03134, 0.00009, 0.82491))
LOSSLESS = {"PNG": {}, "TIFF": {}, "WEBP": {"lossless": True}}


def expected(pixels: np.ndarray, primaries: tuple[tuple[float, ...], ...], gamma: float):
    """The same colours in sRGB: to XYZ by the primaries, and back by those of sRGB."""
    linear = (pixels / 255.0) ** gamma
    ours = linear @ np.array(primaries) @ np.linalg.inv(np.array(SRGB))
    ours = ours.clip(0, 1)
    curved = np.where(ours <= 0.0031308, 12.92 * ours, 1.055 * ours ** (1 / 2.4) - 0.055)
    return 255 * curved


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize(("primaries", "gamma"), [(P3, 2.2), (PROPHOTO, 1.8)])
def test_a_profile_becomes_srgb(kind: str, primaries: tuple, gamma: float) -> None:
    data = encode(draw(), kind, icc_profile=profile(*primaries, gamma=gamma), **LOSSLESS[kind])
    found = np.asarray(open_image(data), float)
    wanted = expected(np.asarray(draw()), primaries, gamma)
    assert abs(found - wanted).max() <= 2
    assert abs(np.asarray(draw()) - wanted).max() > 15  # or this shows nothing


def test_profiles_apply_to_every_kind_of_source() -> None:
    """A PIL image, a JPEG in parts, palettes, opacity, a photo that is turned."""
    swapped = profile(SRGB[2], SRGB[1], SRGB[0], gamma=2.2)
    red = Image.new("RGB", (16, 16), (250, 10, 20))
    sources = {
        mode: encode(red.convert(mode), "PNG", icc_profile=swapped) for mode in ("RGB", "P", "RGBA")
    }
    sources["JPEG"] = encode(red, "JPEG", icc_profile=swapped + bytes(100_000), quality=100)
    sources["16 bit"] = encode(red, "TIFF", icc_profile=swapped)
    exif = Image.Exif()
    exif[0x0112] = 6
    sources["turned"] = encode(red, "JPEG", icc_profile=swapped, exif=exif, quality=100)
    in_memory = red.copy()
    in_memory.info["icc_profile"] = swapped
    for name, source in [*sources.items(), ("PIL", in_memory)]:
        pixel = open_image(source).getpixel((8, 8))
        assert pixel[0] < 60 and pixel[2] > 230, (name, pixel)


def test_opacity_is_laid_over_white_after_the_conversion() -> None:
    image = Image.new("RGBA", (2, 1))
    image.putdata([(128, 128, 128, 0), (128, 128, 128, 255)])
    dark = profile(*SRGB, gamma=4.0)
    left, right = open_image(encode(image, "PNG", icc_profile=dark)).get_flattened_data()
    assert left == (255, 255, 255)
    wanted = expected(np.array([[128, 128, 128]]), SRGB, 4.0)[0]
    assert abs(np.array(right) - wanted).max() <= 2


@pytest.mark.parametrize(
    ("mode", "last"), [("L", 255), ("L", 0), ("LA", 0), ("LA", 255), ("I;16", 255)]
)
def test_profiles_of_grey_images_are_applied(mode: str, last: int) -> None:
    """Also with an unused opacity, and with one that the last pixel uses."""
    data = profile(gamma=1.0, space=b"GRAY")
    levels = 65536 if mode == "I;16" else 256
    image = Image.new(mode.removesuffix("A"), (4, 1))
    image.putdata([0, levels // 4, levels - 1, 7])
    options = {"transparency": 7} if mode == "L" and last == 0 else {}
    if mode == "LA":
        opacity = Image.new("L", image.size, 255)
        opacity.putpixel((3, 0), last)
        image.putalpha(opacity)
    found = open_image(encode(image, "PNG", icc_profile=data, **options)).getchannel("R").tobytes()
    assert found[0] == 0 and found[2] == 255
    assert 135 <= found[1] <= 139  # linear 1/4 is 0.537 in sRGB


def test_a_profile_that_fits_nothing_is_ignored() -> None:
    plain = open_image(encode(draw(), "PNG"))
    p3 = profile(*P3, gamma=2.2)
    broken = [p3[:200], b"not a profile", bytes(128), profile(gamma=1.0, space=b"GRAY")]
    for data in broken:
        for kind in ("PNG", "TIFF"):
            assert open_image(encode(draw(), kind, icc_profile=data)).tobytes() == plain.tobytes()
    grey = draw().convert("L")
    assert (
        open_image(encode(grey, "JPEG", icc_profile=p3)).tobytes()
        == open_image(encode(grey, "JPEG")).tobytes()
    )


def test_an_srgb_profile_needs_no_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    data = encode(draw(), "PNG", icc_profile=own)
    first = open_image(data)
    assert first.tobytes() == draw().tobytes()
    monkeypatch.setattr(colour.ImageCms, "applyTransform", None)
    monkeypatch.setattr(colour.ImageCms, "buildTransform", None)
    assert open_image(data).tobytes() == first.tobytes()  # remembered
