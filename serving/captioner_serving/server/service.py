"""The captioning service of the page and the API: reserve a place, decode, queue, caption."""

from __future__ import annotations

import asyncio
import base64
import logging
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from captioner.caption import Caption
from captioner.captioner import Captioner, PreparedImage
from captioner.errors import CaptionerError, ImageError
from captioner.generation.config import GenerationConfig
from captioner_serving.decoding.photo import (
    Decoded,
    EncodedPhoto,
    Output,
    Preview,
    Readable,
    Square,
)
from captioner_serving.decoding.pool import Reader
from captioner_serving.memory import is_out_of_memory
from captioner_serving.server.batcher import Batcher, JobSettings
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.errors import (
    ClosedError,
    LowTrustError,
    MemoryShortError,
    PhotoFailedError,
    RefusedError,
    too_large,
)
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.urls import WebPhoto

_LOGGER = logging.getLogger("captioner.server")
_LONGEST_BATCH = 120.0  # seconds; a longer batch is stuck
# Pixels of a preview's longer side: sharp at 720 points on a high-density screen.
_LONGEST_PREVIEW = 1440
_SECONDS = 20.0  # time limit of a photo; the largest PNG takes five seconds
_NICE = 5  # lower priority than the model and ordinary photos
_BESIDE = 30_000_000  # pixels that can be decoded beside the largest photo
_WORKERS = 2  # processes for ordinary JPEGs, and as many for other photos
_FETCHING = 6  # processes for photos at URLs, which may wait for their hosts
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # variables that downloads need


def start_reader(captioner: Captioner, config: ServerConfig) -> Reader:
    """Start the decoding processes of a server."""
    reader = Reader(
        captioner.transform.config,
        workers=_WORKERS,
        quick=_WORKERS,
        fetching=_FETCHING if config.allow_urls else 0,
        max_pixels=captioner.max_pixels,
        seconds=_SECONDS,
        budget=captioner.max_pixels + _BESIDE,
        nice=_NICE,
        environment={name: os.environ[name] for name in _CERTIFICATES if name in os.environ},
    )
    reader.start()
    return reader


@dataclass(eq=False)
class Photo:
    """A photo of a request.

    name: the name that the client gave; no file of this name is opened.
    has_preview: also make a preview.
    preview: width, height and data URL of the preview, once the photo is decoded.
    """

    source: Readable
    name: str | None = None
    has_preview: bool = False
    preview: dict[str, Any] | None = None


