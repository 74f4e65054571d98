"""Helpers that write and read data sets, a miniature COCO, and a web server that can misbehave."""

from __future__ import annotations

import contextlib
import io
import json
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from captioner.shared.files import file_digest
from captioner_training.data.scenes import draw_scene
from captioner_training.prepare import coco
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.sources import SourceData, read_source
from captioner_training.prepare.splits import Fractions
from tests.launcher import Run
from tests.training.prepare.layouts import write_photo
from tests.web import Handler, hosting

TRAIN, VAL = range(100, 108), range(200, 206)
# As in the real one, 2017 moved most of 2014's val into train; Karpathy's split knows three parts.
VAL_2017 = {200, 201}
KARPATHY = {**dict.fromkeys(TRAIN, "train"), 200: "val", 201: "val", 202: "test", 203: "test"}
KARPATHY |= {204: "restval", 205: "restval"}


def prepare(run: Run, to: Path, *arguments: object, status: int = 0) -> str:
    """Run the command; return its standard error."""
    result = run("prepare", *arguments, "--to", to, "--workers", 1)
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    return result.stderr


def read(
    kind: str, *arguments: object, columns: Columns | None = None, **shares: float
) -> SourceData:
    """Read what the command line `KIND PATH ... [--images PLACE ...]` names, without resizing."""
    paths, images = list(map(str, arguments)), list[str]()
    if "--images" in paths:
        at = paths.index("--images")
        paths, images = paths[:at], paths[at + 1 :]
    fractions = Fractions(**shares) if shares else None
    return read_source(kind, paths, images=images, columns=columns, fractions=fractions)


def names_of(data: SourceData) -> list[str]:
    return [image.file_name for image in data.images]


def captions_of(data: SourceData) -> dict[str, tuple[str, ...]]:
    return {image.file_name: image.captions for image in data.images}


def write_table(
    path: Path, rows: Mapping[str, str] | Sequence[str], head: str = "image,caption"
) -> Path:
    """Write a text table; `rows` are its lines, or the captions of photos by name."""
    if isinstance(rows, Mapping):
        rows = [f"{name},{text}" for name, text in rows.items()]
    path.write_text("\n".join([head, *rows]))
    return path


