"""An image as the model takes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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
