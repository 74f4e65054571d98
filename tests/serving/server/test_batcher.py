"""The model's threads: what fails in a batch fails alone, and nothing stops a thread."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from collections.abc import Iterator, Sequence
from queue import Empty, Queue
from typing import Any

import pytest

from captioner.checkpoint import Checkpoint
from captioner.decoding.decoded import EncodedPhoto
from captioner.errors import ImageError
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner_serving.server.batcher import Batcher, Order
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.problems import BusyError
from captioner_serving.server.service import CaptionService
from tests.serving.server.conftest import run_async

ANY: Any = None


class Model:
    """Captions that are the images themselves; some images are more than it can bear."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def __call__(self, images: Sequence[Any], order: Order) -> Sequence[Any]:
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
    made = Batcher(
        model,
        max_batch=8,
        capacity=64,
        before_batch=lambda _: None,
        on_batch=lambda *_: None,
        threads=2,
    )
    yield made
    made.close()


@pytest.mark.parametrize(("bad", "error"), [("memory", MemoryError), ("short", RuntimeError)])
def test_one_image_that_fails_fails_alone(
    batcher: Batcher, model: Model, bad: str, error: type[Exception]
) -> None:
    order = Order(GenerationConfig())
    images = [*"abc", bad, *"defg"]
    batcher.admit(len(images))
    futures = [batcher.submit(image, order) for image in images]
    for image, future in zip(images, futures, strict=True):
        if image == bad:
            assert isinstance(future.exception(300), error)
        else:
            assert future.result(300) == image
    batcher.release(len(images))
    # The thread goes on.
    batcher.admit(1)
    assert batcher.submit("z", order).result(300) == "z"
    batcher.release(1)


def test_a_lone_image_has_all_cores_and_two_threads_share_what_waits() -> None:
    """Each thread says how many are at work; they go on when they are let."""
    started: Queue[int] = Queue()
    going, sizes = threading.Semaphore(0), list[int]()

    def model(images: Sequence[Any], order: Order) -> Sequence[Any]:
        sizes.append(len(images))
        assert going.acquire(timeout=300)
        return [(image, order.generation.captions) for image in images]

    batcher = Batcher(
        model,
        max_batch=8,
        capacity=64,
        before_batch=started.put,
        on_batch=lambda *_: None,
        threads=2,
    )
    batcher.admit(7)
    one, three = Order(GenerationConfig()), Order(GenerationConfig(captions=3))
    first = batcher.submit("first", one)
    assert started.get(timeout=300) == 1  # alone
    others = [batcher.submit(number, three if number == 2 else one) for number in range(6)]
    with pytest.raises(Empty):
        started.get(timeout=0.2)  # no second thread takes a core from under the first
    going.release()
    assert first.result(300) == ("first", 1)
    assert [started.get(timeout=300) for _ in range(2)] == [2, 2]
    assert sizes == [1, 3, 3]
    going.release(2)
    # A batch has as many captions as any of its images wants.
    assert [other.result(300) for other in others[:3]] == [(0, 3), (1, 3), (2, 3)]
    assert [other.result(300) for other in others[3:]] == [(3, 1), (4, 1), (5, 1)]
    batcher.release(7)
    batcher.close()


def test_a_client_with_a_full_queue_leaves_room_for_others() -> None:
    batcher = Batcher(
        lambda images, _: [],
        max_batch=4,
        capacity=64,
        before_batch=lambda _: None,
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
    submit = service.reader.submit

    def failing(photo: EncodedPhoto, **options: Any) -> Any:
        if photo.data == b"bad":
            raise KeyError
        return submit(photo, **options)

    monkeypatch.setattr(service.reader, "submit", failing)
    from tests.serving.server.test_api import jpeg

    config = service.captioner.generation
    try:
        good, bad = run_async(service.caption([jpeg(), b"bad"], config))
    finally:
        service.close()
    assert good.text
    assert bad.record()["type"] == "internal-error"


def test_nothing_holds_an_upload_that_was_refused(tiny_checkpoint: Checkpoint) -> None:
    """Not even until Python next looks for cycles, when a hundred more may have come."""
    service = CaptionService(Captioner(tiny_checkpoint), ServerConfig(), Metrics(), threads=1)
    upload = bytes(1_000_000)
    alone = sys.getrefcount(upload)
    gc.disable()
    try:
        (refused,) = run_async(service.caption([upload], service.captioner.generation))
        service.close()
        held = sys.getrefcount(upload) - alone
    finally:
        gc.enable()
        service.close()
    assert isinstance(refused, ImageError) and held == 0