def coco_json(path: Path, images: Mapping[int, str], captions: Sequence[tuple[int, str]]) -> Path:
    content = {
        "images": [{"id": key, "file_name": name} for key, name in images.items()],
        "annotations": [
            {"id": i, "image_id": k, "caption": c} for i, (k, c) in enumerate(captions)
        ],
    }
    path.write_text(json.dumps(content))
    return path


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Eight small photos, no two alike, with their captions beside them."""
    for n in range(8):
        write_photo(tmp_path / "photos" / f"{n}.jpg")
        (tmp_path / "photos" / f"{n}.txt").write_text(f"caption {n}")
    return tmp_path / "photos"


@pytest.fixture
def bare(photos: Path) -> Path:
    """The photos without captions beside them."""
    for n in range(8):
        (photos / f"{n}.txt").unlink()
    return photos


def scene_jpeg(key: int) -> tuple[bytes, str]:
    """The drawn photo of an image id, 400 x 300 pixels, and its true caption."""
    scene = draw_scene(key, side=400)
    data = io.BytesIO()
    scene.image.resize((400, 300)).save(data, format="JPEG", quality=92)
    return data.getvalue(), scene.caption


def _file_name(key: int, year: int) -> str:
    if year == 2017:
        return f"{key:012}.jpg"
    return f"COCO_{'train' if key in TRAIN else 'val'}2014_{key:012}.jpg"


def _is_train(key: int, year: int) -> bool:
    return key not in VAL_2017 if year == 2017 else key in TRAIN


def write_miniature(folder: Path) -> None:
    """Write miniature copies of the files on COCO's and Karpathy's hosts."""
    for part in ("zips", "annotations"):
        (folder / part).mkdir(parents=True)
    for year in (2014, 2017):
        content: dict[str, dict[str, list[Any]]] = {
            split: {"images": [], "annotations": []} for split in ("train", "val")
        }
        for key in (*TRAIN, *VAL):
            split = "train" if _is_train(key, year) else "val"
            data, caption = scene_jpeg(key)
            image = {"id": key, "file_name": _file_name(key, year), "license": 4}
            content[split]["images"].append(image)
            for number in range(2):
                text = f"{caption}\n" if number else caption
                annotation = {"id": 10 * key + number, "image_id": key, "caption": text}
                content[split]["annotations"].append(annotation)
            kind = zipfile.ZIP_DEFLATED if key % 2 else zipfile.ZIP_STORED
            with zipfile.ZipFile(folder / "zips" / f"{split}{year}.zip", "a", kind) as archive:
                archive.writestr(f"{split}{year}/{image['file_name']}", data)
        path = folder / "annotations" / f"annotations_trainval{year}.zip"
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for split, values in content.items():
                values["licenses"] = [{"id": 4, "name": "Attribution License"}]
                archive.writestr(f"annotations/captions_{split}{year}.json", json.dumps(values))
                archive.writestr(f"annotations/instances_{split}{year}.json", "{}")
    images = [
        {"cocoid": key, "filename": _file_name(key, 2014), "split": split, "sentids": [1],
         "sentences": [{"raw": "x", "tokens": ["x"], "imgid": 0, "sentid": 1}]}
        for key, split in KARPATHY.items()
    ]  # fmt: skip
    with zipfile.ZipFile(folder / "caption_datasets.zip", "w") as archive:
        archive.writestr("dataset_coco.json", json.dumps({"images": images, "dataset": "coco"}))


@dataclass
class Behaviour:
    """How the server treats one path."""

    statuses: list[int] = field(default_factory=list)  # answers before it serves
    drops: list[int] = field(default_factory=list)  # bytes of body after which the line goes dead
    ranges: bool = True
    pause: float = 0.0  # seconds between blocks of 1,000 bytes


@dataclass
class Server:
    """A web server for a folder; `requests` are the path, Range and status of each GET."""

    folder: Path
    url: str = ""
    behaviours: dict[str, Behaviour] = field(default_factory=dict)
    requests: list[tuple[str, str | None, int]] = field(default_factory=list)

    def behave(self, path: str, **how: Any) -> None:
        self.behaviours[f"/{path}"] = Behaviour(**how)

    def gets(self, path: str) -> list[tuple[str | None, int]]:
        """Range and status of each GET of a path."""
        return [(asked, status) for name, asked, status in self.requests if name == f"/{path}"]


class _Handler(Handler):
    protocol_version = "HTTP/1.1"

    def __init__(self, owner: Server, *arguments: Any) -> None:
        self.owner = owner
        super().__init__(*arguments)

    def do_GET(self) -> None:  # noqa: N802 - called by http.server
        path = self.owner.folder / self.path.lstrip("/")
        how = self.owner.behaviours.get(self.path, Behaviour())
        data = path.read_bytes() if path.is_file() else b""
        asked, start, status = self.headers.get("Range"), 0, 200
        if asked and how.ranges:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            status = 206 if start < len(data) else 416
        if how.statuses or not path.is_file():
            status = how.statuses.pop(0) if how.statuses else 404
        body = data[start:] if status in (200, 206) else b""
        self.owner.requests.append((self.path, asked, status))
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body and how.drops:
            body = body[: how.drops.pop(0)]
            self.close_connection = True
        step = 1000 if how.pause else max(1, len(body))
        for at in range(0, len(body), step):
            self.wfile.write(body[at : at + step])
            time.sleep(how.pause)

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            super().handle()


@pytest.fixture(scope="session")
def miniature_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    write_miniature(folder)
    return folder


@pytest.fixture
def miniature(miniature_files: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The miniature COCO, which no test may change, with its sizes and checksums as published."""
    files = {
        path.relative_to(miniature_files).as_posix(): (
            path.stat().st_size, f"sha256:{file_digest(path)}",
        )
        for path in sorted(miniature_files.rglob("*.zip"))
    }  # fmt: skip
    monkeypatch.setattr(coco, "PUBLISHED", files)
    return miniature_files


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Server]]:
    """Start servers that end with the test."""
    with contextlib.ExitStack() as stack:

        def start(folder: Path) -> Server:
            server = Server(folder)
            server.url = stack.enter_context(hosting(partial(_Handler, server)))
            return server

        yield start
