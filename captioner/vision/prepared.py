"""An image as the model takes it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captioner.vision.transform import Box

__all__ = ["PreparedImage"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedImage:
    """An image on its way to the encoder: small, and ready to travel between processes.

    image: what records call it; None where it has no name.
    pixels: uint8 (3, size, size), the square that the encoder sees.
    box: the part of the photo that the square covers.
    size: width and height of the whole photo, as viewed.
    """

    image: str | None
    pixels: NDArray[np.uint8]
    box: Box
    size: tuple[int, int]
