"""Colours of profiles, and of files that describe them by numbers."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioner.photos import colour
from captioner.photos.open import open_image
from tests.captioner.pictures import draw, encode, png, profile, turned

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
    sources["turned"] = turned("JPEG", 6, red, icc_profile=swapped, quality=100)
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


NUMBERS = pytest.mark.parametrize(
    ("numbers", "stored", "shown"),
    [
        ((9, 16), (148, 148, 148), (255, 255, 255)),  # BT.2408: 203 nits are 58 % of PQ
        ((9, 18), (191, 191, 191), (255, 255, 255)),  # and 75 % of HLG
        ((12, 13), (234, 51, 35), (255, 0, 0)),  # sRGB's red in Display P3
        ((1, 13), (234, 51, 35), (234, 51, 35)),
    ],
)


UNKNOWN = [((2, 16), (148,) * 3, (255,) * 3), ((11, 18), (191,) * 3, (255,) * 3)]


def avif(stored: tuple[int, ...], numbers: tuple[int, int]) -> bytes:
    """An AVIF of one colour, described by these primaries and this transfer function."""
    image = Image.new("RGB", (16, 16), stored)
    head, mark, rest = encode(image, "AVIF", quality=100, subsampling="4:4:4").partition(
        b"colrnclx"
    )
    assert mark
    return head + mark + b"".join(number.to_bytes(2) for number in numbers) + rest[4:]


@pytest.mark.parametrize(("numbers", "stored", "shown"), NUMBERS.args[1] + UNKNOWN)
def test_numbers_of_an_avif(
    numbers: tuple[int, int], stored: tuple[int, ...], shown: tuple[int, ...]
) -> None:
    np.testing.assert_allclose(np.array(open_image(avif(stored, numbers)))[8, 8], shown, atol=4)


@NUMBERS
def test_numbers_of_a_png(
    numbers: tuple[int, int], stored: tuple[int, ...], shown: tuple[int, ...]
) -> None:
    """They win over a profile and gAMA (PNG, third edition, section 4.3)."""
    chunks = [b"gAMA" + (100_000).to_bytes(4), iccp(profile(*P3, gamma=4.0)), b"sRGB\0"]
    chunks.append(b"cICP" + bytes((*numbers, 0, 1)))
    for wide in (1, 2):  # bytes of a sample
        rows = b"\0" + b"".join(level.to_bytes(1) * wide for level in stored)
        for colours in (chunks, chunks[::-1]):
            picture = open_image(png(1, 1, rows, *colours, depth=8 * wide))
            np.testing.assert_allclose(np.array(picture)[0, 0], shown, atol=4)
    if len(set(stored)) == 1:
        grey = open_image(png(1, 1, b"\0" + bytes(stored[:1]), chunks[3], colour=0))
        np.testing.assert_allclose(np.array(grey)[0, 0], shown, atol=4)


@pytest.mark.parametrize(
    ("own", "others", "shown"), [((1, 13), (9, 16), 148), ((9, 16), (1, 13), 255)]
)
def test_the_colours_of_the_primary_item(
    own: tuple[int, int], others: tuple[int, int], shown: int
) -> None:
    """A property of another item, such as a gain map, comes first in the file."""
    data = bytearray(avif((148, 148, 148), own))
    other = b"colrnclx" + b"".join(number.to_bytes(2) for number in (*others, 6)) + b"\x80"
    box = (4 + len(other)).to_bytes(4) + other
    place = data.index(b"ipco") + 4
    for kind in (b"meta", b"iprp", b"ipco"):
        _add(data, data.index(kind) - 4, len(box))
    _add(data, data.index(b"iloc") + 18, len(box))  # the offset of the only item
    association = data.index(b"ipma") + 15
    for index in range(association, association + data[association - 1]):
        data[index] += 1  # the new property is the first
    data[place:place] = box
    np.testing.assert_allclose(np.array(open_image(bytes(data)))[8, 8], shown, atol=4)


def _add(data: bytearray, place: int, more: int) -> None:
    """Add to a number of 4 bytes."""
    data[place : place + 4] = (int.from_bytes(data[place : place + 4]) + more).to_bytes(4)


def iccp(profile: bytes) -> bytes:
    return b"iCCPp\0\0" + zlib.compress(profile)


@pytest.mark.parametrize(
    ("gamma", "stored", "shown"),
    [
        (100_000, 55, 128),  # 21.6 % of the light is level 128 in sRGB
        (55_556, 128, 146),  # (128 / 255) ** 1.8 is 28.9 %, which is level 146
        (45_455, 128, 128),
        (45_000, 128, 128),  # too close to sRGB to be meant otherwise
        (0, 128, 128),
        (1, 128, 128),  # no exponent of a picture
        (2**31 - 1, 128, 128),
    ],
)
def test_the_exponent_of_a_png(gamma: int, stored: int, shown: int) -> None:
    chunk = b"gAMA" + gamma.to_bytes(4)
    grey, colour = b"\0" + bytes([stored]), b"\0" + bytes([stored] * 3)
    plain = png(1, 1, colour, chunk)
    for data in (plain, png(1, 1, grey, chunk, colour=0), Image.open(io.BytesIO(plain))):
        np.testing.assert_allclose(np.array(open_image(data)), shown, atol=1)
    malformed = png(1, 1, colour, b"gAMA\0", b"sRGB", chunk)
    np.testing.assert_allclose(np.array(open_image(malformed)), shown, atol=1)
    unspecified = png(1, 1, colour, chunk, b"cICP" + bytes((2, 2, 0, 1)))
    np.testing.assert_allclose(np.array(open_image(unspecified)), shown, atol=1)
    srgb = encode(Image.new("RGB", (1, 1)), "PNG", icc_profile=ImageCms.ImageCmsProfile(
        ImageCms.createProfile("sRGB")).tobytes())  # fmt: skip
    start = srgb.index(b"iCCP")
    embedded = srgb[start : start + 4 + int.from_bytes(srgb[start - 4 : start])]
    for other in (b"sRGB\0", embedded):
        for chunks in ((chunk, other), (other, chunk)):
            np.testing.assert_array_equal(open_image(png(1, 1, colour, *chunks)), stored)


@pytest.mark.parametrize("second", [iccp(profile(*P3, gamma=4.0)), b"iCCPp\0\0damaged"])
def test_the_first_profile_of_a_png_counts(second: bytes) -> None:
    data = [
        png(1, 1, b"\0\x80\x40\x20", iccp(profile(*P3, gamma=1.0)), *more)
        for more in ((), (second,))
    ]
    np.testing.assert_array_equal(*map(open_image, data))
