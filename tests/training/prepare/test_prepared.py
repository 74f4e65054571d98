"""A prepared data set: complete or absent, readable by webdataset, usable for training."""

from __future__ import annotations

import io
import json
import resource
import shlex
import signal
import subprocess
import time
from functools import partial
from pathlib import Path

import pytest
from PIL import Image

from captioner import DataError
from captioner.cli import main
from captioner_training.data.manifest import Manifest
from captioner_training.data.reading import read_dataset
from captioner_training.data.scenes import write_scenes
from captioner_training.prepare import assembly
from captioner_training.run_folder import lock_folder
from tests import launcher
from tests.conftest import read_tree
from tests.launcher import Run
from tests.process_tree import children
from tests.refusals import check_refusals
from tests.training.prepare.conftest import prepare as run_prepare
from tests.training.runs import OWN


@pytest.fixture(scope="session")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Drawn scenes in COCO's format: 60 to train on, 20 to validate on."""
    folder = tmp_path_factory.mktemp("scenes")
    write_scenes(folder, splits={"train": 60, "val": 20}, seed=5)
    return folder


def of(scenes: Path) -> list[str]:
    """Return the kind and places of the scenes, for the command line."""
    tables = [f"{split}={scenes}/captions_{split}.json" for split in ("train", "val")]
    return ["coco-json", *tables, "--images", f"{scenes}/train-00.tar", f"{scenes}/val-00.tar"]


def command(scenes: Path, to: Path, *options: object) -> list[str]:
    return ["prepare", *of(scenes), "--to", str(to), "--workers", "1", *map(str, options)]


