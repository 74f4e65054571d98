"""RGB images from cameras and scanners that use only 8 to 14 of the 16 bits per channel.

Pillow keeps only the high bytes, which makes such a photo almost black. The low bytes are read by
decoding the file again in the other byte order.
"""

from __future__ import annotations

import sys
from typing import Any, cast

from PIL import ImageChops, ImageFile

from captioner.vision.colour import depth_limit

__all__ = ["load_deep"]

_NATIVE = "L" if sys.byteorder == "little" else "B"


def load_deep(image: ImageFile.ImageFile) -> None:
    """Load the pixels of an image, scaled to their white level."""
    stream, raw = image.fp, _raw_mode(image.tile)
    image.load()
    if stream is None or not (raw.startswith("RGB") and ";16" in raw):
        return
    bands = image.split()
    highest = max(cast(tuple[int, int], band.getextrema())[1] for band in bands)
    white = depth_limit(highest << 8)
    if white == 65535:
        return
    stream.seek(0)
    low = type(image)(stream)
    mode, _, order = raw.partition(";16")
    other = "L" if order.replace("N", _NATIVE) == "B" else "B"
    low.tile = [_with_raw_mode(tile, f"{mode};16{other}") for tile in low.tile]
    low.load()
    high_table = [min(255, round(256 * byte * 255 / white)) for byte in range(256)]
    low_table = [round(byte * 255 / white) for byte in range(256)]
    count = len(bands)
    image.im = ImageChops.add(image.point(high_table * count), low.point(low_table * count)).im


def _raw_mode(tiles: list[Any]) -> str:
    if not tiles:
        return ""
    arguments = tiles[0].args
    raw = arguments if isinstance(arguments, str) else (arguments or ("",))[0]
    return raw if isinstance(raw, str) else ""


def _with_raw_mode(tile: Any, raw: str) -> Any:
    if isinstance(tile.args, str):
        return tile._replace(args=raw)
    return tile._replace(args=(raw, *tile.args[1:]))
