"""The captioning service of the page and the API: admit, decode, queue, caption."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from captioner.caption import Caption
from captioner.captioner import Captioner, PreparedImage
from captioner.errors import CaptionerError, ImageError
from captioner.generation.config import GenerationConfig
from captioner_serving.decoding.decoded import EncodedPhoto, Output, Readable, Square
from captioner_serving.decoding.reader import Reader
from captioner_serving.memory import is_out_of_memory
from captioner_serving.server.batcher import Batcher, JobSettings
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.photos import Photo
from captioner_serving.server.problems import (
    ClosedError,
    LowTrustError,
    MemoryShortError,
    PhotoFailedError,
    RefusedError,
)

_LOGGER = logging.getLogger("captioner.server")
_LONGEST_BATCH = 120.0  # seconds; a longer batch is stuck


class CaptionService:
    """One model for many clients.

    Args:
        captioner: the model.
        config: limits of the queue and batches.
        metrics: counts images, batches and errors.
        reader: decodes photos, shared with other models.
        threads: the number of threads that torch uses for the model.
        say: called with messages for the terminal.
    """

    def __init__(
        self,
        captioner: Captioner,
        config: ServerConfig,
        metrics: Metrics,
        reader: Reader,
        *,
        threads: int,
        say: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.captioner = captioner
        self.config = config
        self.metrics = metrics
        self._threads, self._say = threads, say
        self._batcher = Batcher(
            self._caption_batch, max_batch=config.max_batch, capacity=config.queue
        )
        self.reader = reader

    def sample(self, name: str, path: Path, *, captions: int) -> Caption:
        """Caption a sample photo, without limits.

        Raises ImageError: it cannot be decoded.
        """
        square = Square(self.captioner.transform.config)
        photo = EncodedPhoto(str(path), path.read_bytes())
        (decoded,) = self.reader.produce(photo, [square]).result()
        decoded.check()
        image = decoded.prepared(image=name)
        config = self.captioner.generation.for_request(captions=captions)
        return self._batcher.submit(image, JobSettings(config)).result()

    async def caption_one(
        self,
        photo: bytes | Readable,
        config: GenerationConfig,
        *,
        client: str,
        check_attention: bool = False,
    ) -> Caption:
        """Caption one photo; arguments and exceptions as for `caption`.

        Raises ImageError: it cannot be decoded.
        """
        photos = [Photo.of_bytes(photo) if isinstance(photo, bytes) else Photo(photo)]
        return _only(
            await self.caption(photos, config, client=client, check_attention=check_attention)
        )

    async def caption(
        self,
        photos: Sequence[Photo],
        config: GenerationConfig,
        *,
        client: str = "",
        check_attention: bool = False,
    ) -> list[Caption | ImageError]:
        """Caption photos, in order; a photo that fails has an ImageError in its place.

        Cancelling the caller removes its waiting photos from the queue.

        Args:
            photos: the photos.
            config: beam size, number of captions, style.
            client: the client's key in the fair queue.
            check_attention: measure the effect of each word; see Captioner.caption.

        Raises:
            BusyError: the queue is full.
            ClosedError: the server is shutting down.
            ConfigError: the model has no such style.
        """
        # Name the default style, so that requests with and without its name share a batch.
        config = replace(config, style=self.captioner.vocabulary.style(config.style) or "")
        start = time.monotonic()
        settings = JobSettings(config, check_attention)
        with self._batcher.admit(len(photos) * settings.cost, client):
            results = await self._run(photos, settings, client)
        self._report(results, time.monotonic() - start)
        return results

    async def draw(
        self,
        image: bytes,
        config: GenerationConfig,
        make: Callable[[Caption], Output],
        *,
        client: str = "",
    ) -> bytes:
        """Caption a photo, and draw its caption. Cancelling the caller stops both.

        Args:
            image: the photo.
            config: as for `caption`.
            make: returns the drawing of a caption.
            client: as for `caption`.

        Raises:
            ImageError: the photo cannot be decoded or captioned, or drawing takes too long.
            ConfigError: an option of the drawing is out of range.
            BusyError, ClosedError: as for `caption`.
        """
        config = replace(config, style=self.captioner.vocabulary.style(config.style) or "")
        settings, photo = JobSettings(config), Photo.of_bytes(image)
        start = time.monotonic()
        with self._batcher.admit(1 + settings.cost, client):
            results = await self._run([photo], settings, client)
            self._report(results, time.monotonic() - start)
            caption = _only(results)
            (drawn,) = await self.reader.decode(photo.source, [make(caption)], client=client)
        drawn.check()
        return bytes(drawn.pixels)

    async def _run(
        self, photos: Sequence[Photo], settings: JobSettings, client: str
    ) -> list[Caption | ImageError]:
        """Caption admitted photos, in order."""
        self.metrics.queue.inc(len(photos))
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [
                    group.create_task(self._caption_one(photo, settings, client))
                    for photo in photos
                ]
        finally:
            self.metrics.queue.dec(len(photos))
        return [self._checked(task.result()) for task in tasks]

    def require_room(self, client: str) -> None:
        """Check before an upload that the queue has room for an image.

        Raises:
            BusyError: the queue is full.
            ClosedError: the server is shutting down.
        """
        with self._batcher.admit(1, client):
            pass

    def check(self) -> None:
        """Check that the model works; a full queue is not an error.

        Raises RefusedError: the model's thread has ended or is stuck, or the service is closed.
        """
        if self._batcher.closed:
            raise ClosedError
        if not self._batcher.is_alive:
            raise RefusedError("not-ready", "the model's thread has ended; the log has the reason")
        begun = self._batcher.busy_since
        if begun is not None and time.monotonic() - begun > _LONGEST_BATCH:
            raise RefusedError("not-ready", f"a batch has taken more than {_LONGEST_BATCH:.0f} s")

    def refuse(self) -> None:
        """Refuse new photos; accepted ones are finished."""
        self._batcher.refuse()

    def close(self) -> None:
        """Finish accepted photos, then stop."""
        self._batcher.close()

    async def _caption_one(
        self, photo: Photo, settings: JobSettings, client: str
    ) -> Caption | ImageError:
        result: Caption | ImageError
        try:
            with self._batcher.decoding():
                transform = self.captioner.transform.config
                with self.metrics.photo.labels("opening").time():
                    decoded = await photo.square(self.reader, transform, client=client)
                future = self._batcher.submit(decoded.prepared(), settings, client)
            with self.metrics.photo.labels("model").time():
                caption = await asyncio.wrap_future(future)
            result = caption.error or caption
        except ImageError as error:
            result = error.without_traceback()
        except Exception as error:
            if is_out_of_memory(error):
                result = MemoryShortError()
            else:
                _LOGGER.exception("a photo failed")
                reason = "its log has the reason"
                if isinstance(error, CaptionerError):
                    reason = error.detail
                result = PhotoFailedError(f"the server failed on the image ({reason}): try again")
        if isinstance(result, ImageError):
            self.metrics.errors.labels(result.type).inc()
        return result

    def _caption_batch(
        self, images: Sequence[PreparedImage], settings: JobSettings
    ) -> Sequence[Caption]:
        # Only this thread uses more than one thread of torch. With more threads than cores, libgomp
        # puts waiting threads to sleep after each loop, which is much slower.
        torch.set_num_threads(self._threads)
        start = time.monotonic()
        try:
            return self.captioner.caption_prepared(
                images, settings.generation, check_attention=settings.check_attention
            )
        finally:
            self.metrics.batch_size.observe(len(images))
            self.metrics.batch_seconds.observe(time.monotonic() - start)

    def _checked(self, result: Caption | ImageError) -> Caption | ImageError:
        """Return the result, or an error if its trust is below the server's minimum."""
        minimum = self.config.minimum_trust
        if minimum is None or not isinstance(result, Caption) or not result.is_below(minimum):
            return result
        trust = result.trust or 0.0
        error = LowTrustError(
            f"the caption has a trust of {trust:.2f}; the server's minimum is {minimum:g}: "
            "describe this photo yourself"
        )
        self.metrics.errors.labels(error.type).inc()
        return error

    def _report(self, results: Sequence[Caption | ImageError], seconds: float) -> None:
        captions = sum(isinstance(result, Caption) for result in results)
        self.metrics.captions.inc(captions)
        if captions:
            photos = "a photo" if captions == 1 else f"{captions} photos"
            self._say(f"captioned {photos} in {seconds:.2f} s")
        for result in results:
            if isinstance(result, ImageError):
                self._say(f"a photo was not captioned: {result.title}")


def _only(results: list[Caption | ImageError]) -> Caption:
    """Return the only result, or raise its error."""
    result = results.pop()
    if isinstance(result, Caption):
        return result
    try:
        raise result
    finally:
        del result  # its traceback would keep the photo in memory
