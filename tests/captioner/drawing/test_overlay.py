"""The overlay lights the right place of the photo, and heat means the same everywhere."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from PIL import Image, ImageChops

from captioner.drawing.lettering import label
from captioner.drawing.overlay import COLORS, attention_map, color_scale, overlay
from captioner.errors import ConfigError
from tests.captioner.drawing.scenes import UNIFORM, one_hot, same, scene

WHOLE = (0.0, 0.0, 1.0, 1.0)
# Photo size, grid (rows, columns), the cell that is lit, the box, the pixels that the cell covers.
# In every photo a cell of the grid is a square of 10 pixels.
PLACES = {
    "square": ((70, 70), (7, 7), (2, 5), WHOLE, (50, 20, 60, 30)),
    "wide": ((90, 30), (3, 9), (1, 7), WHOLE, (70, 10, 80, 20)),
    "tall": ((30, 90), (9, 3), (8, 0), WHOLE, (0, 80, 10, 90)),
    "wide, centre crop": ((150, 50), (5, 5), (0, 4), (1 / 3, 0, 2 / 3, 1), (90, 0, 100, 10)),
    "tall, centre crop": ((50, 150), (5, 5), (3, 1), (0, 1 / 3, 1, 2 / 3), (10, 80, 20, 90)),
    "wide, padded": ((150, 50), (15, 15), (6, 2), (0, -1, 1, 2), (20, 10, 30, 20)),
    "tall, padded": ((50, 150), (15, 15), (14, 9), (-1, 0, 2, 1), (40, 140, 50, 150)),
}


@pytest.mark.parametrize(("size", "grid", "cell", "box", "pixels"), PLACES.values(), ids=PLACES)
class TestPlace:
    def test_exactly_the_cell_is_coloured_or_kept_by_the_spotlight(
        self, size, grid, cell, box, pixels
    ):
        heat = attention_map(one_hot(*grid, *cell), size, box=box, smooth=False)
        expected = Image.new("L", size)
        expected.paste(255, pixels)
        assert same(heat, expected)
        photo = Image.new("RGB", size, (200, 120, 40))
        shown = overlay(photo, one_hot(*grid, *cell), box=box, smooth=False, colors="spotlight")
        assert same(shown.crop(pixels), photo.crop(pixels))
        shown.paste((0, 0, 0), pixels)
        assert max(high for _, high in shown.getextrema()) < 100


def test_a_fractional_crop_box_covers_the_pixels_whose_centres_it_holds():
    heat = attention_map([[1, 0, 0, 0]] * 4, (10, 10), box=(0.14, 0.0, 0.94, 1.0), smooth=False)
    # The first of four columns is 1.4 to 3.4 pixels: the centres 1.5 and 2.5.
    assert [heat.getpixel((x, 5)) > 0 for x in range(10)] == [x in (1, 2) for x in range(10)]


class TestHeat:
    def test_a_uniform_word_leaves_the_photo_as_it_is(self):
        photo = scene((90, 60))
        assert same(overlay(photo, UNIFORM), photo)
        assert attention_map(UNIFORM + torch.rand(7, 7) * 1e-4, (90, 60)).getextrema()[1] < 10

    @pytest.mark.parametrize("smooth", [True, False])
    def test_each_doubling_of_the_even_share_adds_a_third_of_heat(self, smooth):
        weights = [[1] * 8 for _ in range(8)]
        weights[3][3] = 1e-9
        for times, expected in [(2, 85), (3, 135), (4, 170), (8, 255), (30, 255)]:
            # This weight makes the cell exactly so many times the mean of all 64.
            weights[6][6] = times * 62 / (64 - times)
            heat = attention_map(weights, (8, 8), smooth=smooth)
            assert heat.getpixel((6, 6)) == expected

    def test_the_scale_does_not_depend_on_the_grid(self):
        def quarter(n):  # all attention, evenly, on the upper left quarter of the photo
            return [[float(x < n / 2 and y < n / 2) for x in range(n)] for y in range(n)]

        for n in (4, 8, 14):
            assert attention_map(quarter(n), (56, 56), smooth=False).getpixel((8, 8)) == 170

    def test_in_a_grid_of_few_cells_full_heat_is_all_attention_on_one(self):
        assert attention_map([[0, 1]], (20, 10), smooth=False).getpixel((15, 5)) == 255
        assert attention_map([[1]], (20, 10)).getbbox() is None  # it could look nowhere else


def luminance(color: tuple[int, ...]) -> float:
    """The relative luminance of an sRGB colour, WCAG 2."""
    linear = [((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 3294 for c in color]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def test_colors_of_full_heat_and_of_no_heat_are_those_worked_out_by_hand():
    """viridis is used up to its level 220: 0.765 of the way from 6ece58 to b5de2b."""
    weights = one_hot(7, 7, 3, 3)
    for ground, expected in {"white": (164, 218, 54), "black": (115, 153, 38)}.items():
        photo = Image.new("RGB", (70, 70), ground)  # of black, 0.7 of the colour
        shown = overlay(photo, weights, smooth=False, strength=1, colors="viridis")
        assert shown.getpixel((35, 35)) == pytest.approx(expected, abs=1)
    photo = Image.new("RGB", (70, 70), (200, 120, 40))
    shown = overlay(photo, weights, strength=0.5, colors="spotlight")
    # Half of the way to its grey, 135, and half as light.
    assert shown.getpixel((5, 5)) == pytest.approx((84, 64, 44), abs=1)


class TestColors:
    @pytest.mark.parametrize("name", [name for name in COLORS if name != "spotlight"])
    def test_more_heat_is_lighter_and_full_heat_can_be_seen_on_white(self, name):
        assert len(color_scale(name)) == 256
        values = [luminance(color) for color in dict.fromkeys(color_scale(name))]
        # Of two neighbours, rounding to 8 bits may make the hotter one darker by a hair.
        assert all(low < high for low, high in zip(values, values[2:], strict=False))
        assert all(low < high + 5e-4 for low, high in pairwise(values))
        seen = overlay(Image.new("RGB", (70, 70), "white"), one_hot(7, 7, 3, 3), colors=name)
        contrast = 1.05 / (luminance(seen.getpixel((35, 35))) + 0.05)
        assert contrast > 1.3

    def test_strength_runs_from_the_photo_alone_to_opaque(self):
        photo, weights = scene((70, 70)), one_hot(7, 7, 3, 3)
        for name in COLORS:
            assert same(overlay(photo, weights, strength=0, colors=name), photo)
            assert not same(overlay(photo, weights, strength=1, colors=name), photo)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        *(({"weights": weights}, "attention weights")
          for weights in ([], [[1, 2], [3]], [1, 2], "ab", [[-1, 2]], [[math.nan]])),
        *(({"box": box}, "box") for box in ((0, 0, 0, 1), (0, 0, math.nan, 1))),
        *(({"strength": strength}, "strength") for strength in (-0.01, 1.01, math.nan)),
        ({"colors": "jet"}, f"'jet'.*{', '.join(COLORS)}"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(options, named):
    with pytest.raises(ConfigError, match=named):
        overlay(scene((10, 10)), **{"weights": UNIFORM, **options})


class TestLabel:
    def test_a_word_is_written_in_the_lower_left_corner(self):
        photo = Image.new("RGB", (400, 300), "#305080")
        plain, doubtful = (label(photo, "dog", doubtful=value) for value in (False, True))
        assert plain.size == photo.size and photo.getpixel((10, 290)) == (0x30, 0x50, 0x80)
        left, top, right, bottom = ImageChops.difference(photo, plain).getbbox()
        assert right < 200 < top and left < 20 and bottom > 280
        assert not same(plain, doubtful) and not same(plain, label(photo, "cat", doubtful=False))
        small = photo.resize((400, 255))  # has no room
        assert same(small, label(small, "dog", doubtful=False))
