"""The shared tiny model sees: other pixels give other captions.

About 150 tests compare its captions, records and exports. They notice wrong pixels only if it does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PIL import Image, ImageOps

from captioner import Captioner
from captioner.shared.paths import sample_photos


def swap_red_and_blue(photo: Image.Image) -> Image.Image:
    return Image.merge("RGB", photo.split()[::-1])


def brighten(photo: Image.Image) -> Image.Image:
    return photo.point(lambda value: min(255, value + 40))


@pytest.mark.parametrize(
    "change",
    [swap_red_and_blue, brighten, ImageOps.mirror, ImageOps.flip, ImageOps.invert],
    ids=lambda change: change.__name__,
)
def test_wrong_pixels_change_the_score(
    captioner: Captioner, change: Callable[[Image.Image], Image.Image]
) -> None:
    coffee = Image.open(sample_photos()["coffee"]).convert("RGB")
    right, wrong = captioner.caption([coffee, change(coffee)])
    assert abs(right.score - wrong.score) > 0.01 or right.text != wrong.text