@pytest.fixture(scope="session")
def prepared(scenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenes prepared, which no test may change."""
    to = tmp_path_factory.mktemp("prepared") / "set"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assembly, "SHARD_IMAGES", 16)
        assert main(command(scenes, to)) == 0
    return to


@pytest.fixture
def own(prepared: Path, tmp_path: Path) -> Path:
    """A copy of the prepared set that a test may damage."""
    subprocess.run(["cp", "-r", prepared, tmp_path / "own"], check=True)
    return tmp_path / "own"


def test_the_same_images_come_out_by_split(prepared: Path, scenes: Path) -> None:
    for split, count, shards in ("train", 60, 4), ("val", 20, 2):
        there = read_dataset(scenes, split=split)  # the plain layout is a data set too
        here = read_dataset(prepared, split=split)
        assert len(here) == count
        assert len(Manifest.load(prepared).splits[split].shards) == shards
        for a, b in zip(here, there, strict=True):
            assert (a.name, a.id, a.captions, a.words) == (b.name, b.id, b.captions, b.words)
            assert a.store.read(a.name) == b.store.read(b.name)  # 128 pixels: stored as they were


def test_photos_are_stored_as_a_viewer_sees_them(run_main: Run, tmp_path: Path) -> None:
    folder, to = tmp_path / "photos", tmp_path / "to"
    folder.mkdir()
    picture = Image.new("RGB", (800, 400), "blue")
    picture.paste("red", (0, 0, 400, 400))  # the left half
    exif = Image.Exif()
    for turn in (5, 6):  # mirrored along its diagonal, turned a quarter clockwise: red on top
        exif[0x0112] = turn
        picture.save(folder / f"turned{turn}.jpg", exif=exif, quality=95)
    picture.resize((80, 40)).save(folder / "small-turned.jpg", exif=exif)
    picture.resize((100, 150)).save(folder / "exact.jpg")
    Image.new("RGBA", (300, 900), (0, 0, 0, 0)).save(folder / "clear.png")  # shown on white
    Image.new("RGB", (90, 50), "green").save(folder / "small.png")
    for path in list(folder.iterdir()):
        path.with_suffix(".txt").write_text("a caption")
    options = ("--size", 100, "--quality", 30, "--val", 0)
    assert "split: drawn, 100/0/0\n" in run_prepare(run_main, to, "folder", folder, *options)
    rows = {row.file_name: row for row in Manifest.load(to).rows(to, "train")}
    assert {name: (row.width, row.height) for name, row in rows.items()} == {
        "turned5.jpg": (400, 800), "turned6.jpg": (400, 800), "small-turned.jpg": (40, 80),
        "exact.jpg": (100, 150), "clear.png": (300, 900), "small.png": (90, 50),
    }  # fmt: skip
    picture.save(coarse := io.BytesIO(), "JPEG", quality=30)
    images = {image.name: image for image in read_dataset(to, split="train")}
    stored = {name: image.store.read(name) for name, image in images.items()}
    # Not larger than asked for: the bytes are the original's.
    assert stored.pop("exact.jpg") == (folder / "exact.jpg").read_bytes()
    opened = {name: Image.open(io.BytesIO(data)) for name, data in stored.items()}
    for name, image in opened.items():
        assert image.quantization == Image.open(coarse).quantization and not image.getexif()
        small = name.startswith("small")  # never enlarged
        assert min(image.size) == 100 or (
            small and image.size == (rows[name].width, rows[name].height)
        )
    for turn in (5, 6):
        top, bottom = (opened[f"turned{turn}.jpg"].getpixel((50, y)) for y in (20, 180))
        assert top[0] > 200 > 50 > top[2] and bottom[2] > 200 > 50 > bottom[0]
    assert min(opened["clear.png"].getpixel((50, 50))) > 250


# webdataset leaves closing its files to the collector.
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_webdataset_reads_the_shards(prepared: Path) -> None:
    import webdataset

    shards = str(prepared / "train-{00000..00003}.tar")
    found = list(webdataset.WebDataset(shards, shardshuffle=False).decode("pil"))
    here = read_dataset(prepared, split="train")
    assert [one["json"] for one in found] == [
        {
            "id": image.id, "file_name": image.name, "split": "train",
            "captions": [*image.captions], "width": 128, "height": 128,
        }
        for image in here
    ]  # fmt: skip
    assert {one["jpg"].size for one in found} == {(128, 128)}
    assert [one["__key__"] for one in found] == [f"train-{n:07}" for n in range(60)]


@pytest.mark.parametrize(
    ("name", "old", "new", "message"),
    [
        ("train-00002.tar", b"", None, r"train-00002\.tar cannot be read: No such file"),
        ("train-00002.tar", b"\0" * 100, b"", r"-00002\.tar has .* bytes, but .* in the manifest"),
        ("val.index.jsonl", b"circle", b"square", r"val\.index\.jsonl has changed"),
        ("manifest.json", b'"version": 1', b'"version": 2', r"not a valid manifest \(version"),
        ("manifest.json", b"train-00002.tar", b"../train-00002.tar",
         r"not a valid manifest \(splits\.train\.shards\.2\.file"),
        ("manifest.json", b"", None, "own is not a prepared data set; prepare it first"),
    ],
)  # fmt: skip
def test_damage_is_named(own: Path, name: str, old: bytes, new: bytes | None, message: str) -> None:
    path = own / name
    if new is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes().replace(old, new))
    with pytest.raises(DataError, match=message):
        read_dataset(own, split="val")


def test_workers_do_not_outlive_a_killed_command(scenes: Path, tmp_path: Path) -> None:
    process = launcher.start(*command(scenes, tmp_path / "to", "--workers", 2))
    workers: list[int] = []
    while len(workers) < 2 and process.poll() is None:
        time.sleep(0.005)
        workers = children(process.pid)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)  # its workers have its pipes: they have ended when these end
    assert len(workers) >= 2 and process.returncode == -signal.SIGKILL


LARGE_SHARDS = [
    "manifest.json", "train-00000.tar", "train.index.jsonl", "val-00000.tar", "val.index.jsonl",
]  # fmt: skip


def test_a_folder_holds_one_data_set(
    run_main: Run, scenes: Path, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, mine = read_tree(own), own / "backup-00001.tar"
    monkeypatch.setattr(assembly, "SHARD_IMAGES", 16)
    run_prepare(run_main, own, *of(scenes))
    said = run_prepare(run_main, own, *of(scenes), "--size", 64, status=1)
    assert "has another data set or version" in said and "--force" in said
    assert read_tree(own) == before
    mine.write_text("mine")
    monkeypatch.setattr(assembly, "SHARD_IMAGES", 2000)
    run_prepare(run_main, own, *of(scenes), "--size", 64, "--force")
    assert mine.read_text() == "mine"
    mine = mine.rename(own / "train-00001.tar")  # a name that the next one needs
    # Fewer shards, and none of the old ones.
    assert sorted(read_tree(own)) == sorted([*LARGE_SHARDS, mine.name])
    monkeypatch.setattr(assembly, "SHARD_IMAGES", 16)
    said = run_prepare(run_main, own, *of(scenes), "--force", status=1)
    assert "train-00001.tar exists and belongs to" in said and mine.read_text() == "mine"
    assert Manifest.load(own).image.short_side == 64  # the old data set is complete
    mine.unlink()
    run_prepare(run_main, own, *of(scenes), "--force")
    assert read_tree(own) == before


def test_files_of_an_interrupted_move_are_replaced(run_main: Run, scenes: Path, own: Path) -> None:
    """Killed while the files were moved into place, before the manifest."""
    (own / ".prepare").mkdir()
    (own / "manifest.json").rename(own / ".prepare" / "manifest.json")
    with pytest.raises(DataError, match=r"own is not finished: run the same `captioner prepare`"):
        read_dataset(own, split="val")
    run_prepare(run_main, own, *of(scenes), "--size", 64)
    assert sorted(read_tree(own)) == LARGE_SHARDS


def test_files_of_something_else_are_left_alone(
    run_main: Run, scenes: Path, tmp_path: Path
) -> None:
    to = tmp_path / "home"
    to.mkdir()
    (to / "train-00000.tar").write_text("mine")
    assert "contains other files" in run_prepare(run_main, to, *of(scenes), "--force", status=1)
    (to / "manifest.json").write_text('{"name": "an app"}')
    said = run_prepare(run_main, to, *of(scenes), "--force", status=1)
    assert "is not a valid manifest" in said
    assert (to / "train-00000.tar").read_bytes() == b"mine" and len([*to.iterdir()]) == 2
    (tmp_path / "file").write_text("")
    assert "cannot be written" in run_prepare(run_main, tmp_path / "file", *of(scenes), status=1)


def test_a_second_command_in_the_same_folder_is_refused(
    run_captioner: Run, scenes: Path, tmp_path: Path
) -> None:
    with lock_folder(tmp_path / "to" / ".prepare" / "lock", command="prepare", folder=tmp_path):
        result = run_captioner(*command(scenes, tmp_path / "to"))
    assert result.returncode == 1 and "another `captioner prepare` is running" in result.stderr


def test_a_full_disk_is_reported_and_leaves_no_partial_files(
    run_captioner: Run, scenes: Path, tmp_path: Path
) -> None:
    to = tmp_path / "to"
    limit = partial(resource.setrlimit, resource.RLIMIT_FSIZE, (60_000, 60_000))
    result = run_captioner(*command(scenes, to), preexec_fn=limit)
    assert result.returncode == 1, result.stderr
    assert "train-00000.tar cannot be written: File too large" in result.stderr
    assert "Traceback" not in result.stderr and not to.exists()


def test_options_that_cannot_work(run_main: Run, scenes: Path, tmp_path: Path) -> None:
    line = shlex.join(command(scenes, tmp_path / "to"))
    refused = {
        f"{line} --size 0": (2, "size is 0; it must be at least 1"),
        f"{line} --workers 0": (2, "workers is 0; it must be at least 1"),
        f"{line} --quality 101": (2, "quality is 101; it must be from 1 to 100"),
        f"{line} --val 1.5": (2, "must be fractions from 0 to 1"),
        f"{line} --val -0.1 --test 0.2": (2, "--val is -0.1, --test is 0.2; "),
        f"{line} --val 0.6 --test 0.4": (2, "sum below 1"),
        f"prepare folder {tmp_path} a.zip --to to": (2, "name either one folder, or tar or zip f"),
    }
    check_refusals(run_main, refused, tmp_path)


@pytest.mark.slow
def test_a_prepared_set_is_trained_on_and_scored(
    run_main: Run, prepared: Path, tmp_path: Path
) -> None:
    recipe = tmp_path / "own.yaml"
    recipe.write_text(OWN.replace("[data]", "['.']"))
    options = ("--data.root", prepared, "--out", tmp_path / "run", "--max-steps", 1)
    result = run_main("train", recipe, *options)
    assert result.returncode == 0, result.stderr
    options = ("--checkpoint", result.stdout.strip(), "--report", tmp_path / "report")
    result = run_main("evaluate", prepared, *options)
    assert result.returncode == 0, result.stderr
    rows = json.loads((tmp_path / "report" / "report.json").read_text())["per_image"]
    images = read_dataset(prepared, split="val")
    assert [row["name"] for row in rows] == [image.name for image in images]
