"""Helpers that write and read data sets, a miniature COCO, and a web server that can misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import threading
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from captioner_training.data.scenes import draw_scene
from captioner_training.prepare import coco
from captioner_training.prepare.columns import Columns
from captioner_training.prepare.listing import Request
from captioner_training.prepare.selection import SourceData
from captioner_training.prepare.sources import read_source
from captioner_training.prepare.splits import Fractions
from tests.launcher import Run
from tests.training.prepare.layouts import write_photo

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
    request = Request(paths=paths, images=images, columns=columns or Columns())
    return read_source(kind, request, fractions=Fractions(**shares) if shares else None)


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


def published(folder: Path) -> dict[str, tuple[int, str | None]]:
    """Return the sizes and checksums of a mirror's files, as `coco.PUBLISHED` has them."""
    return {
        path.relative_to(folder).as_posix(): (
            path.stat().st_size,
            f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",
        )
        for path in sorted(folder.rglob("*.zip"))
    }


@dataclass
class Behaviour:
    """How the server treats one path."""

    statuses: list[int] = field(default_factory=list)  # answers before it serves
    drops: list[int] = field(default_factory=list)  # bytes of body after which the line goes dead
    ranges: bool = True
    pause: float = 0.0  # seconds between blocks of 1,000 bytes


class Server:
    """A web server for a folder; `requests` are (method, path, Range, status)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.behaviours: dict[str, Behaviour] = {}
        self.requests: list[tuple[str, str, str | None, int]] = []
        server = self

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_address[1]}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.05,))
        self._thread.start()

    def behave(self, path: str, **how: Any) -> None:
        self.behaviours[f"/{path}"] = Behaviour(**how)

    def gets(self, path: str) -> list[tuple[str | None, int]]:
        """Range and status of each GET of a path."""
        return [
            (r, code) for method, p, r, code in self.requests if (method, p) == ("GET", f"/{path}")
        ]

    def close(self) -> None:
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: Server
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._serve(body=False)

    def do_GET(self) -> None:
        self._serve(body=True)

    def _serve(self, *, body: bool) -> None:
        path = self.owner.folder / self.path.lstrip("/")
        how = self.owner.behaviours.get(self.path, Behaviour())
        if not path.is_file():
            self._answer(404)
            return
        if body and how.statuses:
            self._answer(how.statuses.pop(0))
            return
        data = path.read_bytes()
        start, status = 0, 200
        asked = self.headers.get("Range")
        if asked and how.ranges:
            start, status = int(asked.removeprefix("bytes=").split("-")[0]), 206
            if start >= len(data):
                self._answer(416, content_range=f"bytes */{len(data)}")
                return
        self._log(status)
        self.send_response(status)
        length = len(data) - start
        self.send_header("Content-Length", str(length))
        if status == 206:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self.end_headers()
        if body:
            self._send(data[start:], how)

    def _send(self, data: bytes, how: Behaviour) -> None:
        limit = how.drops.pop(0) if how.drops else None
        data = data[:limit]
        step = 1000 if how.pause else max(1, len(data))
        for at in range(0, len(data), step):
            self.wfile.write(data[at : at + step])
            time.sleep(how.pause)
        if limit is not None:
            self.close_connection = True

    def _answer(self, status: int, *, content_range: str | None = None) -> None:
        self._log(status)
        self.send_response(status)
        self.send_header("Content-Length", "0")
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        self.end_headers()

    def _log(self, status: int) -> None:
        self.owner.requests.append((self.command, self.path, self.headers.get("Range"), status))

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # the client was killed
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="session")
def miniature_files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("coco")
    write_miniature(folder)
    return folder


@pytest.fixture
def miniature(miniature_files: Path, sign: Callable[[Path], None]) -> Path:
    """The miniature COCO, which no test may change."""
    sign(miniature_files)
    return miniature_files


@pytest.fixture
def sign(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], None]:
    """Publish a mirror's files with the checksums that they have now."""
    return lambda folder: monkeypatch.setattr(coco, "PUBLISHED", published(folder))


@pytest.fixture
def serve() -> Iterator[Any]:
    """Start servers that end with the test."""
    servers: list[Server] = []

    def start(folder: Path) -> Server:
        servers.append(Server(folder))
        return servers[-1]

    yield start
    for server in servers:
        server.close()
