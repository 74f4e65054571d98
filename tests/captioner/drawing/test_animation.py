"""The animation runs through the words, in frames of one size."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image, ImageChops, ImageSequence

from captioner.drawing.animation import animation
from captioner.drawing.overlay import Panel, overlay
from captioner.drawing.saving import save_animation
from captioner.errors import ConfigError
from tests.captioner.drawing.scenes import UNIFORM, panels, same, scene


class TestAnimation:
    WORDS = ("a", "dog", "a", "hat")

    @pytest.mark.parametrize("size", [(300, 100), (100, 300), (200, 200), (2000, 1500), (20, 9)])
    def test_frames_have_one_size_within_the_side(self, size):
        frames = animation(scene(size), panels(*self.WORDS), side=240)
        assert len(frames) == len(self.WORDS) + 2
        assert len({frame.size for frame in frames}) == 1
        assert max(frames[0].size) <= 240
        assert min(frames[0].size) >= 50

    def test_it_begins_and_ends_with_the_plain_photo_and_shows_each_word_between(self):
        photo = scene((100, 100))
        frames = animation(photo, panels(*self.WORDS), side=320)
        left = (frames[0].width - 200) // 2
        shown = [frame.crop((left, 0, left + 200, 200)) for frame in frames]
        assert same(shown[0], photo.resize((200, 200), Image.Resampling.LANCZOS))
        assert same(shown[0], shown[-1])
        for picture, panel in zip(shown[1:-1], panels(*self.WORDS), strict=True):
            assert same(picture, overlay(shown[0], panel.weights))

    def test_the_caption_marks_another_word_in_every_frame(self):
        words = [Panel(word, None, UNIFORM) for word in self.WORDS]  # the photo never changes
        frames = animation(scene((100, 100)), words, side=320)
        assert len({frame.tobytes() for frame in frames}) == len(frames)

    def test_a_guessed_word_is_marked_by_an_outline(self):
        """In the accent, #c2410c, which is nowhere else: the photo is grey."""
        words = [Panel(word, None, UNIFORM, guessed=word == "hat") for word in self.WORDS]
        frames = animation(Image.new("RGB", (100, 100), "gray"), words, side=320)
        marked = [
            sum(count for count, color in frame.getcolors(9999) if color == (0xC2, 0x41, 0x0C))
            for frame in frames
        ]
        assert marked[0] == marked[-1] == 0 and marked[4] > 0
        assert marked[4] < min(marked[1:4])  # of letters as many as "dog"; filled it would be more

    def test_a_very_long_caption_leaves_room_for_the_photo(self):
        frames = animation(scene((200, 200)), panels(*["photograph"] * 30), side=320)
        assert max(frames[0].size) <= 320

    def test_a_caption_without_words_is_the_photo_alone(self, tmp_path: Path):
        frames = animation(scene((100, 100)), [], side=200)
        assert len(frames) == 1
        save_animation(frames, tmp_path / "one.gif")
        assert (tmp_path / "one.gif").stat().st_size > 0

    @pytest.mark.parametrize("suffix", [".gif", ".webp", ".GIF"])
    def test_round_trip(self, tmp_path: Path, suffix: str):
        frames = animation(scene((120, 90)), panels(*self.WORDS), side=240, seconds_per_word=0.3)
        save_animation(frames, tmp_path / f"words{suffix}")
        with Image.open(tmp_path / f"words{suffix}") as saved:
            assert saved.size == frames[0].size
            assert saved.n_frames == len(frames)
            assert saved.info["loop"] == 0
            times = []
            for frame, original in zip(ImageSequence.Iterator(saved), frames, strict=True):
                shown = frame.convert("RGB")  # decodes the frame, which is when its time is known
                times.append(frame.info["duration"])
                apart = ImageChops.difference(shown, original).convert("L").histogram()
                assert sum(level * n for level, n in enumerate(apart)) / sum(apart) < 8
        assert times == [300] * 5 + [900]

    @pytest.mark.parametrize("option", [{"side": 127}, {"seconds_per_word": 0}])
    def test_settings_that_cannot_work_are_refused(self, option):
        with pytest.raises(ConfigError):
            animation(scene((60, 60)), panels("a"), **option)
