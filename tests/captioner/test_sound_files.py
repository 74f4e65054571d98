"""Files with all their pixels that readers refuse or show wrongly, and files that stand in for one.

The expected pixels are those that the files were written from.
"""

from __future__ import annotations

import plistlib
import random
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, PngImagePlugin

from captioner.errors import ImageFormatError, ImageTruncatedError
from captioner.images import as_source
from captioner.photos.open import open_image
from tests.captioner.pictures import draw, encode, exif, png, tiff, turned


def pixels(source: object) -> np.ndarray:
    return np.asarray(open_image(source), int)  # type: ignore[arg-type]


def grey() -> np.ndarray:
    return np.asarray(draw().convert("L"), int)


def textured(mode: str = "RGB") -> Image.Image:
    """A picture in which every block differs, drawn from a seed."""
    noise = np.random.default_rng(0).integers(0, 256, (19, 25, 3), np.uint8)
    return Image.fromarray(noise).resize((203, 150), Image.Resampling.BICUBIC).convert(mode)


JPEGS = {
    "baseline": encode(textured(), "JPEG"),
    "progressive": encode(textured(), "JPEG", progressive=True),
    "grey": encode(textured("L"), "JPEG"),
    "inks": encode(textured("CMYK"), "JPEG"),
    "restarts": encode(textured(), "JPEG", restart_marker_rows=1),
    "coarse": encode(textured(), "JPEG", quality=5),
}


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_without_its_end_marker_has_all_its_pixels(kind: str) -> None:
    data = JPEGS[kind]
    for cut in (data[:-2], data[:-1], data[:-2] + bytes(500)):
        assert (pixels(cut) == pixels(data)).all()
    assert open_image(data[:-2], at_least=20).size == open_image(data, at_least=20).size
    assert (pixels(turned("JPEG", 6)[:-2]) == pixels(turned("JPEG", 6))).all()