class CaptionService:
    """One model for many clients.

    `reader` may be shared with other models; `threads` is the number of threads that torch uses for
    this model.
    """

    def __init__(
        self,
        captioner: Captioner,
        config: ServerConfig,
        metrics: Metrics,
        reader: Reader,
        *,
        threads: int,
    ) -> None:
        self.captioner, self.config = captioner, config
        self.metrics, self.reader = metrics, reader
        self._threads = threads
        self.batcher = Batcher(
            self._caption_batch, max_batch=config.max_batch, capacity=config.queue
        )

    def readable(self, photo: bytes | str) -> Readable:
        """Return a photo of a client, given its bytes or its URL."""
        if isinstance(photo, str):
            if not self.config.allow_urls:
                detail = "this server does not download photos: send the photo"
                raise RefusedError("forbidden", detail)
            return WebPhoto(photo, self.config.max_upload)
        if len(photo) > self.config.max_upload:
            raise too_large(self.config.max_upload)
        return EncodedPhoto("the image", photo)

    async def caption(
        self,
        photos: Sequence[Photo],
        config: GenerationConfig,
        *,
        client: str = "",
        check_attention: bool = False,
    ) -> list[Caption | ImageError]:
        """Caption photos, in order; a photo that fails has an ImageError in its place.

        Cancelling the caller removes its waiting photos from the queue. `client` is the key of the
        client in the fair queue; `check_attention` measures the effect of each word.
        """
        # Name the default style, so that requests with and without its name share a batch.
        style = self.captioner.vocabulary.style(config.style) or ""
        settings = JobSettings(replace(config, style=style), check_attention)
        with self.batcher.admit(len(photos) * settings.cost, client):
            self.metrics.queue.inc(len(photos))
            try:
                work = (self._caption_one(photo, settings, client) for photo in photos)
                results = await asyncio.gather(*work)
            finally:
                self.metrics.queue.dec(len(photos))
        for result in results:
            if isinstance(result, ImageError):
                self.metrics.errors.labels(result.type).inc()
            else:
                self.metrics.captions.inc()
        return results

    async def caption_one(
        self,
        photo: Readable,
        config: GenerationConfig,
        *,
        client: str,
        check_attention: bool = False,
    ) -> Caption:
        """Caption one photo; see `caption`."""
        (result,) = await self.caption(
            [Photo(photo)], config, client=client, check_attention=check_attention
        )
        if isinstance(result, Caption):
            return result
        try:
            raise result
        finally:
            del result  # its traceback would keep the photo in memory

    async def draw(
        self,
        photo: Readable,
        config: GenerationConfig,
        make: Callable[[Caption], Output],
        *,
        client: str,
    ) -> bytes:
        """Caption a photo, and draw `make(caption)`; see `caption`."""
        with self.batcher.admit(1, client):
            caption = await self.caption_one(photo, config, client=client)
            work = self.reader.produce(photo, [make(caption)], client=client)
            (drawn,) = await asyncio.wrap_future(work)
        drawn.check()
        return bytes(drawn.pixels)

    def check_capacity(self, client: str) -> None:
        """Raise BusyError or ClosedError, before an upload, if the queue has no room for it."""
        with self.batcher.admit(1, client):
            pass

    def check(self) -> None:
        """Check that the model works; a full queue is not an error."""
        if self.batcher.closed:
            raise ClosedError
        if not self.batcher.is_alive:
            raise RefusedError("not-ready", "the model's thread has ended; the log has the reason")
        begun = self.batcher.busy_since
        if begun is not None and time.monotonic() - begun > _LONGEST_BATCH:
            raise RefusedError("not-ready", f"a batch has taken more than {_LONGEST_BATCH:.0f} s")

    async def _caption_one(
        self, photo: Photo, settings: JobSettings, client: str
    ) -> Caption | ImageError:
        try:
            with self.batcher.decoding():
                decoded = await self._decode(photo, client)
                future = self.batcher.submit(decoded.prepared(), settings, client)
            caption = await asyncio.wrap_future(future)
            return caption.error or self._checked(caption)
        except ImageError as error:
            return error.without_traceback()
        except Exception as error:
            if is_out_of_memory(error):
                return MemoryShortError()
            _LOGGER.exception("a photo failed")
            reason = error.detail if isinstance(error, CaptionerError) else "its log has the reason"
            return PhotoFailedError(f"the server failed on the image ({reason}): try again")

    async def _decode(self, photo: Photo, client: str) -> Decoded:
        outputs: list[Output] = [Square(self.captioner.transform.config)]
        outputs += [Preview(_LONGEST_PREVIEW)] if photo.has_preview else []
        work = self.reader.produce(photo.source, outputs, client=client)
        square, *previews = await asyncio.wrap_future(work)
        square.check()
        for preview in previews:
            width, height = preview.shape
            image = f"data:image/jpeg;base64,{base64.b64encode(preview.pixels).decode()}"
            photo.preview = {"width": width, "height": height, "image": image}
        return square

    def _checked(self, caption: Caption) -> Caption | ImageError:
        minimum = self.config.minimum_trust
        if minimum is None or not caption.is_below(minimum):
            return caption
        return LowTrustError(
            f"the caption has a trust of {caption.trust or 0:.2f}; the server's minimum is "
            f"{minimum:g}: describe this photo yourself"
        )

    def _caption_batch(
        self, images: Sequence[PreparedImage], settings: JobSettings
    ) -> Sequence[Caption]:
        # Only this thread uses more than one thread of torch. With more threads than cores, libgomp
        # puts waiting threads to sleep after each loop, which is much slower.
        torch.set_num_threads(self._threads)
        self.metrics.batch_size.observe(len(images))
        return self.captioner.caption_prepared(
            images, settings.generation, check_attention=settings.check_attention
        )
