"""The paths of maps, and the photos that they are drawn over."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageFile

from captioner import Captioner, OutputError
from captioner.vision.image import open_image
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.files import RunFiles
from captioner_serving.batch.inputs.photos import PhotoFile
from captioner_serving.batch.outputs.maps import MapWriter
from captioner_serving.batch.outputs.written import WrittenFiles, write_unlogged
from tests.serving.batch.conftest import Photos, draw


def test_a_map_replaces_a_file_and_follows_no_link(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = photos(1) / "p000.jpg"
    caption, open_photo = tiny.caption(photo), partial(open_image, photo)
    monkeypatch.chdir(tmp_path)
    maps = tmp_path / "maps"
    maps.mkdir()
    (maps / "file.png").write_bytes(b"of an earlier run")
    (tmp_path / "elsewhere.png").write_bytes(b"mine")
    (maps / "link.png").symlink_to(tmp_path / "elsewhere.png")
    (maps / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(maps / "pipe.png")
    written = WrittenFiles(RunFiles(tmp_path / "c.jsonl"))
    for kind in ("overlay", "sheet"):
        writer = MapWriter(BatchConfig(maps=kind, maps_to="maps"), written.write)  # type: ignore[arg-type]
        for name, problem in {
            "link": "is a symbolic link: remove it",
            "dangling": "is a symbolic link: remove it",
            "pipe": "cannot be read: it is not a regular file",
        }.items():
            with pytest.raises(OutputError, match=f"maps/{name}.png {problem}"):
                writer.write(PhotoFile(name=name, file=str(photo)), caption, open_photo)
        for name in ("file", "free"):
            writer.write(PhotoFile(name=name, file=str(photo)), caption, open_photo)
            with Image.open(maps / f"{name}.png") as drawn:
                assert drawn.format == "PNG"
    written.delete_files()
    assert not (maps / "free.png").exists() and not (tmp_path / "nowhere.png").exists()
    assert (maps / "file.png").exists()  # it was there before the run
    assert (tmp_path / "elsewhere.png").read_bytes() == b"mine"


def test_a_photo_that_crashes_the_decoder_costs_its_map_alone(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may do so only at its full size, which captioning does not need."""
    folder, output = photos(2), tmp_path / "c.jsonl"
    draw(9, (2400, 2000)).save(folder / "large.jpg", quality=90)
    load, here = ImageFile.ImageFile.load, os.getpid()

    def decode(image: ImageFile.ImageFile) -> Any:
        if image.size == (2400, 2000):
            assert os.getpid() != here, "decoded in the process of the run"
            os.kill(os.getpid(), signal.SIGSEGV)
        return load(image)

    monkeypatch.setattr(ImageFile.ImageFile, "load", decode)
    config = BatchConfig(maps="overlay", maps_to=str(tmp_path / "maps"))
    large, *others = caption_batch(folder, output=output, config=config, captioner=tiny)
    assert large["caption"] and "large.jpg crashed the image decoder" in large["error"]["detail"]
    assert not any("error" in record for record in others)
    drawn = {path.name for path in (tmp_path / "maps").rglob("*.png")}
    assert drawn == {"p000.jpg.png", "p001.jpg.png"}
    assert list(caption_batch(folder, output=output, config=config, captioner=tiny)) == []


def test_two_photos_share_no_map(tiny: Captioner, photos: Photos, tmp_path: Path) -> None:
    one, other = sorted(map(str, photos(2).iterdir()))
    maps = tmp_path / "maps"
    writer = MapWriter(BatchConfig(maps="overlay", maps_to=str(maps)), write_unlogged)
    writer.write(PhotoFile(name="a/x.jpg", file=one), tiny.caption(one), partial(open_image, one))
    writer.write(
        PhotoFile(name="../a/x.jpg", file=other), tiny.caption(other), partial(open_image, other)
    )
    for end in "12":  # which are longer than file systems allow with .png
        long = PhotoFile(name=f"{'é' * 124}{end}.jpg", file=other)
        writer.write(long, tiny.caption(other), partial(open_image, other))
    assert len(list(maps.rglob("*.png"))) == 4
    (first,) = maps.glob("a/*.png")
    before = first.read_bytes()
    with pytest.raises(OutputError, match=r"is already the map of a/x\.jpg"):
        writer.write(
            PhotoFile(name="/a/x.jpg", file=other), tiny.caption(other), partial(open_image, other)
        )
    assert first.read_bytes() == before
