"""From decoded pixels to what the model takes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.decoding.decoded import Decoded
from captioner.errors import ImageNotFoundError
from captioner.vision.transform import Box

__all__ = ["PreparedImage", "prepared_images", "square_pixels"]


def _not_kept() -> Image.Image:
    raise ImageNotFoundError("the photo was not kept: open it again to draw on it")


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedImage:
    """An image on its way to the encoder: small, and ready to travel between processes.

    image: what records call it; None where it has no name.
    pixels: uint8 (3, size, size), the square that the encoder sees.
    box: the part of the photo that the square covers.
    open_photo: opens the whole photo, for pictures of it.
    """

    image: str | None
    pixels: NDArray[np.uint8]
    box: Box
    open_photo: Callable[[], Image.Image] = _not_kept


def prepared_images(decoded: Iterable[tuple[str, Decoded]]) -> list[PreparedImage]:
    """Make squares that were decoded without an error ready for `Captioner.caption_prepared`.

    Args:
        decoded: pairs of what the caption calls its image, and the decoded square.

    """
    return [
        PreparedImage(image=name, pixels=square_pixels(one), box=one.box) for name, one in decoded
    ]


def square_pixels(decoded: Decoded) -> NDArray[np.uint8]:
    """Give the pixels of a square as uint8 (3, size, size)."""
    # A bytearray, since torch warns about memory that it may not write to.
    pixels = np.frombuffer(bytearray(decoded.pixels), np.uint8)
    return pixels.reshape(decoded.shape[1], decoded.shape[0], 3).transpose(2, 0, 1)
