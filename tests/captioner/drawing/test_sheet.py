"""The contact sheet shows the photo and every word, whatever the photo's shape."""

from __future__ import annotations

import itertools

import pytest
from PIL import Image, ImageChops, ImageColor

from captioner.drawing.animation import animation
from captioner.drawing.lettering import INK, PAPER
from captioner.drawing.overlay import Panel, overlay
from captioner.drawing.sheet import contact_sheet
from captioner.errors import ConfigError
from tests.captioner.drawing.scenes import UNIFORM, one_hot, panels, same, scene


def find(sheet: Image.Image, color: tuple[int, int, int], least: int) -> list[int]:
    """The columns in which a colour fills at least so many pixels: one run for each panel."""
    hits = [
        x
        for x in range(sheet.width)
        if sum(sheet.getpixel((x, y)) == color for y in range(sheet.height)) >= least
    ]
    return [x for x in hits if x - 1 not in hits]


class TestContactSheet:
    GREEN = (10, 160, 60)

    def test_the_photo_and_one_panel_for_each_word(self):
        photo = Image.new("RGB", (60, 60), self.GREEN)
        words = [Panel(word, 0.5, UNIFORM) for word in ("one", "two", "three")]
        sheet = contact_sheet(photo, words, panel_side=60, columns=4)
        assert sheet.mode == "RGB"
        assert len(find(sheet, self.GREEN, 50)) == 4
        assert len(find(contact_sheet(photo, [], panel_side=60), self.GREEN, 50)) == 1

    def test_words_probabilities_and_title_are_drawn(self):
        photo = scene((60, 60))

        def sheet(word="dog", probability=0.5, title=None):
            return contact_sheet(photo, [Panel(word, probability, UNIFORM)], title=title)

        first = sheet()
        assert same(first, sheet())
        assert not same(first, sheet(word="cat"))
        assert not same(first, sheet(probability=0.8))
        assert not same(first, sheet(probability=None))
        assert sheet(title="A dog").height > first.height
        assert sheet(title="many words to wrap " * 9).height > sheet(title="A dog").height

    def test_a_panel_is_the_overlay_of_the_photo_at_its_size(self):
        photo, weights = scene((60, 60)), one_hot(7, 7, 1, 4)
        sheet = contact_sheet(photo, [Panel("dog", None, weights)], panel_side=60, columns=2)
        panel = overlay(photo, weights)
        corners = [
            (x, y)
            for x in range(sheet.width - 60)
            for y in range(40)
            if sheet.getpixel((x, y)) == panel.getpixel((0, 0))
            and same(sheet.crop((x, y, x + 60, y + 60)), panel)
        ]
        assert len(corners) == 1

    def test_a_guessed_word_has_a_dashed_frame_around_its_picture(self):
        photo, ink = Image.new("RGB", (60, 60), self.GREEN), ImageColor.getrgb(INK)
        seen, guessed = (
            contact_sheet(photo, [Panel("dog", 0.5, UNIFORM, guess)], columns=2)
            for guess in (False, True)
        )
        frame = ImageChops.difference(seen, guessed).getbbox()
        left, top, right, bottom = frame
        assert left > seen.width // 2  # around the word's picture, the second; the photo has none
        inner = (left + 3, top + 3, right - 3, bottom - 3)
        assert same(seen.crop(inner), guessed.crop(inner))
        assert inner[2] - inner[0] >= 240  # the picture itself: 60 pixels, enlarged four times
        for line in (
            [guessed.getpixel((x, top)) for x in range(left, right)],
            [guessed.getpixel((left, y)) for y in range(top, bottom)],
        ):
            assert set(line) == {ink, ImageColor.getrgb(PAPER)}
            changes = sum(one != other for one, other in itertools.pairwise(line))
            assert changes >= 20  # dashes, and as many gaps
            assert line.count(ink) / len(line) == pytest.approx(0.5, abs=0.05)

    @pytest.mark.parametrize("size", [(300, 100), (100, 300), (200, 200), (1000, 20), (8, 6)])
    def test_the_sheet_is_well_shaped_for_a_photo_of_any_shape(self, size):
        words = panels("a", "very", "long", "dog", "in", "a", "red", "hat")
        sheet = contact_sheet(scene(size), words, title="A very long dog in a red hat")
        assert 0.6 < sheet.width / sheet.height < 2.6
        assert 400 < sheet.width < 2000

    @pytest.mark.parametrize("size", [(300, 100), (100, 300), (200, 200), (30, 90)])
    def test_panels_of_any_shape_have_one_area(self, size):
        sheet = contact_sheet(Image.new("RGB", size, self.GREEN), [], panel_side=100)
        area = sum(n for n, color in sheet.getcolors(1 << 16) if color == self.GREEN)
        assert area == pytest.approx(100 * 100, rel=0.02)

    def test_a_word_too_wide_for_its_panel_stays_inside_it(self):
        photo = Image.new("RGB", (60, 60), self.GREEN)
        sheet = contact_sheet(photo, [Panel("w" * 80, 0.5, UNIFORM)], panel_side=120, columns=2)
        assert max(sheet.crop((sheet.width - 15, 0, sheet.width, sheet.height)).getextrema()) == (
            255,
            255,
        )

    def test_the_photo_is_not_modified(self):
        photo = scene((60, 60))
        before = photo.tobytes()
        contact_sheet(photo, panels("a", "dog"))
        animation(photo, panels("a", "dog"), side=128)
        assert photo.tobytes() == before

    @pytest.mark.parametrize("option", [{"panel_side": 31}, {"columns": 0}, {"colors": "jet"}])
    def test_settings_that_cannot_work_are_refused(self, option):
        with pytest.raises(ConfigError):
            contact_sheet(scene((60, 60)), panels("a"), **option)
