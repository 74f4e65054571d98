"""Paths of pictures: inputs are not overwritten, and no two pictures share a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from captioner.cli import main
from captioner.commands.caption import plan_pictures
from captioner.errors import ConfigError
from captioner.photos.open import open_image
from tests.launcher import Run
from tests.web import Handler, hosting


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "x/1.jpg", "y/1.jpg", "y/2.png", "model.safetensors"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"a photo")
    return tmp_path


def test_a_photo_on_the_web_is_downloaded_once(tiny_file: Path, photo: Path) -> None:
    asked: list[str] = []

    class Photos(Handler):
        def do_GET(self) -> None:  # noqa: N802
            asked.append(self.path)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(photo.read_bytes())

    with hosting(Photos) as address:
        pictures = ("--sheet", "s.png", "--overlay", "o.png")
        assert main(["caption", f"{address}/a.jpg", "--checkpoint", str(tiny_file), *pictures]) == 0
    assert asked == ["/a.jpg"]


def plan(photos: str, inputs: tuple[str, ...] = (), **patterns: str) -> list[dict[str, str]]:
    options = {f"--{name}": pattern for name, pattern in patterns.items()}
    return plan_pictures(options, photos.split(), inputs=inputs)


def test_patterns_are_filled() -> None:
    assert plan("a.jpg y/2.png", sheet="s/{number}-{name}.png", overlay="{name}.webp") == [
        {"--sheet": "s/1-a.png", "--overlay": "a.webp"},
        {"--sheet": "s/2-2.png", "--overlay": "2.webp"},
    ]
    assert plan("HTTPS://host/b/cat.jpg?size=1.5", sheet="{name}.png") == [{"--sheet": "cat.png"}]
    # A name that looks like a field is a name.
    Path("{number}.jpg").write_bytes(b"")
    assert plan("{number}.jpg", sheet="{name}.png") == [{"--sheet": "{number}.png"}]
    assert plan("a.jpg y/2.png") == [{}, {}]


def test_inputs_are_recognised_by_every_path(here: Path) -> None:
    Path("link.jpg").symlink_to("a.jpg")
    os.link("a.jpg", "hard.jpg")
    Path("folder").symlink_to("x")
    Path("sheet.png").symlink_to("model.safetensors")
    for photos, target, value in (
        ("a.jpg", "a.jpg", r"input a\.jpg"),
        ("a.jpg", str(here / "a.jpg"), r"input a\.jpg"),
        ("a.jpg", "link.jpg", r"input a\.jpg"),
        ("a.jpg", "hard.jpg", r"input a\.jpg"),
        ("x/1.jpg", "folder/{name}.jpg", r"input x/1\.jpg"),
        ("link.jpg", "a.jpg", r"input link\.jpg"),
        ("y/1.jpg y/2.png x/1.jpg", "y/{number}.png", r"input y/2\.png"),  # another's photo
        ("a.jpg", "sheet.png", r"input model\.safetensors"),
    ):
        with pytest.raises(ConfigError, match=value):
            plan(photos, inputs=("model.safetensors",), overlay=target)
    assert plan("a.jpg", sheet="x/1.jpg") == [{"--sheet": "x/1.jpg"}]  # other files are overwritten


def test_no_two_pictures_share_a_file() -> None:
    Path("p.png").touch()
    Path("q.png").symlink_to("p.png")
    for photos, patterns, value in (
        ("x/1.jpg y/1.jpg", {"sheet": "{name}.png"}, r"--sheet of y/1\.jpg .*--sheet of x/1\.jpg"),
        ("a.jpg", {"sheet": "o.png", "overlay": "./o.png"}, r"--overlay of a\.jpg .*--sheet of a"),
        ("a.jpg", {"sheet": "p.png", "overlay": "q.png"}, "--sheet of a"),
    ):
        with pytest.raises(ConfigError, match=value + ".*{number}"):
            plan(photos, **patterns)
    assert plan("x/1.jpg y/1.jpg", sheet="{name}-{number}.png")


@pytest.mark.slow
def test_a_word_is_given_by_itself_or_its_position_from_1(
    run_main: Run, tiny_file: Path, photo: Path
) -> None:
    caption = ("caption", photo, "--checkpoint", tiny_file, "--overlay", "o.png")
    words = run_main(*caption, "--word", "1").stdout.split()
    last = len(words)
    for word, place in {words[1]: words.index(words[1]) + 1, str(last): last}.items():
        done = run_main(*caption, f"--word={word}")
        expected = f"o.png shows {words[place - 1]!r}, word {place} of {last}\n"
        assert (done.returncode, done.stderr) == (0, expected)
    Path("o.png").unlink()
    for word in ("0", str(last + 1), "²", "zebra"):
        done = run_main(*caption, f"--word={word}")
        assert done.returncode == 1 and done.stdout.split() == words  # the caption is printed
        assert "there is no word" in done.stderr
    assert not Path("o.png").exists()


def test_pictures_are_written_into_new_folders(run_main: Run, tiny_file: Path, photo: Path) -> None:
    command = ("caption", photo, "--checkpoint", tiny_file, "--sheet")
    done = run_main(*command, "new/{name}/s.png", "--overlay", "o.png", "--animation", "a.gif")
    assert done.returncode == 0, done.stderr
    assert all(Path(file).is_file() for file in ("new/photo/s.png", "o.png", "a.gif"))
    done = run_main(*command, "a.jpg/{name}/s.png")
    assert done.returncode == 1 and "a.jpg/photo cannot be written" in done.stderr


def test_a_photo_above_the_default_limit_is_drawn(
    tiny_file: Path, photo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is lowered instead of a photo of 100 megapixels."""
    monkeypatch.setitem(open_image.__kwdefaults__, "max_pixels", 1000)
    monkeypatch.setattr("captioner.caption.MAX_PIXELS", 1000)
    command = ["caption", str(photo), "--checkpoint", str(tiny_file), "--max-pixels", "9600"]
    assert main([*command, "--overlay", "o.png"]) == 0
    assert open_image("o.png", max_pixels=9600).size == (120, 80)


@pytest.mark.parametrize("compression", ["tiff_lzw", "packbits"])
def test_a_damaged_photo_has_one_line_of_error(
    run_captioner: Run, tiny_file: Path, tmp_path: Path, compression: str
) -> None:
    """libtiff itself prints warnings to file descriptor 2."""
    picture = Image.effect_noise((64, 48), 60).convert("RGB")
    picture.save(tmp_path / "cut.tif", compression=compression)
    data = bytearray((tmp_path / "cut.tif").read_bytes())
    data[1000:4000] = bytes(3000)
    (tmp_path / "cut.tif").write_bytes(data)
    result = run_captioner("caption", tmp_path / "cut.tif", "--checkpoint", tiny_file)
    assert result.returncode == 1 and result.stdout == ""
    *warnings, line = result.stderr.splitlines()
    assert not any(warning.startswith("captioner") for warning in warnings)
    assert line.startswith(f"captioner: {tmp_path / 'cut.tif'} ")
