"""Colours that AVIF and PNG files describe by numbers."""

from __future__ import annotations

import io
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from captioner.photos.open import open_image
from tests.captioner.pictures import encode, png, profile
from tests.captioner.test_colour import P3

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


@pytest.mark.parametrize(("numbers", "stored", "shown"), NUMBERS.args[1] + UNKNOWN)
def test_numbers_of_an_avif(
    numbers: tuple[int, int], stored: tuple[int, ...], shown: tuple[int, ...]
) -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), stored).save(file, "AVIF", quality=100, subsampling="4:4:4")
    head, mark, rest = file.getvalue().partition(b"colrnclx")
    assert mark
    data = head + mark + b"".join(n.to_bytes(2) for n in numbers) + rest[4:]
    np.testing.assert_allclose(np.array(open_image(data))[8, 8], shown, atol=4)


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


PQ, SRGB = (9, 16), (1, 13)


@pytest.mark.parametrize(("own", "others", "shown"), [(SRGB, PQ, 148), (PQ, SRGB, 255)])
def test_the_colours_of_the_primary_item(
    own: tuple[int, int], others: tuple[int, int], shown: int
) -> None:
    """A property of another item, such as a gain map, comes first in the file."""
    file = io.BytesIO()
    Image.new("RGB", (16, 16), (148, 148, 148)).save(file, "AVIF", quality=100)
    head, mark, rest = file.getvalue().partition(b"colrnclx")
    data = bytearray(head + mark + b"".join(number.to_bytes(2) for number in own) + rest[4:])
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
