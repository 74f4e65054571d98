"""The captioning that the page and the API share: admit, decode, queue, caption."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from captioner.caption import Caption
from captioner.errors import CaptionerError, ConfigError, ImageError
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner.vision.prepared import PreparedImage
from captioner.vision.transform import Box
from captioner.vocabulary import Vocabulary
from captioner_serving.decoding.decoded import EncodedPhoto, Output, Readable, Square
from captioner_serving.memory import is_out_of_memory
from captioner_serving.server.batcher import Batcher, Order, Place
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.photos import PhotoPool, SharedPhoto
from captioner_serving.server.problems import (
    ClosedError,
    MemoryShortError,
    PhotoFailedError,
    RefusedError,
)

__all__ = ["CaptionService", "check_sentence"]

_LOGGER = logging.getLogger("captioner.server")
# Seconds. /api/health believes an answer of the last few, or a batch that is under way for as long
# as any can take; a model that has nothing to do is asked, and has a while to answer.
_FRESH, _AT_WORK, _PATIENCE = 5.0, 120.0, 10.0
_NAME = "the image"  # in messages, in place of a name that only its owner knows


class CaptionService:
    """One model for many clients.

    Args:
        captioner: the model.
        config: sizes of the queue and of batches.
        metrics: where images, batches and errors are counted.
        pool: where photos are decoded, shared with other models.
        threads: of torch, for the thread that runs the model.
        say: told in words for people what became of photos.
    """

    def __init__(
        self,
        captioner: Captioner,
        config: ServerConfig,
        metrics: Metrics,
        pool: PhotoPool,
        *,
        threads: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.captioner = captioner
        self.config = config
        self.metrics = metrics
        self._threads, self._say = threads, say
        self._answered = self._failed = 0.0  # when the model last did
        self._probe: asyncio.Task[None] | None = None
        self._batcher = Batcher(
            self._caption_batch, max_batch=config.max_batch, capacity=config.queue
        )
        self.pool = pool

    def sample(self, name: str, path: Path, *, captions: int) -> Caption:
        """Caption a photo of our own at the start; ImageError: it cannot be opened."""
        square = Square(self.captioner.transform.config)
        photo = EncodedPhoto(str(path), path.read_bytes())
        (decoded,) = self.pool.reader.produce(photo, [square]).result()
        decoded.check()
        image = decoded.prepared(image=name)
        config = self.captioner.generation.for_request(captions=captions)
        return self._batcher.submit(image, Order(config)).result()

    async def caption_one(
        self,
        photo: bytes | Readable,
        config: GenerationConfig,
        *,
        client: str,
        check_attention: bool = False,
    ) -> Caption:
        """Caption one photo; arguments as for `caption`.

        Raises: what `caption` raises, and ImageError: it cannot be opened.
        """
        shared = self.share(photo, client=client)
        try:
            (result,) = await self.caption(
                [shared], config, client=client, check_attention=check_attention
            )
        finally:
            shared.cancel()
        if isinstance(result, Caption):
            return result
        try:
            raise result
        finally:
            del result  # or its traceback would keep the photo alive

    def share(
        self,
        photo: bytes | Readable,
        *services: CaptionService,
        client: str,
        has_preview: bool = False,
    ) -> SharedPhoto:
        """Return a photo that this service and others caption; it is decoded once."""
        if isinstance(photo, bytes):
            photo = EncodedPhoto(_NAME, photo)
        configs = [service.captioner.transform.config for service in (self, *services)]
        return SharedPhoto(self.pool, photo, configs, client=client, has_preview=has_preview)

    async def caption(
        self,
        images: Sequence[SharedPhoto],
        config: GenerationConfig,
        *,
        client: str = "",
        place: Place | None = None,
        check_attention: bool = False,
    ) -> list[Caption | ImageError]:
        """Caption images, in order; one that cannot be opened fails alone, in its place.

        A caller that is cancelled takes its waiting images out of the queue.

        Args:
            images: what to caption.
            config: beam size, number of captions, style.
            client: whose they are; clients take turns.
            place: is that of the last of these, from when they are admitted.
            check_attention: whether words get their effect; see Captioner.caption.

        Raises:
            BusyError: no room in the queue.
            ClosedError: the server is shutting down.
            ConfigError: the model does not have the style.
        """
        # By its name, so that who asks for the usual style and who asks for none share a batch.
        config = replace(config, style=self.captioner.vocabulary.style(config.style) or "")
        start = time.monotonic()
        results = await self._order(images, Order(config, check_attention), client, place)
        self._report(results, time.monotonic() - start)
        return results

    async def check_words(self, image: bytes, caption: Caption, *, client: str = "") -> Caption:
        """Measure of each word of a given caption how much it mattered where the model looked.

        Raises:
            ConfigError: the model does not know one of the words, or the caption has none.
            ImageError: the image cannot be opened.
            BusyError, ClosedError: as for `caption`.
        """
        config = replace(
            self.captioner.generation,
            beam_size=1,
            captions=1,
            style=self.captioner.vocabulary.style(caption.style or "") or "",
        )
        _require_known(caption, self.captioner.vocabulary)
        order = Order(config, check_attention=True, sentence=caption)
        shared = self.share(image, client=client)
        try:
            (result,) = await self._order([shared], order, client)
        finally:
            shared.cancel()
        if not isinstance(result, Caption):
            raise result
        if not result.checked:
            raise ConfigError("the model captions without attention: there is nothing to check")
        return result

    async def draw(self, image: bytes, drawing: Output, *, client: str = "") -> bytes:
        """Open a whole photo and draw on it, in the pool; a caller that is cancelled stops that.

        Raises:
            ImageError: the photo cannot be opened, or takes too long to draw.
            ConfigError: an option of the drawing is out of range.
            BusyError, ClosedError: as for `caption`.
        """
        with self._batcher.admit(1, client):
            photo = EncodedPhoto(_NAME, image)
            (result,) = await self.pool.produce(photo, [drawing], client=client)
        result.check()
        return result.pixels

    async def _order(
        self,
        images: Sequence[SharedPhoto],
        order: Order,
        client: str,
        place: Place | None = None,
    ) -> list[Caption | ImageError]:
        """Have something done with images, in order; a caller that is cancelled takes them out."""
        with self._batcher.admit(len(images) * order.cost, client):
            places = [*[None] * (len(images) - 1), place]
            if place is not None:
                place.ahead = self._batcher.waiting
                place.admitted.set()
            self.metrics.queue.inc(len(images))
            try:
                async with asyncio.TaskGroup() as group:
                    tasks = [
                        group.create_task(self._caption_one(image, order, client, its))
                        for image, its in zip(images, places, strict=True)
                    ]
            finally:
                self.metrics.queue.dec(len(images))
        return [task.result() for task in tasks]

    def require_room(self, client: str) -> None:
        """Refuse before an upload is read what would be refused after it.

        Raises:
            BusyError: no room in the queue for even one image.
            ClosedError: the server is shutting down.
        """
        with self._batcher.admit(1, client):
            pass

    async def check(self) -> None:
        """Find out whether the model lives: whoever waits in its queue does not matter.

        It is asked for a caption if it has nothing to do and has not just made one.

        Raises RefusedError: it does not answer, is at one batch for minutes, or is closed.
        """
        if self._batcher.closed:
            raise ClosedError
        now = time.monotonic()
        if now - self._answered < _FRESH:
            return
        begun = self._batcher.at_work_since
        if begun is not None and self._failed <= self._answered:
            if now - begun < _AT_WORK:
                return
            raise RefusedError(
                "not-ready", f"it has been at one batch for more than {_AT_WORK:.0f} s"
            )
        # One question for all who ask at the same time, however many and however long they stay.
        if self._probe is None or self._probe.done():
            self._probe = asyncio.create_task(self._ask())
            self._probe.add_done_callback(lambda probe: probe.cancelled() or probe.exception())
        await asyncio.wait([self._probe])
        self._probe.result()

    async def _ask(self) -> None:
        side = self.captioner.transform.config.size
        pixels = np.full((3, side, side), 128, np.uint8)
        whole = Box(0.0, 0.0, 1.0, 1.0)
        blank = PreparedImage(image=None, pixels=pixels, box=whole, size=(side, side))
        own = self.captioner.generation
        short = replace(own, beam_size=1, captions=1, minimum_length=0, maximum_length=1)
        try:
            future = self._batcher.submit(blank, Order(short))
            await asyncio.wait_for(asyncio.wrap_future(future), _PATIENCE)
        except TimeoutError as error:
            detail = f"it has not answered within {_PATIENCE:.0f} s"
            raise RefusedError("not-ready", detail) from error
        except CaptionerError as error:
            raise RefusedError("not-ready", error.detail) from error
        except Exception as error:
            _LOGGER.exception("the model does not answer")
            raise RefusedError("not-ready", "it fails; the server's log says how") from error

    def refuse(self) -> None:
        """Take on nothing more; what was accepted is finished."""
        self._batcher.refuse()

    def close(self) -> None:
        """Finish what was accepted, then stop."""
        self._batcher.close()

    async def _caption_one(
        self,
        image: SharedPhoto,
        order: Order,
        client: str,
        place: Place | None,
    ) -> Caption | ImageError:
        result: Caption | ImageError
        try:
            decoded = await image.square(self.captioner.transform.config)
            with self.metrics.photo.labels("model").time():
                future = self._batcher.submit(decoded.prepared(), order, client, place)
                result = await asyncio.wrap_future(future)
        except ImageError as error:
            result = error.without_traceback()
        except Exception as error:
            if is_out_of_memory(error):
                result = MemoryShortError()
            else:
                _LOGGER.exception("a photo failed")
                reason = error.detail if isinstance(error, CaptionerError) else "its log says how"
                result = PhotoFailedError(f"the server failed on the image ({reason}): try again")
        if isinstance(result, ImageError):
            self.metrics.errors.labels(result.type).inc()
        return result

    def _caption_batch(self, images: Sequence[PreparedImage], order: Order) -> Sequence[Caption]:
        # Each thread that calls torch has a pool, whose threads wait for work by spinning. Where
        # pools have more threads than there are cores, libgomp sends them to sleep after each loop,
        # which costs a third of the speed: no other thread has one, unless there are two models.
        torch.set_num_threads(self._threads)
        start = time.monotonic()
        try:
            if order.sentence is None:
                captions = self.captioner.caption_prepared(
                    images, order.generation, check_attention=order.check_attention
                )
            else:
                captions = check_sentence(self.captioner, images, order.sentence)
        except Exception:
            self._failed = time.monotonic()
            raise
        finally:
            self.metrics.batch_size.observe(len(images))
            self.metrics.batch_seconds.observe(time.monotonic() - start)
        self._answered = time.monotonic()
        return captions

    def _report(self, results: Sequence[Caption | ImageError], seconds: float) -> None:
        captions = sum(isinstance(result, Caption) for result in results)
        self.metrics.captions.inc(captions)
        if captions:
            photos = "a photo" if captions == 1 else f"{captions} photos"
            self._say(f"captioned {photos} in {seconds:.2f} s")
        for result in results:
            if isinstance(result, ImageError):
                self._say(f"a photo was not captioned: {result.title}")


def _require_known(caption: Caption, vocabulary: Vocabulary) -> None:
    """Refuse a sentence that the model cannot have said.

    Raises ConfigError: it has no words, or one that the vocabulary does not have.
    """
    if not caption.words:
        raise ConfigError("the record has no words: there is nothing to check")
    if unknown := [word.text for word in caption.words if not vocabulary.knows(word.text)]:
        raise ConfigError(f"the model does not know the word {unknown[0][:40]!r}")


def check_sentence(
    captioner: Captioner, images: Sequence[PreparedImage], caption: Caption
) -> list[Caption]:
    """Give the words of a caption their `effect` on each image; see captioner.deletion.

    Where the decoder does not attend, they have none.
    """
    found = captioner.word_effects(
        np.stack([image.pixels for image in images]),
        [word.text for word in caption.words],
        style=caption.style or "",
    )
    checked = []
    for effects in found:
        known: Sequence[float | None] = effects or [None] * len(caption.words)
        pairs = zip(caption.words, known, strict=True)
        words = tuple(replace(word, effect=effect) for word, effect in pairs)
        checked.append(replace(caption, words=words))
    return checked
