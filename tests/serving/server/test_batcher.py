"""The model's thread: an image that fails does not affect others or stop the thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, cast

import pytest
import torch

from captioner.captioner import Captioner
from captioner.checkpoint import Checkpoint
from captioner.generation.config import GenerationConfig
from captioner_serving.decoding.photo import EncodedPhoto
from captioner_serving.server.batcher import Batcher, JobSettings
from captioner_serving.server.errors import BusyError, ClosedError, RefusedError
from tests.serving.server.conftest import run_async
from tests.serving.server.running import service_of
from tests.serving.server.test_api import jpeg

ANY: Any = None


def model(images: Sequence[Any], settings: JobSettings) -> Sequence[Any]:
    """Give the images themselves as captions; some images are more than it can bear."""
    if "memory" in images:
        raise MemoryError
    if "short" in images:
        return images[:-1]
    return images


@pytest.fixture
def batcher() -> Iterator[Batcher]:
    made = Batcher(model, max_batch=8, capacity=64)
    yield made
    made.close()


@pytest.mark.parametrize(("bad", "error"), [("memory", MemoryError), ("short", ValueError)])
def test_one_image_that_fails_fails_alone(
    batcher: Batcher, bad: str, error: type[Exception]
) -> None:
    settings = JobSettings(GenerationConfig())
    images = [*"abc", bad, *"defg"]
    futures = [batcher.submit(image, settings) for image in images]
    for image, future in zip(images, futures, strict=True):
        if image == bad:
            assert isinstance(future.exception(300), error)
        else:
            assert future.result(300) == image
    # The thread goes on.
    assert batcher.submit("z", settings).result(300) == "z"


def test_the_model_has_all_cores(tiny_checkpoint: Checkpoint) -> None:
    seen: list[int] = []

    class Model(Captioner):
        def caption_prepared(self, *images: Any, **options: Any) -> Any:
            seen.append(torch.get_num_threads())
            return super().caption_prepared(*images, **options)

    model = Model(tiny_checkpoint, device="cpu")
    with service_of(model, threads=3) as service:
        run_async(service.caption_one(EncodedPhoto("", jpeg()), model.generation, client=""))
    assert seen == [3]


@pytest.mark.parametrize(
    ("beam", "captions", "check", "cost"),
    [(14, 1, False, 1), (15, 1, False, 2), (5, 3, True, 4), (20, 20, True, 22)],
)
def test_an_image_takes_the_places_that_are_documented(
    beam: int, captions: int, check: bool, cost: int
) -> None:
    config = GenerationConfig(beam_size=beam, captions=captions)
    assert JobSettings(config, check_attention=check).cost == cost


PLAIN = JobSettings(GenerationConfig())
CHECKED = JobSettings(GenerationConfig(), check_attention=True)  # costs 2


class Paced:
    """A batcher on a clock that stands still, except that a batch takes `seconds`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.seconds = 1000.0, 1.2
        self.batches: list[str] = []
        self.going = threading.Semaphore(0)
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        self.batcher = Batcher(self._caption, max_batch=4, capacity=64)

    def _caption(self, images: Sequence[Any], _: JobSettings) -> Sequence[Any]:
        self.batches.append("".join(images))
        assert self.going.acquire(timeout=300)
        self.now += self.seconds
        return images

    def send(self, images: str, settings: JobSettings = PLAIN) -> None:
        for image in images:
            self.batcher.submit(cast(Any, image), settings)

    def begins(self, images: str) -> bool:
        """Whether the model begins a batch of these images."""
        return self.soon(lambda: self.batches[-1:] == [images])

    def ends(self) -> bool:
        """End the running batch; return whether no other batch begins within half a second."""
        self.going.release()
        assert self.soon(lambda: self.batcher.busy_since is None)
        return self.waits()

    def waits(self) -> bool:
        return not self.soon(lambda: self.batcher.busy_since is not None, 0.5)

    def soon(self, true: Callable[[], object], seconds: float = 300.0) -> bool:
        deadline = time.perf_counter() + seconds
        while not true() and time.perf_counter() < deadline:
            time.sleep(0.005)
        return bool(true())


