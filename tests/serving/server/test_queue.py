"""The queue of the model: order of clients, costs, and which photos share a batch."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from http.client import HTTPResponse
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from PIL import Image

from captioner.caption import Caption
from captioner.captioner import Captioner, PreparedImage
from captioner.checkpoint import Checkpoint
from captioner.generation.config import GenerationConfig
from captioner_serving.server.batcher import Batcher
from tests.captioner.pictures import encode
from tests.serving.server.running import bindable, client_at, serving, until

pytestmark = pytest.mark.slow

COSTLY = {"beam_size": "20", "captions": "20", "check_attention": "true"}


class Model(Captioner):
    def __init__(self, checkpoint: Checkpoint) -> None:
        super().__init__(checkpoint)
        self.going = threading.Event()
        self.batches: list[tuple[list[int], GenerationConfig, bool]] = []

    def caption_prepared(
        self,
        images: Sequence[PreparedImage],
        config: GenerationConfig | None = None,
        *,
        check_attention: bool = False,
    ) -> list[Caption]:
        assert config is not None
        # A photo is of one grey, by which it is known.
        self.batches.append(([int(one.pixels.max()) for one in images], config, check_attention))
        assert self.going.wait(300)
        return super().caption_prepared(images, config, check_attention=check_attention)


@pytest.fixture
def model(tiny_checkpoint: Checkpoint) -> Iterator[Model]:
    made = Model(tiny_checkpoint)
    yield made
    made.going.set()


@pytest.fixture
def url(model: Model) -> Iterator[str]:
    with serving(model) as address:
        yield address
        model.going.set()


def grey(level: int) -> bytes:
    return encode(Image.new("RGB", (48, 32), (level,) * 3), "PNG")


@contextmanager
def waiting(
    url: str, level: int, fields: dict[str, str] | None = None, address: str = "127.0.0.1"
) -> Iterator[socket.socket]:
    """Send a photo, and leave the connection open during the block."""
    files = {"image": ("x.png", grey(level))}
    request = httpx.Request("POST", f"{url}/api/caption", files=files, data=fields or {})
    lines = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    where = urlsplit(url)
    place = (str(where.hostname), where.port or 80)
    with socket.create_connection(place, 300, (bindable(address), 0)) as peer:
        peer.sendall(f"POST /api/caption HTTP/1.1\r\n{lines}\r\n".encode() + request.read())
        yield peer


def answer(peer: socket.socket) -> dict[str, Any]:
    response = HTTPResponse(peer)
    response.begin()
    body: dict[str, Any] = json.loads(response.read())
    return body


def last(peer: socket.socket) -> dict[str, Any]:
    (record,) = answer(peer)["records"]
    return record  # type: ignore[no-any-return]


@pytest.fixture(autouse=True)
def queued(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """The images that were decoded and wait, or have waited, for the model."""
    photos: list[object] = []
    submit = Batcher.submit

    def noted(batcher: Batcher, *order: Any) -> Any:
        future = submit(batcher, *order)
        photos.append(future)
        return future

    monkeypatch.setattr(Batcher, "submit", noted)
    return photos


def test_photos_of_unlike_settings_never_share_a_batch(
    styled: Checkpoint, queued: list[object]
) -> None:
    settings = [
        {}, {"captions": "3"}, {"beam_size": "2"}, {"style": "short"}, {"check_attention": "true"},
        {"check_attention": "true", "captions": "3"},
    ]  # fmt: skip
    asked = {10 + number: settings[number % 6] for number in range(12)}
    model = Model(styled)
    with serving(model) as url, ExitStack() as stack:
        first = stack.enter_context(waiting(url, 1))
        assert until(lambda: model.batches)
        others = {
            level: stack.enter_context(waiting(url, level, fields))
            for level, fields in asked.items()
        }
        assert until(lambda: len(queued) == 13)
        model.going.set()
        answers = {level: last(peer) for level, peer in others.items()}
        assert "caption" in last(first)
    assert [len(levels) for levels, _, _ in model.batches[1:]] == [2] * 6
    for levels, config, check in model.batches[1:]:
        for level in levels:
            fields = asked[level]
            assert check is ("check_attention" in fields)
            assert config.style == fields.get("style", "long")
            assert config.beam_size == int(fields.get("beam_size", 5))
            assert config.captions == int(fields.get("captions", 1))
    for level, fields in asked.items():
        record = answers[level]
        assert len(record.get("alternatives", ())) == int(fields.get("captions", 1)) - 1
        assert ("effect" in record["words"][0]) is ("check_attention" in fields)
        assert record["style"] == fields.get("style", "long")


def test_a_costly_photo_takes_more_places_and_smaller_batches(
    url: str, model: Model, queued: list[object]
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(waiting(url, 50, address="127.0.0.2"))
        assert until(lambda: model.batches)
        costly = []
        for level in (1, 2):
            costly.append(stack.enter_context(waiting(url, level, COSTLY)))
            assert until(lambda level=level: len(queued) == 1 + level)
        third = answer(stack.enter_context(waiting(url, 3, COSTLY)))
        assert third["type"] == "busy"
        other = stack.enter_context(waiting(url, 99, address="127.0.0.3"))
        assert until(lambda: len(queued) == 4)
        model.going.set()
        assert all("caption" in last(peer) for peer in (first, *costly, other))
    assert [levels for levels, _, _ in model.batches] == [[50], [1], [99], [2]]


def test_a_client_that_disconnects_leaves_the_queue(
    url: str, model: Model, queued: list[object]
) -> None:
    with ExitStack() as stack:
        first = stack.enter_context(waiting(url, 1))
        assert until(lambda: model.batches)
        with waiting(url, 2):
            assert until(lambda: len(queued) == 2)
        with client_at(url) as made:
            assert until(lambda: "captioner_queue_images 1.0" in made.get("/metrics").text)
            left = 'captioner_requests_total{route="/api/caption",status="499"} 1.0'
            assert until(lambda: left in made.get("/metrics").text)
        model.going.set()
        assert "caption" in last(first)
    assert [levels for levels, _, _ in model.batches] == [[1]]
