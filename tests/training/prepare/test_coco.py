"""`captioner prepare coco` against a miniature of its hosts: commands in processes, real kills."""

from __future__ import annotations

import io
import json
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from captioner_training.data.manifest import Manifest
from captioner_training.data.reading import read_dataset
from captioner_training.data.scenes import draw_scene
from captioner_training.prepare import assembly, coco
from captioner_training.prepare.coco import remote_files
from tests.conftest import read_tree
from tests.launcher import Run, environment


def prepare(run: Run, to: Path, url: str, *options: object) -> subprocess.CompletedProcess[str]:
    return run("prepare", "coco", "--to", to, "--mirror", url, "--workers", 1, *options)


@pytest.mark.parametrize(
    ("options", "splits", "name"),
    [
        ((), {"train": 10, "val": 2, "test": 2}, "coco2014-karpathy"),
        (("--year", 2017, "--split", "official"), {"train": 12, "val": 2}, "coco2017-official"),
    ],
)
def test_each_year_and_split(
    run_main: Run, miniature: Path, serve: Any, tmp_path: Path,
    options: tuple[object, ...], splits: dict[str, int], name: str,
) -> None:  # fmt: skip
    server = serve(miniature)
    to = tmp_path / "coco"
    result = prepare(run_main, to, server.url, *options)
    assert (result.returncode, result.stdout.strip()) == (0, str(to)), result.stderr
    manifest = Manifest.load(to)
    assert manifest.name == name and manifest.name in result.stderr
    assert {split: found.images for split, found in manifest.splits.items()} == splits
    assert manifest.licence is not None and "CC BY 4.0" in manifest.licence
    assert not (to / ".prepare").exists()  # the downloads have served
    images = read_dataset(to, split="val")
    assert [image.id for image in images] == [200, 201, 202, 203, 204, 205][: splits["val"]]
    for image in images[:2]:
        assert isinstance(image.id, int)
        scene = draw_scene(image.id, side=400)
        assert image.captions == (scene.caption, scene.caption)
        stored = Image.open(io.BytesIO(image.store.read(image.name)))
        assert stored.size == (341, 256)  # 400 x 300 with a short side of 256
        small = (one.convert("RGB").resize((8, 6)).tobytes() for one in (stored, scene.image))
        assert max(abs(a - b) for a, b in zip(*small, strict=True)) < 12
    row = next(manifest.rows(to, "train"))
    assert (row.width, row.height, row.licence) == (400, 300, "Attribution License")
    with tarfile.open(to / "train-00000.tar") as tar:
        about = tar.extractfile(f"{row.key}.json")
        assert about is not None
        assert json.load(about)["licence"] == "Attribution License"
    asked = len(server.requests)
    again = prepare(run_main, to, server.url, *options)
    assert again.returncode == 0 and len(server.requests) == asked  # nothing is fetched twice
    other = prepare(run_main, to, server.url, *options, "--size", 128)
    assert other.returncode == 1 and "has another data set or version" in other.stderr


def test_free_disk_is_asked_before_the_first_byte(
    run_main: Run, miniature: Path, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(miniature)
    monkeypatch.setitem(coco.PUBLISHED, "zips/train2014.zip", (10**15, None))
    result = prepare(run_main, tmp_path / "c", f"{server.url}/")
    assert result.returncode == 1 and "need 1250000.0 GB" in result.stderr
    assert server.requests == []


def test_files_come_from_the_hosts_that_publish_them() -> None:
    """Small ones first."""
    images, karpathy = "http://images.cocodataset.org", "https://cs.stanford.edu/people/karpathy"
    assert [*remote_files(2014, karpathy=True)] == [
        f"{images}/annotations/annotations_trainval2014.zip",
        f"{karpathy}/deepimagesent/caption_datasets.zip",
        f"{images}/zips/val2014.zip",
        f"{images}/zips/train2014.zip",
    ]
    files = remote_files(2014, karpathy=False, mirror="https://mirror/coco/")
    assert files["https://mirror/coco/zips/val2014.zip"] == (
        6_645_013_297, "md5:a3d79f5ed8d289b7a7554ce06a5782b3",
    )  # fmt: skip


@pytest.mark.slow
def test_killed_while_downloading_and_while_preparing(
    miniature: Path, run_main: Run, serve: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = serve(miniature)
    to = tmp_path / "coco"
    arguments = ["prepare", "coco", "--to", to, "--mirror", server.url, "--workers", 1]
    monkeypatch.setattr(assembly, "SHARD_IMAGES", 2)
    server.behave("zips/train2014.zip", pause=0.02)
    _kill_when(arguments, lambda: _size(to / ".prepare/downloads/train2014.zip.part") > 20_000)
    assert not (to / "manifest.json").exists()
    server.behaviours.clear()
    _kill_when(arguments, lambda: len(list((to / ".prepare").glob("*.tar"))) >= 2)
    assert not (to / "manifest.json").exists()
    result = run_main(*arguments)
    assert result.returncode == 0, result.stderr
    codes = [code for _, code in server.gets("zips/train2014.zip")]
    assert codes == [200, 206]  # the rest of it, once
    whole = tmp_path / "whole"
    run_main(*arguments[:3], whole, *arguments[4:])
    assert read_tree(to) == read_tree(whole)


SMALL_SHARDS = """
import json, sys
from captioner.cli import main
from captioner_training.prepare import assembly, coco
assembly.SHARD_IMAGES, coco.PUBLISHED = 2, json.loads(sys.argv[1])
sys.exit(main(sys.argv[2:]))
"""


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _kill_when(arguments: list[object], ready: Callable[[], bool]) -> None:
    """Start the command and kill -9 it at a moment of its work."""
    command = [sys.executable, "-c", SMALL_SHARDS, json.dumps(coco.PUBLISHED)]
    process = subprocess.Popen(
        [*command, *map(str, arguments)],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment(),
    )  # fmt: skip
    for _ in range(150_000):
        if ready() or process.poll() is not None:
            break
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait(timeout=300) == -signal.SIGKILL, "it ended before it could be killed"
