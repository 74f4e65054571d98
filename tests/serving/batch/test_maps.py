"""Where the maps of photos lie, and over what they are drawn."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from PIL import ImageFile

from captioner import Captioner, OutputError
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.files import RunFiles
from captioner_serving.batch.inputs.photos import PhotoFile
from captioner_serving.batch.outputs.maps import MapWriter
from captioner_serving.batch.outputs.written import WrittenFiles, write_unnoted
from tests.serving.batch.conftest import Photos, draw


def test_maps_are_drawn_over_nothing_that_captioner_did_not_draw(
    tiny: Captioner, photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = photos(1) / "p000.jpg"
    caption = tiny.caption(photo)
    monkeypatch.chdir(tmp_path)
    maps = tmp_path / "maps"
    maps.mkdir()
    (maps / "file.png").write_bytes(b"mine")
    (tmp_path / "elsewhere.png").write_bytes(b"mine too")
    (maps / "link.png").symlink_to(tmp_path / "elsewhere.png")
    (maps / "dangling.png").symlink_to(tmp_path / "nowhere.png")
    os.mkfifo(maps / "pipe.png")
    logs = [WrittenFiles(RunFiles(tmp_path / f"{run}.jsonl")) for run in "ab"]
    for kind, log in zip(("overlay", "sheet"), logs, strict=True):
        writer = MapWriter(BatchConfig(maps=kind, maps_to="maps"), log.write)  # type: ignore[arg-type]
        for name, problem in {
            "file": "is there already, and is no map that Captioner drew: move it away",
            "link": "is there already",
            "dangling": "is there already",
            "pipe": "cannot be read: it is not a regular file",
        }.items():
            with pytest.raises(OutputError, match=f"maps/{name}.png {problem}"):
                writer.write(PhotoFile(name=name, file=str(photo)), caption)
        writer.write(PhotoFile(name="free", file=str(photo)), caption)
        if kind == "overlay":
            overlay = (maps / "free.png").read_bytes()
    assert (maps / "free.png").read_bytes() != overlay
    for log in logs:
        log.close()
    logs[0].delete_files()  # of a run whose map another has replaced
    assert (maps / "free.png").read_bytes() != overlay
    assert not (tmp_path / "nowhere.png").exists()
    assert (maps / "file.png").read_bytes() == b"mine"
    assert (tmp_path / "elsewhere.png").read_bytes() == b"mine too"


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


def test_the_map_of_another_photo_is_not_drawn_over(
    tiny: Captioner, photos: Photos, tmp_path: Path
) -> None:
    one, other = sorted(map(str, photos(2).iterdir()))
    maps = tmp_path / "maps"
    writer = MapWriter(BatchConfig(maps="overlay", maps_to=str(maps)), write_unnoted)
    for name in ("a/x.jpg", "./a/x.jpg"):  # which is a
        writer.write(PhotoFile(name=name, file=one), tiny.caption(one))
    (path,) = maps.rglob("*.png")
    before = path.read_bytes()
    for name in ("../a/x.jpg", "/a/x.jpg"):
        with pytest.raises(OutputError, match="is the map of another photo"):
            writer.write(PhotoFile(name=name, file=other), tiny.caption(other))
    assert path.read_bytes() == before and len(list(maps.rglob("*.png"))) == 1
