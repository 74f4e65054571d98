"""From decoded pixels to what the model takes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from captioner.decoding.decoded import Decoded
from captioner.errors import ImageNotFoundError
from captioner.vision.transform import Box

__all__ = ["PreparedImage"]


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

    @classmethod
    def of(
        cls,
        decoded: Decoded,
        *,
        image: str | None = None,
        open_photo: Callable[[], Image.Image] = _not_kept,
    ) -> Self:
        """Make a square that was decoded without an error ready for `caption_prepared`."""
        # A bytearray, since torch warns about memory that it may not write to.
        flat = np.frombuffer(bytearray(decoded.pixels), np.uint8)
        pixels = flat.reshape(decoded.shape[1], decoded.shape[0], 3).transpose(2, 0, 1)
        return cls(image=image, pixels=pixels, box=decoded.box, open_photo=open_photo)
