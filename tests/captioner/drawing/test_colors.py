"""Colour scales, and how they are laid over a photo."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
from PIL import Image

from captioner.drawing.colors import COLORS, blend, color_scale
from captioner.drawing.overlay import overlay
from captioner.errors import ConfigError
from tests.captioner.drawing.scenes import UNIFORM, one_hot, same, scene


class TestColors:
    @pytest.mark.parametrize("name", [name for name in COLORS if name != "spotlight"])
    def test_more_heat_is_always_lighter(self, name):
        def luminance(color):  # relative luminance of sRGB, WCAG 2
            linear = [((c / 255 + 0.055) / 1.055) ** 2.4 if c > 10 else c / 3294 for c in color]
            return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

        values = [luminance(color) for color in color_scale(name)]
        assert len(values) == 256
        # Of two neighbours, rounding to 8 bits may make the hotter one darker by a hair.
        assert all(low < high for low, high in zip(values, values[2:], strict=False))
        assert all(low < high + 5e-4 for low, high in pairwise(values))

    def test_the_ends_of_viridis_are_those_of_its_authors(self):
        assert color_scale("viridis")[0] == (0x44, 0x01, 0x54)
        assert color_scale("viridis")[255] == (0xFD, 0xE7, 0x25)

    @pytest.mark.parametrize("name", COLORS)
    def test_strength_0_is_the_photo_and_strength_1_is_not(self, name):
        photo, weights = scene((70, 70)), one_hot(7, 7, 3, 3)
        assert same(overlay(photo, weights, strength=0, colors=name), photo)
        assert not same(overlay(photo, weights, strength=1, colors=name), photo)

    def test_unknown_colors_are_refused_with_those_that_are_known(self):
        with pytest.raises(ConfigError) as caught:
            overlay(scene((10, 10)), UNIFORM, colors="jet")
        assert all(name in caught.value.detail for name in ("jet", *COLORS))
        with pytest.raises(ConfigError, match="spotlight"):
            color_scale("spotlight")

    @pytest.mark.parametrize("strength", [-0.01, 1.01, math.nan])
    def test_a_strength_outside_0_to_1_is_refused(self, strength):
        with pytest.raises(ConfigError, match="strength"):
            overlay(scene((10, 10)), UNIFORM, strength=strength)

    @pytest.mark.parametrize("mode", ["L", "RGBA", "CMYK", "P"])
    def test_photos_of_any_mode(self, mode):
        photo = scene((20, 20)).convert(mode)
        assert overlay(photo, UNIFORM).mode == "RGB"
        assert blend(photo, Image.new("L", (20, 20), 255), colors="cividis", strength=1)
