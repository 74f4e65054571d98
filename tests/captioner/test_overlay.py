"""The overlay lights the right place of the photo, and the sheet and the animation say so."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from PIL import Image, ImageChops, ImageSequence

from captioner.drawing.colors import COLORS, blend, color_scale
from captioner.drawing.overlay import (
    Panel,
    animation,
    attention_map,
    contact_sheet,
    overlay,
)
from captioner.drawing.saving import save_animation, save_image
from captioner.errors import ConfigError, OutputError

WHOLE = (0.0, 0.0, 1.0, 1.0)
UNIFORM = torch.full((7, 7), 1 / 49)
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


def one_hot(rows: int, columns: int, row: int, column: int) -> torch.Tensor:
    weights = torch.zeros(rows, columns)
    weights[row, column] = 1
    return weights


def scene(size: tuple[int, int]) -> Image.Image:
    """A photo in which no two neighbouring pixels are alike."""
    across = Image.linear_gradient("L").rotate(90).resize(size)
    down = Image.linear_gradient("L").resize(size)
    return Image.merge("RGB", [across, down, ImageChops.difference(across, down)])


def centroid(heat: Image.Image) -> tuple[float, float]:
    pixels = [
        (x + 0.5, y + 0.5, heat.getpixel((x, y)))
        for y in range(heat.height)
        for x in range(heat.width)
    ]
    total = sum(value for _, _, value in pixels)
    return (sum(x * v for x, _, v in pixels) / total, sum(y * v for _, y, v in pixels) / total)


def same(a: Image.Image, b: Image.Image) -> bool:
    return (a.mode, a.size, a.tobytes()) == (b.mode, b.size, b.tobytes())


def panels(*words: str) -> list[Panel]:
    return [Panel(word, 0.5, one_hot(5, 5, i % 5, 2)) for i, word in enumerate(words)]


@pytest.mark.parametrize(("size", "grid", "cell", "box", "pixels"), PLACES.values(), ids=PLACES)
class TestPlace:
    def test_native_lights_exactly_the_cell(self, size, grid, cell, box, pixels):
        heat = attention_map(one_hot(*grid, *cell), size, box=box, smooth=False)
        expected = Image.new("L", size)
        expected.paste(255, pixels)
        assert same(heat, expected)

    def test_smooth_peaks_in_the_cell_and_is_centred_on_it(self, size, grid, cell, box, pixels):
        heat = attention_map(one_hot(*grid, *cell), size, box=box)
        assert heat.size == size
        for side, middle in enumerate(centroid(heat)):
            low, high = pixels[side], pixels[side + 2]
            first, end = max(0, box[side] * size[side]), min(1, box[side + 2]) * size[side]
            # At the border of the photo or box the outer half of the blob is cut off: it shifts.
            whole = first <= low - 10 and high + 10 <= end + 1e-6
            assert abs(middle - (low + high) / 2) < (0.1 if whole else 1)
        assert heat.getpixel(((pixels[0] + pixels[2]) // 2, (pixels[1] + pixels[3]) // 2)) > 245
        assert len(heat.getcolors()) > 20  # it fades; a crisp cell has two levels
        outside = heat.copy()
        outside.paste(0, (pixels[0] - 10, pixels[1] - 10, pixels[2] + 10, pixels[3] + 10))
        assert outside.getbbox() is None  # no ripples either

    @pytest.mark.parametrize("colors", [name for name in COLORS if name != "spotlight"])
    def test_overlay_changes_the_cell_and_nothing_else(self, size, grid, cell, box, pixels, colors):
        photo = scene(size)
        before = photo.tobytes()
        shown = overlay(photo, one_hot(*grid, *cell), box=box, smooth=False, colors=colors)
        assert photo.tobytes() == before
        assert (shown.mode, shown.size) == ("RGB", size)
        assert ImageChops.difference(shown, photo).getbbox() == pixels

    def test_spotlight_keeps_the_cell_and_darkens_the_rest(self, size, grid, cell, box, pixels):
        photo = Image.new("RGB", size, (200, 120, 40))
        shown = overlay(photo, one_hot(*grid, *cell), box=box, smooth=False, colors="spotlight")
        assert same(shown.crop(pixels), photo.crop(pixels))
        shown.paste((0, 0, 0), pixels)
        assert max(high for _, high in shown.getextrema()) < 100


def test_a_fractional_crop_box_covers_the_pixels_whose_centres_it_holds():
    heat = attention_map([[1, 0, 0, 0]] * 4, (10, 10), box=(0.14, 0.0, 0.94, 1.0), smooth=False)
    # The first of four columns is 1.4 to 3.4 pixels: the centres 1.5 and 2.5.
    assert [heat.getpixel((x, 5)) > 0 for x in range(10)] == [x in (1, 2) for x in range(10)]


def test_a_box_beside_the_photo_lights_nothing():
    assert attention_map(one_hot(3, 3, 1, 1), (30, 30), box=(1.5, 0, 2.5, 1)).getbbox() is None


class TestHeat:
    def test_a_uniform_word_leaves_the_photo_as_it_is(self):
        photo = scene((90, 60))
        assert same(overlay(photo, UNIFORM), photo)
        assert attention_map(UNIFORM + torch.rand(7, 7) * 1e-4, (90, 60)).getextrema()[1] < 10

    @pytest.mark.parametrize("smooth", [True, False])
    def test_every_doubling_of_the_even_share_is_a_third(self, smooth):
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

    def test_all_attention_on_one_cell_of_a_small_grid_is_full_heat(self):
        assert attention_map([[0, 1]], (20, 10), smooth=False).getpixel((15, 5)) == 255
        assert attention_map([[1]], (20, 10)).getbbox() is None  # it could look nowhere else

    def test_tensors_and_nested_sequences_are_alike(self):
        weights = torch.rand(5, 6, requires_grad=True)
        nested = tuple(tuple(row) for row in weights.tolist())
        assert same(attention_map(weights, (60, 50)), attention_map(nested, (60, 50)))

    @pytest.mark.parametrize(
        "weights",
        [[], [[]], [[1, 2], [3]], [1, 2], 3, [[[1]]], "ab", [[-1, 2]], [[math.nan]], [[math.inf]]],
    )
    def test_what_is_no_table_of_weights_is_refused(self, weights):
        with pytest.raises(ConfigError, match="attention weights"):
            attention_map(weights, (10, 10))

    @pytest.mark.parametrize("box", [(0, 0, 0, 1), (0, 1, 1, 0), (0, 0, math.nan, 1)])
    def test_a_box_without_an_inside_is_refused(self, box):
        with pytest.raises(ConfigError, match="box"):
            attention_map(UNIFORM, (10, 10), box=box)


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

    def test_columns_wrap_the_panels_into_rows(self):
        photo = Image.new("RGB", (60, 60), self.GREEN)
        words = [Panel(word, None, UNIFORM) for word in "abcde"]
        sheet = contact_sheet(photo, words, panel_side=60, columns=3)
        assert len(find(sheet, self.GREEN, 100)) == 3
        assert len(find(sheet.transpose(Image.Transpose.ROTATE_90), self.GREEN, 150)) == 2

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

    def test_a_ribbon_of_a_photo_keeps_its_panel_and_its_words_in_bounds(self):
        assert contact_sheet(scene((3000, 60)), [], columns=1).width < 2 * 260 + 100
        narrow = contact_sheet(scene((10, 400)), panels("dog", "cat"), columns=3)
        assert narrow.width > 80 + 3 * 130  # room for words beneath a photo 13 pixels wide

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


class TestSaving:
    @pytest.mark.parametrize(
        ("suffix", "format_"),
        [(".png", "PNG"), (".jpg", "JPEG"), (".jpeg", "JPEG"), (".JPG", "JPEG"), (".webp", "WEBP")],
    )
    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "L"])
    def test_the_suffix_says_the_format(self, tmp_path: Path, suffix, format_, mode):
        path = tmp_path / f"picture{suffix}"
        save_image(scene((40, 30)).convert(mode), str(path))
        with Image.open(path) as saved:
            assert (saved.format, saved.size) == (format_, (40, 30))

    def test_png_keeps_every_pixel(self, tmp_path: Path):
        save_image(scene((40, 30)), tmp_path / "a.png")
        with Image.open(tmp_path / "a.png") as saved:
            assert same(saved.convert("RGB"), scene((40, 30)))

    @pytest.mark.parametrize(
        ("save", "picture", "known"),
        [
            (save_image, scene((9, 9)), [".png", ".jpg", ".webp"]),
            (save_animation, [scene((9, 9))], [".gif", ".webp"]),
        ],
    )
    @pytest.mark.parametrize("name", ["film.mp4", "film"])
    def test_another_suffix_is_refused_with_those_that_work(
        self, tmp_path: Path, save, picture, known, name
    ):
        with pytest.raises(OutputError) as caught:
            save(picture, tmp_path / name)
        assert name in caught.value.detail
        assert all(suffix in caught.value.detail for suffix in known)
        assert not list(tmp_path.iterdir())

    @pytest.mark.parametrize(
        ("save", "picture"), [(save_image, scene((9, 9))), (save_animation, [scene((9, 9))])]
    )
    def test_what_cannot_be_written_names_the_file(self, tmp_path: Path, save, picture):
        with pytest.raises(OutputError, match=r"no folder .*missing"):
            save(picture, tmp_path / "missing" / "a.webp")
        (tmp_path / "taken.webp").mkdir()
        with pytest.raises(OutputError, match=r"taken\.webp"):
            save(picture, tmp_path / "taken.webp")

    def test_what_cannot_be_encoded_leaves_the_old_file_alone(self, tmp_path: Path):
        path = tmp_path / "wide.webp"
        path.write_bytes(b"old")
        with pytest.raises(OutputError, match=r"wide\.webp"):
            save_image(Image.new("L", (20_000, 1)), path)  # WebP ends at 16,383
        assert path.read_bytes() == b"old"

    def test_an_animation_without_frames_is_refused(self, tmp_path: Path):
        with pytest.raises(OutputError, match="no frames"):
            save_animation([], tmp_path / "a.gif")


def test_pictures_need_pillow_alone():
    source = Path(sys.modules["captioner.drawing.overlay"].__file__ or "").parent
    lines = [
        line
        for name in ("overlay.py", "colors.py")
        for line in (source / name).read_text().splitlines()
        if line.startswith(("import ", "from "))
    ]
    modules = {line.split()[1].split(".")[0] for line in lines}
    assert modules - set(sys.stdlib_module_names) == {"PIL", "captioner"}
