"""Who is trained on and who is scored: the hash, small sets, equal images."""

from __future__ import annotations

import hashlib
import random
import shutil
import tarfile
import zipfile
from pathlib import Path

import pytest

from captioner_training.prepare.files import ImageFiles, SourceImage, equal_images, read_location
from captioner_training.prepare.problems import Problems
from captioner_training.prepare.sources import select
from captioner_training.prepare.splits import Fractions
from tests.training.prepare.conftest import coco_json, read
from tests.training.prepare.layouts import photo


def test_splits_by_hash_are_near_their_share() -> None:
    names = [f"photo-{n}.jpg".encode() for n in range(10_000)]
    chosen = list(map(Fractions(val=0.1, test=0.2).draw, names))
    # Binomial: 1,000 and 2,000 expected, deviations 30 and 40.
    assert 880 < chosen.count("val") < 1120 and 1840 < chosen.count("test") < 2160
    for n in range(50):
        first = hashlib.sha256(names[n]).hexdigest()[:8]
        share = int(first, 16) / 16**8
        assert chosen[n] == ("val" if share < 0.1 else "test" if share < 0.3 else "train")
    assert {Fractions(val=0).draw(name) for name in names} == {"train"}


@pytest.mark.parametrize("fractions", [None, Fractions(val=0.2, test=0.3)])
def test_adding_a_photo_never_moves_another(tmp_path: Path, fractions: Fractions | None) -> None:
    for n in range(230):
        (tmp_path / f"{n:03}.jpg").write_bytes(bytes([n]) * 900)
    (tmp_path / "copy.jpg").write_bytes(bytes([7]) * 900)
    names = [*(f"{n:03}.jpg" for n in range(230)), "copy.jpg"]
    files = ImageFiles([tmp_path])
    earlier: dict[str, str] = {}
    for count in (1, 2, 3, 5, 9, 10, 11, 20, 199, 200, 230, 231):
        listed = [SourceImage(name, name, ("a",)) for name in names[:count]]
        images = select(listed, files, Problems(), fractions=fractions)[0]
        splits = {image.file_name: image.split for image in images}
        assert len(splits) == count and splits.items() >= earlier.items()
        earlier = splits
    assert earlier["copy.jpg"] == earlier["007.jpg"]
    assert {*earlier.values()} == {"train", "val", *(["test"] if fractions else [])}


def test_equal_images_are_found_wherever_they_lie(tmp_path: Path) -> None:
    one = random.Random(0).randbytes(20_000)
    (tmp_path / "a.jpg").write_bytes(one)
    (tmp_path / "b.jpg").write_bytes(one[:-1] + b"\0")  # of equal size, and equal in the middle
    (tmp_path / "c.jpg").write_bytes(one[1:])
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.add(tmp_path / "a.jpg", "d.jpg")
    for name, kind in ("e.zip", zipfile.ZIP_STORED), ("f.zip", zipfile.ZIP_DEFLATED):
        with zipfile.ZipFile(tmp_path / name, "w", kind) as archive:
            archive.writestr(f"{name[0]}.jpg", one)
    files = ImageFiles([tmp_path])
    found = [files.find(f"{letter}.jpg") for letter in "abcdef"]
    groups = equal_images([one.location for one in found if one])
    assert groups == [[0, 3, 4, 5], [1], [2]]


@pytest.mark.parametrize("layout", ["subfolders", "folders", "archives"])
def test_the_photos_of_the_split_itself_come_first(tmp_path: Path, layout: str) -> None:
    """Both splits number their photos alike; a photo that only the other has is still found."""
    photos = {"train": {"1.jpg": "1.jpg", "3.jpg": "3.jpg"}, "val": {"sub/1.jpg": "2.jpg"}}
    tables, places = list[str](), list[Path]()
    for split, names in photos.items():
        folder = tmp_path / "photos" / split
        for name, content in names.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(photo(content))
        captions = [(n, f"{n} in {split}") for n in (1, 3)]
        coco_json(tmp_path / f"{split}.json", {1: "1.jpg", 3: "3.jpg"}, captions)
        tables.append(f"{split}={tmp_path}/{split}.json")
        if layout == "archives":
            folder = Path(shutil.make_archive(str(tmp_path / split), "zip", folder))
        places.append(folder)
    places = [tmp_path / "photos"] if layout == "subfolders" else places
    data = read("coco-json", *tables, "--images", *places)
    assert {image.captions[0]: read_location(image.location) for image in data.images} == {
        "1 in train": photo("1.jpg"), "1 in val": photo("2.jpg"), "3 in val": photo("3.jpg"),
    }  # fmt: skip
