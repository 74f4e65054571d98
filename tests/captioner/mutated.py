"""Images in every format, and mutations of their bytes."""

from __future__ import annotations

import io
import random

from PIL import Image

KINDS = ["JPEG", "progressive", "PNG", "WEBP", "AVIF", "BMP", "GIF"]
KINDS += ["TIFF", "TIFF-LZW", "TIFF-JPEG"]
NUMBERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\x01", b"\x80\0\0\0")


def encoded(kind: str) -> bytes:
    image = Image.linear_gradient("L").resize((160, 120)).convert("RGB")
    options: dict[str, object] = {}
    name, _, compression = kind.partition("-")
    if kind == "progressive":
        name, options = "JPEG", {"progressive": True}
    elif compression:
        options = {"compression": {"LZW": "tiff_lzw", "JPEG": "jpeg"}[compression]}
    image.save(buffer := io.BytesIO(), name, **options)
    return buffer.getvalue()


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Change bytes or numbers, mostly near the beginning; repeat, cut, or drop a part."""
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 2, 4, 16))):
        most = min(len(changed), chance.choice((64, 600, len(changed)))) or 1
        at = chance.randrange(most)
        what = chance.randrange(6)
        if what == 0:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif what == 1:
            changed[at : at + 4] = chance.choice(NUMBERS)
        elif what == 2:
            changed[at : at + 2] = chance.choice(NUMBERS)[:2]
        elif what == 3:
            part = changed[at : at + chance.randrange(1, 600)]
            changed[at:at] = part * chance.randrange(1, 9)
        elif what == 4:
            del changed[at : at + chance.randrange(1, 600)]
        elif chance.random() < 0.2:
            del changed[at:]
    return bytes(changed)
