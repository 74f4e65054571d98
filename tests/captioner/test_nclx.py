"""Colours that AVIF files describe by numbers."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from captioner.vision.image import open_image


@pytest.mark.parametrize(
    ("numbers", "stored", "shown"),
    [
        ((9, 16), (148, 148, 148), (255, 255, 255)),  # BT.2408: 203 nits are 58 % of PQ
        ((9, 18), (191, 191, 191), (255, 255, 255)),  # and 75 % of HLG
        ((12, 13), (234, 51, 35), (255, 0, 0)),  # sRGB's red in Display P3
        ((1, 13), (234, 51, 35), (234, 51, 35)),
    ],
)
def test_numbers_of_colours(
    numbers: tuple[int, int], stored: tuple[int, ...], shown: tuple[int, ...]
) -> None:
    file = io.BytesIO()
    Image.new("RGB", (16, 16), stored).save(file, "AVIF", quality=100, subsampling="4:4:4")
    head, mark, rest = file.getvalue().partition(b"colrnclx")
    assert mark
    data = head + mark + b"".join(n.to_bytes(2) for n in numbers) + rest[4:]
    np.testing.assert_allclose(np.array(open_image(data))[8, 8], shown, atol=4)
