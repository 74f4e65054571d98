"""The training set: reviewed photos with their captions, and the commands that train on it."""

from __future__ import annotations

import shlex
import zipfile
from pathlib import Path

import pytest
from PIL import Image

from captioner_training.data.reading import read_dataset
from tests.launcher import Run
from tests.serving.server.conftest import SAMPLES
from tests.serving.server.page.conftest import Visit

pytestmark = pytest.mark.slow


def download(visit: Visit, folder: Path) -> Path:
    saved = visit.save(".train")
    path = folder / saved.suggested_filename
    saved.save_as(path)
    visit.tab.wait_for_selector(".commands:not([hidden])")
    return path


def commands(visit: Visit) -> list[list[str]]:
    lines = [shlex.split(line) for line in visit.tab.locator(".commands code").all_inner_texts()]
    assert [line[0] for line in lines] == ["captioner", "captioner"]
    return [line[1:] for line in lines]


def test_reviewed_photos_and_their_captions_are_prepared(
    visit: Visit, tmp_path: Path, run_main: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    tab = visit.tab
    (tmp_path / "notes.jpg").write_bytes(b"no photo")
    visit.choose(tmp_path / "notes.jpg", state="failed")
    tab.click(".train")
    assert "No photos are reviewed yet" in tab.inner_text(".answer")
    assert not tab.locator(".commands").is_visible()
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
    tab.locator(".strip button[title='rocket.jpg']").click()
    tab.click(".use")
    tab.fill(".text", "Lights, and a rocket.\nAt night.")
    tab.locator(".strip button[title='größe 1:2.png']").click()  # doubtful: left to review
    tab.locator(".strip button[title='chelsea.jpg']").click()
    tab.check(".decorative")
    path = download(visit, tmp_path)
    assert "Saved 2 reviewed photos of 5." in tab.inner_text(".answer")
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        names = ["001-coffee.jpg", "001-coffee.txt", "002-rocket.jpg", "002-rocket.txt"]
        assert archive.namelist() == [*names, "captions.jsonl"]
        assert archive.read("001-coffee.jpg") == (SAMPLES / "coffee.jpg").read_bytes()
    monkeypatch.chdir(tmp_path)
    prepare, _ = commands(visit)
    result = run_main(*prepare, "--workers", 1, "--val", 0)
    assert result.returncode == 0, result.stderr
    images = {
        image.name: list(image.captions) for image in read_dataset(Path("mine"), split="train")
    }
    assert images == {
        "captions/001-coffee.jpg": [said],
        "captions/002-rocket.jpg": ["Lights, and a rocket.", "At night."],
    }


def test_the_commands_of_the_page_fine_tune_on_what_it_saved(
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
    prepare, train = commands(visit)
    assert run_main(*prepare).returncode == 0
    result = run_main(*train, "--stages.1.epochs", 1, "--data.minimum_count", 1)
    assert result.returncode == 0, result.stderr
    assert run_main("caption", "0.jpg", "--checkpoint", "runs/mine").returncode == 0
