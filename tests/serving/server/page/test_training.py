"""The training set: reviewed photos with their captions, and the commands that train on it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from PIL import Image

from captioner_training.data.reading import read_dataset
from tests.launcher import Run
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit

pytestmark = pytest.mark.slow

# The README's.
PREPARE = ["prepare", "folder", "captions.zip", "--to", "mine"]
TRAIN = ["train", "finetune", "--data.root", "mine", "--out", "runs/mine"]


def download(visit: Visit, folder: Path) -> Path:
    saved = visit.save(".train")
    path = folder / saved.suggested_filename
    saved.save_as(path)
    return path


def test_reviewed_photos_and_their_captions_are_prepared(
    visit: Visit, tmp_path: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = visit.tab
    (tmp_path / "notes.jpg").write_bytes(b"no photo")
    visit.choose(tmp_path / "notes.jpg", state="failed")
    tab.click(".train")
    assert "No photos are reviewed yet" in tab.inner_text(".answer")
    tab.click(".dismiss")
    tab.click(".removed button")  # also of the only photo
    tab.click(".dismiss")
    assert tab.text_content(".answer") == "" and not tab.locator(".strip .clear").is_visible()
    with Image.open(SAMPLES / "camera.jpg") as photo:
        photo.save(tmp_path / "größe 1:2.png")
    names = [SAMPLES / "coffee.jpg", SAMPLES / "rocket.jpg", tmp_path / "größe 1:2.png"]
    visit.choose(*names, SAMPLES / "chelsea.jpg", tmp_path / "notes.jpg")
    visit.strip()
    said = visit.record()["caption"]
    tab.press(".text", "Enter")
    tab.locator(".strip button[title='größe 1:2.png']").click()
    tab.fill(".text", "A man.\nAnd a camera.")
    tab.locator(".strip button[title='rocket.jpg']").click()  # doubtful: left to review
    tab.locator(".strip button[title='chelsea.jpg']").click()
    tab.check(".decorative")
    path = download(visit, tmp_path)
    assert "Saved 2 reviewed photos of 5." in tab.inner_text(".answer")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = ["001-coffee.jpg", "001-coffee.txt", "002-größe 1_2.png", "002-größe 1_2.txt"]
        assert archive.namelist() == [*names, "captions.jsonl"]
        assert archive.read("001-coffee.jpg") == (SAMPLES / "coffee.jpg").read_bytes()
    monkeypatch.chdir(tmp_path)
    result = run_main(*PREPARE, "--workers", 1, "--val", 0)
    assert result.returncode == 0, result.stderr
    images = {
        image.name: list(image.captions) for image in read_dataset(Path("mine"), split="train")
    }
    assert images == {
        "captions/001-coffee.jpg": [said],
        "captions/002-größe 1_2.png": ["A man.", "And a camera."],
    }


def test_the_training_set_of_the_page_fine_tunes_the_model(
    visit: Visit, tmp_path: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = [tmp_path / f"{number}.jpg" for number in range(12)]
    for number, path in enumerate(paths):
        with Image.open(SAMPLES / "coffee.jpg") as photo:
            photo.resize((300 + number, 200)).save(path)
    visit.choose(*paths)
    visit.strip()
    for _ in paths:
        visit.settled()
        visit.tab.press(".text", "Enter")
    download(visit, tmp_path)
    monkeypatch.chdir(tmp_path)
    assert run_main(*PREPARE).returncode == 0
    result = run_main(*TRAIN, "--stages.1.epochs", 1, "--data.minimum_count", 1)
    assert result.returncode == 0, result.stderr
    assert run_main("caption", "0.jpg", "--checkpoint", "runs/mine").returncode == 0