@pytest.fixture
def paced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Paced]:
    """A batcher that runs a batch of the image 0."""
    made = Paced(monkeypatch)
    made.send("0")
    assert made.begins("0")
    yield made
    made.going.release(100)
    made.now += 1e9
    made.batcher.close()


# Steps: + and * send images, with usual and with costly settings; . and ! end the batch, and after
# the first one no batch begins; ~ is half a second without a batch; = begins a batch of these
# images; x ends the server.
SCRIPTS = {
    "clients that return share a batch": "+bc . +a =bca . +ab ~ +c =abc",
    "a lone client does not wait": ". +a =a",
    "a full batch does not wait": "+abcdef ! =abcd",
    "a batch of costly images waits for no more than it holds": ". *a =a *bc ! =bc",
    "other settings are not waited for": "*a ! =a +b *c ! =b ! =c *d . +e ~ *f =df",
    "a server that ends does not wait": "+a . x =a",
}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_a_batch_waits_for_images_that_usually_come_together(paced: Paced, script: str) -> None:
    for step in script.split():
        kind, images = step[0], step[1:]
        if kind in "+*":
            paced.send(images, CHECKED if kind == "*" else PLAIN)
        elif kind == "=":
            assert paced.begins(images)
        elif kind == "!":
            paced.going.release()
        elif kind == "x":
            paced.batcher.refuse()
        else:
            assert paced.ends() if kind == "." else paced.waits()


@pytest.mark.parametrize(("seconds", "wait"), [(1.2, 0.4), (3600, 0.5)])
def test_a_batch_waits_for_images_that_are_being_decoded(
    paced: Paced, seconds: float, wait: float
) -> None:
    """A third of the last batch's time, at most half a second."""
    paced.seconds = seconds
    paced.send("a")
    with paced.batcher.decoding():
        assert paced.ends()
        paced.now += wait - 0.01
        assert paced.waits()
        paced.now += 0.02
        assert paced.begins("a")


def test_a_client_with_a_full_queue_leaves_room_for_others() -> None:
    batcher = Batcher(lambda images, _: [], max_batch=4, capacity=64)
    with ExitStack() as stack:
        with batcher.admit(64, "greedy"):
            with pytest.raises(BusyError), batcher.admit(1, "greedy"):
                pass
            with pytest.raises(BusyError), batcher.admit(5, "another"):
                pass  # few are few
            for _ in range(4):
                stack.enter_context(batcher.admit(1, "another"))
            with pytest.raises(BusyError), batcher.admit(1, "another"):
                pass
            others = iter(range(100))
            with ExitStack() as more, pytest.raises(BusyError):
                for number in others:
                    more.enter_context(batcher.admit(1, f"client {number}"))
            assert next(others) == 29  # 64 + 4 + 28 are one and a half times 64
        with batcher.admit(60, "greedy"):
            pass
    batcher.close()


def retry_after(batcher: Batcher) -> str:
    with batcher.admit(64), pytest.raises(BusyError) as busy, batcher.admit(64):
        pass
    return busy.value.headers["Retry-After"]


def test_retry_after_follows_the_recent_time_per_cost(paced: Paced) -> None:
    assert retry_after(paced.batcher) == "6"  # 64 times 0.1 s
    with paced.batcher.admit(1000):  # more than the queue
        pass
    assert retry_after(paced.batcher) == "6"
    paced.seconds = 0.6
    assert paced.ends()
    assert retry_after(paced.batcher) == "13"  # 64 times 0.8 * 0.1 s + 0.2 * 0.6 s
    paced.seconds = 0.2
    paced.send("a", CHECKED)
    assert paced.begins("a") and paced.ends()
    assert retry_after(paced.batcher) == "12"  # 64 times 0.8 * 0.2 s + 0.2 * 0.2 s / 2


def test_health_depends_on_the_thread_of_the_model(tiny_checkpoint: Checkpoint) -> None:
    with service_of(Captioner(tiny_checkpoint)) as service:
        service.check()
        service.batcher.busy_since = time.monotonic() - 130
        with pytest.raises(RefusedError, match="a batch has taken"):
            service.check()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Batcher, "is_alive", property(lambda _: False))
            with pytest.raises(RefusedError, match="thread has ended"):
                service.check()
        service.batcher.refuse()
        with pytest.raises(ClosedError):
            service.check()
