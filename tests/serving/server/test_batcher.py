"""The model's thread: what fails in a batch fails alone, and nothing stops the thread."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from captioner.checkpoint import Checkpoint
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner_serving.server.batcher import Batcher, BusyError
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.service import CaptionService
from tests.serving.server.conftest import run_async

ANY: Any = None


class Model:
    """Captions that are the images themselves; some images are more than it can bear."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, images: Sequence[Any], config: GenerationConfig) -> Sequence[Any]:
        self.batches.append(len(images))
        if "memory" in images:
            raise MemoryError
        if "short" in images:
            return images[:-1]
        return images


@pytest.fixture
def model() -> Model:
    return Model()


@pytest.fixture
def batcher(model: Model) -> Iterator[Batcher]:
    made = Batcher(model, max_batch=8, capacity=64, on_start=lambda: None, on_batch=lambda *_: None)
    yield made
    made.close()


@pytest.mark.parametrize(("bad", "error"), [("memory", MemoryError), ("short", RuntimeError)])
def test_one_image_that_fails_fails_alone(
    batcher: Batcher, model: Model, bad: str, error: type[Exception]
) -> None:
    config = GenerationConfig()
    images = [*"abc", bad, *"defg"]
    batcher.admit(len(images))
    futures = [batcher.submit(image, config) for image in images]
    for image, future in zip(images, futures, strict=True):
        if image == bad:
            assert isinstance(future.exception(10), error)
        else:
            assert future.result(10) == image
    batcher.release(len(images))
    # The thread goes on.
    batcher.admit(1)
    assert batcher.submit("z", config).result(10) == "z"
    batcher.release(1)


def test_a_client_with_a_full_queue_leaves_room_for_others() -> None:
    batcher = Batcher(
        lambda images, _: [],
        max_batch=4,
        capacity=64,
        on_start=lambda: None,
        on_batch=lambda *_: None,
    )
    batcher.admit(64, "greedy")
    with pytest.raises(BusyError):
        batcher.admit(1, "greedy")
    with pytest.raises(BusyError):
        batcher.admit(5, "another")  # few are few
    for _ in range(4):
        batcher.admit(1, "another")
    with pytest.raises(BusyError):
        batcher.admit(1, "another")
    batcher.release(64, "greedy")
    batcher.release(4, "another")
    batcher.close()


def test_however_many_ask_for_health_the_model_is_asked_once(tiny_checkpoint: Checkpoint) -> None:
    metrics = Metrics()
    service = CaptionService(Captioner(tiny_checkpoint), ServerConfig(), metrics, threads=1)

    async def probes() -> None:
        await asyncio.gather(*(service.check() for _ in range(30)))

    try:
        run_async(probes())
    finally:
        service.close()
    assert "captioner_batch_images_sum 1.0" in metrics.exposition().decode()


def test_a_photo_that_fails_unexpectedly_is_that_photo_s_error(
    tiny_checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    service = CaptionService(Captioner(tiny_checkpoint), ServerConfig(), Metrics(), threads=1)
    square = service.photos.square

    async def failing(photo: Any, **options: Any) -> Any:
        if photo == b"bad":
            raise MemoryError
        return await square(photo, **options)

    monkeypatch.setattr(service.photos, "square", failing)
    from tests.serving.server.test_api import jpeg

    config = service.captioner.generation
    try:
        good, bad = run_async(service.caption([jpeg(), b"bad"], config))
    finally:
        service.close()
    assert good.text
    assert bad.record()["type"] == "internal-error"
