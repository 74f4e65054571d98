"""The shared tiny model sees: other pixels give other captions.

About 150 tests compare its captions, records and exports. They notice wrong pixels only if it does.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from PIL import Image, ImageOps

from captioner import Captioner
from tests.conftest import ROOT

SAMPLES = sorted((ROOT / "assets" / "samples").glob("*.jpg"))


def swap_red_and_blue(photo: Image.Image) -> Image.Image:
    return Image.merge("RGB", photo.split()[::-1])


def brighten(photo: Image.Image) -> Image.Image:
    return photo.point(lambda value: min(255, value + 40))


@pytest.fixture(scope="module")
def coffee() -> Image.Image:
    with Image.open(ROOT / "assets" / "samples" / "coffee.jpg") as photo:
        return photo.convert("RGB")


def test_samples_get_different_captions(captioner: Captioner) -> None:
    captions = captioner.caption(SAMPLES)
    assert len({caption.text for caption in captions}) >= 3
    assert len({round(caption.score, 1) for caption in captions}) == len(SAMPLES)


@pytest.mark.parametrize(
    "change",
    [swap_red_and_blue, brighten, ImageOps.mirror, ImageOps.flip, ImageOps.invert],
    ids=lambda change: change.__name__,
)
def test_wrong_pixels_change_the_score(
    captioner: Captioner, coffee: Image.Image, change: Callable[[Image.Image], Image.Image]
) -> None:
    right, wrong = captioner.caption([coffee, change(coffee)])
    assert abs(right.score - wrong.score) > 0.01 or right.text != wrong.text
