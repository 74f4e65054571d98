"""The contact sheet and the animation show the photo and every word, whatever its shape."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageColor, ImageSequence, ImageStat

from captioner.drawing.animation import animation
from captioner.drawing.lettering import HAIRLINE, INK, MUTED, PAPER, Text, font_of, percentage
from captioner.drawing.overlay import Panel, overlay
from captioner.drawing.saving import save_animation
from captioner.drawing.sheet import contact_sheet
from tests.captioner.drawing.scenes import UNIFORM, one_hot, panels, same, scene


def find(sheet: Image.Image, color: tuple[int, int, int], least: int) -> list[int]:
    """The columns in which a colour fills at least so many pixels: one run for each panel."""
    hits = [
        x
        for x in range(sheet.width)
        if sum(sheet.getpixel((x, y)) == color for y in range(sheet.height)) >= least
    ]
    return [x for x in hits if x - 1 not in hits]


def test_letters_are_drawn_that_pillows_own_font_lacks():
    """A font that lacks a letter draws a box, the same for all that it lacks."""
    drawn = {letter: bytes(font_of(30, letter).getmask(letter)) for letter in "ßüžжשر"}
    assert len({*drawn.values()}) == len(drawn)
    assert font_of(30, "A dog.").getname() == font_of(30).getname()  # as it always was


def test_a_title_from_right_to_left_begins_at_the_right():
    """The first letter decides."""
    arabic = Text.flow(["رجل", "يركب", "دراجة"], 20, 300, space=0.3)
    hebrew = Text.flow(["כלב", "two"], 20, 300, space=0.3)
    english = Text.flow(["one", "رجل"], 20, 300, space=0.3)
    for text, is_reversed in (arabic, True), (hebrew, True), (english, False):
        starts = [x for _, _, x, _ in text.words]
        assert starts == sorted(starts, reverse=is_reversed)
    _, font, x, _ = arabic.words[0]
    assert x + font.getlength("رجل") == pytest.approx(300)
    centred = Text.flow(["رجل", "يركب"], 20, 300, space=0.3, center=True)
    (_, font, right, _), (_, _, left, _) = centred.words
    assert left == pytest.approx(300 - right - font.getlength("رجل"))


def test_percentages_are_rounded_down() -> None:
    shares = (0, 0.0099, 0.01, 0.29, 0.5499, 1)
    assert [*map(percentage, shares)] == ["< 1 %", "< 1 %", "1 %", "29 %", "54 %", "100 %"]


def test_panels_have_the_options_and_the_legend_their_colors():
    photo, word = scene((260, 260)), Panel("dog", 0.25, one_hot(5, 5, 1, 3))
    gray, hot = Image.new("RGB", (70, 70), "#b0b0b0"), one_hot(7, 7, 3, 3)
    for colors in ("inferno", "viridis"):
        look = {"smooth": False, "strength": 0.5, "colors": colors}
        sheet = contact_sheet(photo, [word], columns=2, **look)
        # Margins of 40 pixels, and 28 between panels.
        panel = sheet.crop((40 + 260 + 28, 40, 40 + 260 + 28 + 260, 40 + 260))
        assert same(panel, overlay(photo, word.weights, **look))
        # The legend: its first words, 9 pixels, and a bar of 104 on the same grey.
        start = 40 + round(font_of(14).getlength("even share of attention") + 9)
        full = overlay(gray, hot, **look).getpixel((35, 35))
        for x, expected in {start: (0xB0,) * 3, start + 103: full}.items():
            assert sheet.getpixel((x, sheet.height - 45)) == pytest.approx(expected, abs=3)


def test_the_bar_below_a_word_is_as_long_as_its_share():
    sheet = contact_sheet(scene((260, 260)), [Panel("dog", 0.25, UNIFORM)], columns=2)
    below = [sheet.getpixel((x, 40 + 260 + 39)) for x in range(328, 328 + 260)]
    dark, light = map(ImageColor.getrgb, (MUTED, HAIRLINE))
    assert below == [dark] * 65 + [light] * 195


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
        def sheet(word="dog", confidence=0.5, **labels):
            return contact_sheet(scene((60, 60)), [Panel(word, confidence, UNIFORM)], **labels)

        first = sheet()
        assert same(first, sheet())
        for change in ({"word": "cat"}, {"confidence": 0.8}, {"confidence": None},
                       {"measure": "likely right"}):  # fmt: skip
            assert not same(first, sheet(**change))
        heights = [
            sheet(title=title).height for title in (None, "A dog", "many words to wrap " * 9)
        ]
        assert heights == sorted({*heights})

    def test_a_doubtful_word_has_a_dashed_frame_around_its_picture(self):
        photo, ink = Image.new("RGB", (60, 60), self.GREEN), ImageColor.getrgb(INK)
        seen, doubtful = (
            contact_sheet(photo, [Panel("dog", 0.5, UNIFORM, doubt)], columns=2)
            for doubt in (False, True)
        )
        left, top, right, bottom = ImageChops.difference(seen, doubtful).getbbox()
        assert left > seen.width // 2  # around the word's picture, the second; the photo has none
        inner = (left + 3, top + 3, right - 3, bottom - 3)
        assert same(seen.crop(inner), doubtful.crop(inner))
        assert inner[2] - inner[0] >= 240  # the picture itself: 60 pixels, enlarged four times
        line = [doubtful.getpixel((x, top)) for x in range(left, right)]
        assert set(line) == {ink, ImageColor.getrgb(PAPER)}
        assert sum(a != b for a, b in itertools.pairwise(line)) >= 20  # dashes, and as many gaps
        assert line.count(ink) / len(line) == pytest.approx(0.5, abs=0.05)

    def test_photos_of_any_shape_have_the_area_of_a_square_one(self):
        for size, expected in {(300, 100): (450, 150), (100, 400): (130, 520)}.items():
            sheet = contact_sheet(Image.new("RGB", size, self.GREEN), [])
            apart = ImageChops.difference(sheet, Image.new("RGB", sheet.size, self.GREEN))
            green = apart.convert("L").point(lambda level: level == 0, "1")
            left, top, right, bottom = green.getbbox()
            assert (right - left, bottom - top) == expected

    def test_a_word_too_wide_for_its_panel_stays_inside_it(self):
        photo = Image.new("RGB", (60, 60), self.GREEN)
        sheet = contact_sheet(photo, [Panel("w" * 80, 0.5, UNIFORM)], panel_side=120, columns=2)
        margin = sheet.crop((sheet.width - 15, 0, sheet.width, sheet.height))
        assert max(margin.getextrema()) == (255, 255)


def test_the_note_follows_the_words_and_later_words_are_faint():
    photo = Image.new("RGB", (100, 100), "gray")
    noted = animation(photo, panels("a", "dog"), note="on grass", side=320)
    longer = animation(photo, panels("a", "dog", "on", "grass"), side=320)
    assert same(noted[0], longer[0]) and same(noted[-1], longer[-1])
    written = [
        sum(count for count, color in frame.getcolors(9999) if color == ImageColor.getrgb(INK))
        for frame in longer
    ]
    assert written[:2] == [0, 0]  # the first word is marked, in the colour of the paper
    assert all(fewer < more for fewer, more in itertools.pairwise(written[1:]))


class TestAnimation:
    WORDS = ("a", "dog", "a", "hat")

    @pytest.mark.parametrize("size", [(100, 300), (400, 300), (20, 9)])
    def test_frames_have_one_size_within_the_side(self, size):
        frames = animation(scene(size), panels(*self.WORDS), side=240)
        assert len(frames) == len(self.WORDS) + 2
        assert len({frame.size for frame in frames}) == 1
        assert max(frames[0].size) <= 240
        assert min(frames[0].size) >= 50

    def test_it_begins_and_ends_with_the_plain_photo_and_shows_each_word_between(self):
        photo = scene((100, 100))
        look = {"smooth": False, "strength": 0.5, "colors": "viridis"}
        frames = animation(photo, panels(*self.WORDS), side=320, **look)
        left = (frames[0].width - 200) // 2
        shown = [frame.crop((left, 0, left + 200, 200)) for frame in frames]
        assert same(shown[0], photo.resize((200, 200), Image.Resampling.LANCZOS))
        assert same(shown[0], shown[-1])
        for picture, panel in zip(shown[1:-1], panels(*self.WORDS), strict=True):
            assert same(picture, overlay(shown[0], panel.weights, **look))
        (alone,) = animation(photo, [], side=320)
        assert same(alone.crop((0, 0, 200, 200)), shown[0])

    def test_a_doubtful_word_is_marked_by_an_outline(self):
        """In the accent, #c2410c, which is nowhere else: the photo is grey."""
        words = [Panel(word, None, UNIFORM, doubtful=word == "hat") for word in self.WORDS]
        frames = animation(Image.new("RGB", (100, 100), "gray"), words, side=320)
        marked = [
            sum(count for count, color in frame.getcolors(9999) if color == (0xC2, 0x41, 0x0C))
            for frame in frames
        ]
        assert marked[0] == marked[-1] == 0 and marked[4] > 0
        assert marked[4] < min(marked[1:4])  # of letters as many as "dog"; filled it would be more

    @pytest.mark.parametrize("suffix", [".GIF", ".webp"])
    def test_round_trip(self, tmp_path: Path, suffix: str):
        frames = animation(scene((120, 90)), panels(*self.WORDS), side=240)
        save_animation(frames, tmp_path / f"words{suffix}")
        with Image.open(tmp_path / f"words{suffix}") as saved:
            assert (saved.size, saved.n_frames) == (frames[0].size, len(frames))
            assert saved.info["loop"] == 0
            times = []
            for frame, original in zip(ImageSequence.Iterator(saved), frames, strict=True):
                shown = frame.convert("RGB")  # decodes the frame, which is when its time is known
                times.append(frame.info["duration"])
                apart = ImageChops.difference(shown, original).convert("L")
                assert ImageStat.Stat(apart).mean[0] < 8
        assert times == [800] * 5 + [2400]