@pytest.mark.parametrize("kind", JPEGS)
def test_a_jpeg_that_lacks_pixels_is_truncated(kind: str) -> None:
    data, chance = JPEGS[kind], random.Random(kind)
    cuts = [5, 20, *(chance.randrange(20, len(data) // 2) for _ in range(20))]
    for cut in cuts:
        with pytest.raises(ImageTruncatedError):
            open_image(data[:-cut])


def twelve_bits(frame: int) -> bytes:
    """A JPEG of 12 bits: baseline (0xC0), extended sequential (0xC1) or progressive (0xC2)."""
    data = bytearray(JPEGS["baseline"])
    place = data.index(b"\xff\xc0")
    data[place + 1], data[place + 4] = frame, 12
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        *((twelve_bits(frame), "12-bit") for frame in (0xC0, 0xC1, 0xC2)),
        (tiff(np.asarray(draw()), order=">", big=True), "big-endian BigTIFF"),
        *((tiff(np.asarray(draw()), order="<", compression=number), str(number))
          for number in (34712, 34887, 50002)),
    ],
)  # fmt: skip
def test_files_that_are_not_read_are_named_with_the_remedy(data: bytes, value: str) -> None:
    with pytest.raises(ImageFormatError, match=f"{value}.*not supported: convert it to JPEG or"):
        open_image(data)


def commented(mode: str) -> bytes:
    """Three megabytes of text, packed and not, two of XMP and three of profile."""
    info = PngImagePlugin.PngInfo()
    info.add_text("plain", "b" * 3_000_000)
    info.add_text("packed", "c" * 3_000_000, zip=True)
    info.add_itxt("XML:com.adobe.xmp", "x" * 2_000_000, zip=True)
    return encode(
        draw().convert(mode), "PNG", pnginfo=info, icc_profile=bytes(3_000_000), dpi=(72, 72)
    )


@pytest.mark.parametrize("mode", ["RGB", "P", "LA"])
def test_a_png_is_judged_by_the_checksums_of_its_pixels(mode: str) -> None:
    data, plain = commented(mode), pixels(encode(draw().convert(mode), "PNG"))
    assert (pixels(data) == plain).all()
    assert (pixels(data[:-12]) == plain).all()  # without its IEND
    for kind in (b"tEXt", b"zTXt", b"iTXt", b"pHYs", b"iCCP", b"IHDR", b"IDAT"):
        place = data.index(kind)
        damaged = bytearray(data)
        damaged[place + 4 + int.from_bytes(data[place - 4 : place])] ^= 1
        if kind[:1].islower():
            assert (pixels(bytes(damaged)) == plain).all(), kind
        else:
            with pytest.raises(ImageTruncatedError):
                open_image(bytes(damaged))


def test_the_first_exif_of_a_jpeg_is_used() -> None:
    first, other = (encode(draw(), "JPEG", exif=exif(turn)) for turn in (6, 1))
    start = other.index(b"\xff\xe1")
    end = start + 2 + int.from_bytes(other[start + 2 : start + 4], "big")
    data = first[:end] + other[start:end] + first[end:]
    assert open_image(data).size == draw().size[::-1]


def test_exif_after_the_pixels_of_a_png_is_used() -> None:
    data = encode(draw(), "PNG", exif=exif(6))
    start = data.index(b"eXIf") - 4
    end = start + 12 + int.from_bytes(data[start : start + 4])
    behind = data[:start] + data[end:-12] + data[start:end] + data[-12:]
    assert open_image(behind).size == (48, 64)
    damaged = bytearray(data)
    damaged[end - 1] ^= 1  # its checksum
    assert open_image(bytes(damaged)).size == (64, 48)


@pytest.mark.parametrize("bits", [12, 16])
def test_16_bits_run_to_65535_however_dark_the_photo_is(bits: int) -> None:
    """As in viewers."""
    deep = np.round(grey() * (((1 << bits) - 1) / 255)).astype(np.uint16)
    image = Image.fromarray(deep)
    sources = [image, encode(image, "PNG"), encode(image, "TIFF")]
    if bits == 16:
        sources.append(wide := Image.frombytes("I;16B", image.size, deep.astype(">u2").tobytes()))
        sources += [encode(wide, "TIFF"), image.convert("I")]
    sources += [as_source(deep.astype(order)) for order in ("<u2", ">u2")]
    for source in sources:
        assert abs(pixels(source)[..., 0] - deep / 257.0).max() <= 1
    colours = np.round(np.asarray(draw()) * (((1 << bits) - 1) / 255)).astype(np.uint16)
    rows = b"".join(b"\0" + row.astype(">u2").tobytes() for row in colours)
    for source in (
        png(64, 48, rows, depth=16),
        tiff(colours, order="<"),
        tiff(colours, order=">"),
        tiff(colours, order="<", big=True),
    ):
        assert abs(pixels(source) - colours / 257.0).max() <= 1


def test_a_tiff_of_12_bits() -> None:
    """Two pixels in three bytes (TIFF 6.0, section 4); white is 4095 however dark the photo is."""
    for deep in (np.round(grey() * 4095 / 255).astype(int), grey()):
        left, right = deep.reshape(-1, 2).T
        packed = np.stack([left >> 4, (left & 15) << 4 | right >> 8, right & 255], axis=1)
        body = packed.astype(np.uint8).tobytes()
        data = tiff(deep, order="<", packed=body, bits=12)
        assert abs(pixels(data)[..., 0] - np.round(deep * 255.0 / 4095)).max() <= 1
        with pytest.raises(ImageFormatError, match="not supported: convert it"):
            open_image(tiff(deep, order=">", packed=body, bits=12))


@pytest.mark.parametrize(("order", "big"), [("<", False), (">", False), ("<", True)])
def test_every_kind_of_tiff_header(order: str, big: bool) -> None:
    for array in (np.asarray(draw()), np.asarray(draw().convert("L"))):
        for strips in (1, 3):
            found = pixels(tiff(array, order=order, big=big, strips=strips))
            assert (found == (array if array.ndim == 3 else array[..., None])).all()


@pytest.mark.parametrize("order", ["<", ">"])
def test_a_thumbnail_is_not_taken_for_the_photo(order: str, tmp_path: Path) -> None:
    """DNG, 1.4: the raw photo is below a thumbnail. NewSubfileType 1 is a reduced copy."""
    array, thumbnail = np.asarray(draw()), (254, 4, [1])
    lone = tiff(array, order=order, more=(thumbnail,))
    assert (pixels(lone) == array).all()  # nothing else is in the file
    before_another = lone[:-4] + struct.pack(order + "I", 8)
    above_another = tiff(array, order=order, more=(thumbnail, (330, 4, [8])))
    grey = tiff(grey_array := array[..., 0], order=order)
    plain, raw = (struct.pack(order + "HHIH", 262, 3, 1, value) for value in (1, 32803))
    old = tiff(array, order=order, more=((255, 3, [2]), (330, 4, [8])))  # SubfileType of TIFF 5
    canon = lone[:8] + b"CR" + lone[10:]  # CR2
    sony = tiff(array, order=order, compression=6, more=((330, 4, [8]),))  # ARW
    raws = (before_another, above_another, old, canon, sony, grey.replace(plain, raw))
    for number, data in enumerate(raws):
        (path := tmp_path / f"{number}.tif").write_bytes(data)
        for source in (data, path):
            with pytest.raises(ImageFormatError, match=r"raw photo.*: convert it"):
                open_image(source)
    pages = tiff(array, order=order)[:-4] + struct.pack(order + "I", 8)
    assert (pixels(pages) == array).all() and (pixels(grey)[..., 0] == grey_array).all()


def bmp(opacity: int, *, header: int, masks: bool) -> bytes:
    """A BMP of 32 bits with the header of some version of Windows."""
    array = np.asarray(draw())
    fourth = np.full((*array.shape[:2], 1), opacity, np.uint8)
    body = np.concatenate([array[..., ::-1], fourth], axis=2)[::-1].tobytes()
    fields = (header, 64, 48, 1, 32, 3 if masks else 0, len(body), 2835, 2835, 0, 0)
    head = struct.pack("<IiiHHIIiiII", *fields)
    if masks:
        head += struct.pack("<4I", 0xFF0000, 0xFF00, 0xFF, 0xFF000000)
    head = head.ljust(header, b"\0")
    return b"BM" + struct.pack("<IHHI", 14 + header + len(body), 0, 0, 14 + header) + head + body


@pytest.mark.parametrize(("header", "masks"), [(40, False), (56, True), (108, True), (124, True)])
def test_a_bmp_whose_fourth_byte_is_empty_is_opaque(header: int, masks: bool) -> None:
    assert (pixels(bmp(0, header=header, masks=masks)) == np.asarray(draw())).all()
    assert (pixels(bmp(255, header=header, masks=masks)) == np.asarray(draw())).all()
    if masks:  # an opacity that is used counts
        half = (np.asarray(draw()) * 128.0 + 255 * 127) / 255
        assert abs(pixels(bmp(128, header=header, masks=masks)) - half).max() <= 1


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "run git lfs pull"),
        (b"<!DOCTYPE html><html><body>not here</body></html>", "is an HTML page"),
        (b"\xef\xbb\xbf\n<!-- login -->\n<HTML lang='en'><head>", "is an HTML page"),
        (plistlib.dumps({"NSURLNameKey": "photo.jpg"}), "is an iCloud placeholder"),
        (
            plistlib.dumps({"NSURLFileSizeKey": 9, "NSURLNameKey": "p"}, fmt=plistlib.FMT_BINARY),
            "is an iCloud placeholder",
        ),
        *((data, "is not a JPEG, PNG, .*convert") for data in (
            b"Dear diary, this is not a photo.", b"%!PS-Adobe-3.0 EPSF-3.0\n", b"\0", bytes(100),
        )),
    ],
)  # fmt: skip
def test_files_that_are_no_photos_are_named(data: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "photo.jpg"
    path.write_bytes(data)
    with pytest.raises(ImageFormatError, match=rf"photo\.jpg .*{sentence}"):
        open_image(path)
