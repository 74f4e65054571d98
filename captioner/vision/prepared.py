"""An image prepared for the encoder."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from captioner.vision.transform import Box


@dataclass(frozen=True, kw_only=True, eq=False)
class PreparedImage:
    """An image prepared for the encoder, small enough to be sent between processes.

    image: the path or address of the image, for records; None if it has none.
    pixels: uint8 (3, size, size), the encoder's input.
    box: the part of the photo that the square covers.
    size: width and height of the photo as viewed.
    """

    image: str | None
    pixels: NDArray[np.uint8]
    box: Box
    size: tuple[int, int]
