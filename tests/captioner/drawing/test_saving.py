"""Writing pictures to files, and errors."""

from __future__ import annotations

from pathlib import Path

import pytest
from PIL import Image

from captioner.drawing.saving import save_animation, save_image
from captioner.errors import OutputError
from tests.captioner.drawing.scenes import scene


class TestSaving:
    @pytest.mark.parametrize(
        ("suffix", "format_"),
        [(".png", "PNG"), (".jpeg", "JPEG"), (".JPG", "JPEG"), (".webp", "WEBP")],
    )
    def test_the_suffix_says_the_format(self, tmp_path: Path, suffix, format_):
        path = tmp_path / f"picture{suffix}"
        for mode in ("RGB", "RGBA", "L"):
            save_image(scene((40, 30)).convert(mode), str(path))
            with Image.open(path) as saved:
                assert (saved.format, saved.size) == (format_, (40, 30))

    @pytest.mark.parametrize(
        ("save", "picture", "known"),
        [(save_image, scene((9, 9)), ".jpg"), (save_animation, [scene((9, 9))], ".gif")],
    )
    def test_what_cannot_be_written_names_the_file(self, tmp_path: Path, save, picture, known):
        for name in ("film.mp4", "film"):
            with pytest.raises(OutputError, match=rf"{name} .*\{known}, .*\.webp"):
                save(picture, tmp_path / name)
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
