"""Where pictures go: never onto what is read, never two into one file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner import predictor
from captioner.cli import main
from captioner.drawing.saving import save_animation, save_image
from captioner.errors import ConfigError
from captioner.verbs.caption import plan_pictures
from captioner.vision.image import open_image


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.jpg", "x/1.jpg", "y/1.jpg", "y/2.png", "model.safetensors"):
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(b"a photo")
    return tmp_path


def plan(photos: str, inputs: tuple[str, ...] = (), **patterns: str) -> list[dict[str, str]]:
    options = {f"--{name}": pattern for name, pattern in patterns.items()}
    return plan_pictures(options, photos.split(), inputs=inputs)


def test_patterns_are_filled() -> None:
    assert plan("a.jpg y/2.png", sheet="s/{number}-{name}.png", overlay="{name}.webp") == [
        {"--sheet": "s/1-a.png", "--overlay": "a.webp"},
        {"--sheet": "s/2-2.png", "--overlay": "2.webp"},
    ]
    assert plan("http://host/b/cat.jpg?size=1.5", sheet="{name}.png") == [{"--sheet": "cat.png"}]
    assert plan("HTTPS://host/cat.jpg?size=1.5", sheet="{name}.png") == [{"--sheet": "cat.png"}]
    # A name that looks like a field is a name.
    Path("{number}.jpg").write_bytes(b"")
    assert plan("{number}.jpg", sheet="{name}.png") == [{"--sheet": "{number}.png"}]
    assert plan("a.jpg y/2.png") == [{}, {}]


def test_inputs_are_known_under_every_name(here: Path) -> None:
    Path("link.jpg").symlink_to("a.jpg")
    os.link("a.jpg", "hard.jpg")
    Path("folder").symlink_to("x")
    for target in ("a.jpg", "./x/../a.jpg", str(here / "a.jpg"), "link.jpg", "hard.jpg"):
        with pytest.raises(ConfigError, match=r"would overwrite a\.jpg"):
            plan("a.jpg", overlay=target)
    with pytest.raises(ConfigError, match=r"would overwrite x/1\.jpg"):
        plan("x/1.jpg", overlay="folder/{name}.jpg")
    with pytest.raises(ConfigError, match=r"would overwrite link\.jpg"):
        plan("link.jpg", overlay="a.jpg")
    with pytest.raises(ConfigError, match=r"would overwrite y/2\.png"):  # another's photo
        plan("y/1.jpg y/2.png x/1.jpg", overlay="y/{number}.png")
    Path("sheet.png").symlink_to("model.safetensors")
    with pytest.raises(ConfigError, match=r"would overwrite model\.safetensors"):
        plan("a.jpg", inputs=("model.safetensors",), sheet="sheet.png")


def test_no_two_pictures_share_a_file() -> None:
    with pytest.raises(ConfigError, match=r"--sheet of x/1\.jpg and --sheet of y/1\.jpg.*number"):
        plan("x/1.jpg y/1.jpg", sheet="{name}.png")
    with pytest.raises(ConfigError, match=r"--sheet of a\.jpg and --overlay of a\.jpg"):
        plan("a.jpg", sheet="o.png", overlay="./o.png")
    Path("p.png").touch()
    Path("q.png").symlink_to("p.png")
    with pytest.raises(ConfigError, match="would both be written to"):
        plan("a.jpg", sheet="p.png", overlay="q.png")
    assert plan("x/1.jpg y/1.jpg", sheet="{name}-{number}.png")


def test_only_what_captioner_drew_is_written_over(here: Path) -> None:
    """A photo that the command does not read is somebody's all the same."""
    frames = [Image.new("RGB", (8, 8), color) for color in ("red", "blue")]
    save_animation(frames, "own.gif")
    save_animation(frames, "own2.webp")
    for suffix in (".png", ".jpg", ".webp"):
        save_image(frames[0], f"own{suffix}")
        assert plan("a.jpg", sheet=f"own{suffix}")
        frames[0].save(f"photo{suffix}")
        with pytest.raises(ConfigError, match=f"photo{suffix} is there already, and Captioner"):
            plan("a.jpg", sheet=f"photo{suffix}")
    assert plan("a.jpg", animation="own.gif") and plan("a.jpg", animation="own2.webp")
    frames[0].save("photo.gif")
    with pytest.raises(ConfigError, match="did not draw it"):
        plan("a.jpg", animation="photo.gif")
    with pytest.raises(ConfigError, match=r"x/1\.jpg is there already"):
        plan("a.jpg y/2.png", sheet="x/{number}.jpg")


def test_all_pictures_of_a_photo_open_it_once(
    tiny_file: Path,
    photo: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    opened: list[object] = []

    def counting(*photo: Any, **options: Any) -> Image.Image:
        opened.append(options.get("at_least"))
        return open_image(*photo, **options)

    monkeypatch.setattr(predictor, "open_image", counting)
    pictures = ("--sheet", "new/{name}/s.png", "--overlay", "o.png", "--animation", "a.gif")
    monkeypatch.chdir(photo.parent)
    command = ["caption", str(photo), "--checkpoint", str(tiny_file)]
    assert main([*command, *pictures]) == 0
    assert [at_least is None for at_least in opened] == [False, True]  # a square, then whole
    assert Path("new/photo/s.png").is_file() and Path("o.png").is_file() and Path("a.gif").is_file()
    assert main([*command, "--sheet", "photo.jpg/{name}/s.png"]) == 1
    assert "photo.jpg/photo cannot be written" in capsys.readouterr().err
