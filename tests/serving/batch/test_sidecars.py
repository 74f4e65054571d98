"""Sidecars: their names, and how existing files are treated."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner import Captioner
from captioner_serving.batch import BatchConfig, caption_batch
from captioner_serving.batch.wording import combine
from tests.serving.batch.conftest import Photos, Records
from tests.serving.batch.test_xmp import LIGHTROOM


@pytest.fixture
def caption(tiny: Captioner) -> Callable[..., Records]:
    """Caption photos with a sidecar each."""

    def run(sources: Any, sidecar: Any = "txt", output: Path | None = None, **more: Any) -> Records:
        config = BatchConfig(sidecar=sidecar, **more)
        return list(caption_batch(sources, output=output, config=config, captioner=tiny))

    return run


Caption = Callable[..., Records]


def test_text_sidecars(caption: Caption, photos: Photos) -> None:
    folder = photos(2)
    theirs = folder / "p001.txt"
    theirs.write_text("mine\n")

    def run(existing: str) -> tuple[str, str]:
        first, second = caption(folder, existing=existing)
        assert (folder / "p000.txt").read_text().startswith(first["caption"])
        return second["caption"], theirs.read_text()

    assert run("skip")[1] == "mine\n"
    for _ in range(2):  # doing it twice does it once
        ours, text = run("append")
        assert text == f"mine {ours}\n"
    assert run("overwrite")[1] == f"{ours}\n"
    theirs.write_bytes(b"\xef\xbb\xbfmine")
    assert run("prepend") == run("prepend") == (ours, f"{ours} mine\n")
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("old", "existing", "wanted"),
    [("", "append", "new"), ("renew", "append", "renew new"), ("newer", "prepend", "new newer")],
)
def test_combining(old: str | None, existing: Any, wanted: str | None) -> None:
    assert combine(old, "new", existing) == wanted


def test_json_sidecars_are_records(caption: Caption, photos: Photos) -> None:
    (record,) = caption(photos(1), "json")
    assert json.loads(Path(record["image"]).with_suffix(".json").read_text()) == record


def test_a_damaged_xmp_sidecar_stays_and_darktables_is_used(
    caption: Caption, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(3), tmp_path / "c.jsonl"
    (folder / "p001.xmp").write_text("<x:xmpmeta>not closed")
    (folder / "p002.jpg.xmp").write_text(LIGHTROOM)
    _, damaged, _ = records = caption(folder, "xmp", output)
    assert ["error" in record for record in records] == [False, True, False]
    assert damaged["error"]["type"] == "output-error"
    assert "p001.xmp is not XML" in damaged["error"]["detail"]
    assert (folder / "p001.xmp").read_text() == "<x:xmpmeta>not closed"
    assert "AltTextAccessibility" in (folder / "p002.jpg.xmp").read_text()
    assert not (folder / "p002.xmp").exists()
    (folder / "p001.xmp").unlink()
    (again,) = caption(folder, "xmp", output, retry_errors=True)
    assert "error" not in again


def test_photos_that_share_a_stem_have_sidecars_of_their_own(
    caption: Caption, photos: Photos
) -> None:
    """Two names of one file simulate a file system that ignores case."""
    folder = photos(4)
    Image.open(folder / "p001.jpg").save(folder / "p000.PNG")
    os.link(folder / "p002.jpg", folder / "p002.JPG")
    (folder / "p003.JPG").symlink_to("nowhere")
    caption([folder / name for name in ("p000.jpg", "p000.PNG", *("p001.jpg", "p002.jpg"))])
    caption(folder / "p003.jpg")
    made = sorted(path.name for path in folder.glob("*.txt"))
    assert made == ["p000.PNG.txt", "p000.jpg.txt", "p001.txt", "p002.txt", "p003.jpg.txt"]


def test_a_sidecar_that_fails_costs_no_caption_and_a_private_one_stays_private(
    caption: Caption, photos: Photos, tmp_path: Path
) -> None:
    folder, output = photos(2), tmp_path / "c.jsonl"
    failing, private = folder / "p000.txt", folder / "p001.txt"
    failing.mkdir()
    private.write_text("mine")
    private.chmod(0o600)
    first, second = caption(folder, "txt", output, existing="append")
    assert "error" in first and first["caption"] and "error" not in second
    assert private.stat().st_mode & 0o777 == 0o600
    failing.rmdir()
    (again,) = caption(folder, "txt", output, existing="append", retry_errors=True)
    assert again == {key: value for key, value in first.items() if key != "error"}
    assert failing.read_text() == first["caption"] + "\n"
    os.umask(mask := os.umask(0))
    assert failing.stat().st_mode & 0o777 == 0o666 & ~mask
    assert len(output.read_text().splitlines()) == 2
    assert not Path(f"{output}.errors.jsonl").exists()


@pytest.mark.parametrize("sidecar", ["txt", "json"])
def test_a_photo_is_not_its_own_sidecar(caption: Caption, photos: Photos, sidecar: str) -> None:
    (photo,) = photos(1).iterdir()
    odd = photo.rename(photo.with_suffix(f".{sidecar}"))
    other = Path(shutil.copy(odd, odd.with_suffix(".jpg")))
    data = odd.read_bytes()
    for name, problem in ((odd, "would be its own sidecar"), (other, "is not text")):
        (record,) = caption(name, sidecar, existing="overwrite")
        assert problem in record["error"]["detail"]
        assert odd.read_bytes() == other.read_bytes() == data


@pytest.mark.parametrize(
    ("names", "sidecars"),
    [
        (("photo", "photo.jpg", "photo.jpg_large"), ("photo", "photo.jpg", "photo.jpg_large")),
        (("photo.jpg", "photo.jpg.png"), ("photo", "photo.jpg.png")),
        (("a.b.jpg", "a.c.jpg", "a"), ("a.b", "a.c", "a")),
        (("photo.jpg", "photo.heic.orig"), ("photo", "photo.heic")),
    ],
)
def test_no_two_photos_share_a_sidecar(
    caption: Caption, photos: Photos, names: tuple[str, ...], sidecars: tuple[str, ...]
) -> None:
    """Whatever their suffixes, and in whatever order and runs they come."""
    folder = photos(len(names))
    for number, name in enumerate(names):
        (folder / f"p{number:03}.jpg").rename(folder / name)
    (folder / "photo.cr2").write_bytes(b"II*\0 a raw file is captioned by nobody")
    by_hand = [record for name in reversed(names) for record in caption(folder / name)]
    texts = {path.name: path.read_text() for path in folder.glob("*.txt")}
    captions = {Path(record["image"]).name: record["caption"] + "\n" for record in by_hand}
    wanted = {
        f"{sidecar}.txt": captions[name] for name, sidecar in zip(names, sidecars, strict=True)
    }
    assert texts == wanted
    caption([folder / name for name in names], existing="overwrite")
    assert {path.name: path.read_text() for path in folder.glob("*.txt")} == wanted


@pytest.mark.parametrize("blank", ["", "\n", " \t\r\n", "\ufeff\n"])
@pytest.mark.parametrize("sidecar", ["txt", "caption", "json"])
def test_a_blank_sidecar_is_filled(
    caption: Caption, photos: Photos, sidecar: str, blank: str
) -> None:
    path = photos(1) / f"p000.{sidecar}"
    path.write_text(blank)
    (record,) = caption(path.parent, sidecar)
    text = path.read_text()
    assert text == f"{record['caption']}\n" or json.loads(text) == record


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("kind", ["txt", "xmp"])
def test_a_link_is_followed_within_its_folder_alone(
    caption: Caption, photos: Photos, tmp_path: Path, kind: str, there: bool
) -> None:
    """A folder of photos may be untrusted, so links must not lead out of it."""
    folder = photos(2)
    theirs, inside = tmp_path / f"diary.{kind}", folder / "elsewhere"
    if there:
        theirs.write_text('<x:x xmlns:x="x"/>' if kind == "xmp" else "mine\n")
    before = theirs.exists() and theirs.read_bytes()
    links = [folder / f"p00{number}.{kind}" for number in range(2)]
    for link, place in zip(links, (f"../diary.{kind}", "elsewhere"), strict=True):
        link.symlink_to(place)
    out, within = caption(folder, kind, existing="overwrite")
    assert all(link.is_symlink() for link in links)
    if kind == "txt" or not there:
        assert out["error"]["detail"].startswith(f"{links[0]} is a symbolic link to ")
    assert (theirs.exists() and theirs.read_bytes()) == before and out["caption"]
    text = within["caption"]
    wanted = f">{text.capitalize()}.<" if kind == "xmp" else f"{text}\n"
    assert "error" not in within and wanted in inside.read_text()


@pytest.mark.parametrize("existing", ["skip", "overwrite"])
def test_a_sidecar_that_is_a_pipe_does_not_block(
    caption: Caption, photos: Photos, existing: str
) -> None:
    folder = photos(3)
    os.mkfifo(folder / "p000.txt")
    (folder / "p001.txt").mkdir()
    with (folder / "p002.txt").open("wb") as file:
        file.truncate(1 << 40)  # a hole
    details = [record["error"]["detail"] for record in caption(folder, existing=existing)]
    assert [detail.removeprefix(f"{folder}/") for detail in details] == [
        "p000.txt cannot be read: it is not a regular file",
        "p001.txt cannot be read: Is a directory",
        "p002.txt has 1,099,511,627,776 bytes, too many for a sidecar",
    ]
