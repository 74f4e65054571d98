"""Decode untrusted photos in the decoding pool, for the server's event loop."""

from __future__ import annotations

import asyncio
import base64
import os
import threading
from collections.abc import Sequence
from typing import Any

from captioner.captioner import Captioner
from captioner.vision.transform import TransformConfig
from captioner_serving.decoding.decoded import Decoded, Output, Readable, Square
from captioner_serving.decoding.reader import Reader
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.drawing import Preview
from captioner_serving.server.metrics import Metrics

LONGEST_PREVIEW = 1440
"""Pixels of a preview's longer side: sharp at 720 points on a high-density screen."""

_SECONDS = 20.0  # time limit of a photo; the largest PNG takes five seconds
_NICE = 5  # lower priority than the model and ordinary photos
_BESIDE = 30_000_000  # pixels that can be decoded beside the largest photo
_WORKERS = 2  # processes for ordinary JPEGs, and as many for other photos
_FETCHING = 6  # processes for photos at URLs, which may wait for their hosts
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")  # variables that downloads need


class PhotoPool:
    """Decoding processes with a time limit, a memory limit and a fair queue.

    Args:
        captioner: its `max_pixels` is the limit of a photo.
        config: if it allows URLs, further processes download them.
        metrics: records the decoding time.
    """

    def __init__(self, captioner: Captioner, config: ServerConfig, metrics: Metrics) -> None:
        self._metrics = metrics
        self.reader = Reader(
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
        self.reader.start()

    async def produce(
        self, photo: Readable, outputs: Sequence[Output], *, client: str
    ) -> list[Decoded]:
        """Read a photo once and make the outputs. Cancelling the caller stops the decoding.

        Raises CaptionerError: the failure is not due to the photo; see Reader.produce.
        """
        cancelled = threading.Event()
        with self._metrics.photo.labels("opening").time():
            try:
                return await asyncio.wrap_future(
                    self.reader.produce(photo, outputs, client=client, is_stopped=cancelled.is_set)
                )
            finally:
                cancelled.set()

    def close(self) -> None:
        """Stop the processes."""
        self.reader.close()


class SharedPhoto:
    """A photo that is read and decoded once for all models.

    Args:
        pool: decodes the photo.
        photo: the photo.
        configs: the transforms of the models.
        client: the client's key in the fair queue.
        has_preview: also make a preview.
    """

    def __init__(
        self,
        pool: PhotoPool,
        photo: Readable,
        configs: Sequence[TransformConfig],
        *,
        client: str,
        has_preview: bool = False,
    ) -> None:
        self._pool, self._photo, self._client = pool, photo, client
        self._configs = list(dict.fromkeys(configs))
        self._has_preview = has_preview
        self._task: asyncio.Task[list[Decoded]] | None = None

    async def square(self, config: TransformConfig) -> Decoded:
        """Return the pixels for a model.

        Raises:
            ImageError: the photo cannot be decoded.
            CaptionerError: the failure is not due to the photo.
        """
        if self._task is None:
            outputs: list[Output] = [Square(config) for config in self._configs]
            outputs += [Preview(LONGEST_PREVIEW)] if self._has_preview else []
            work = self._pool.produce(self._photo, outputs, client=self._client)
            self._task = asyncio.create_task(work)
        results = await asyncio.shield(self._task)
        result = results[self._configs.index(config)]
        result.check()
        return result

    @property
    def preview(self) -> dict[str, Any] | None:
        """Width, height and data URL of the preview; None if there is none."""
        if not self._has_preview or self._task is None or not self._task.done():
            return None
        preview = self._task.result()[-1]
        width, height = preview.shape
        image = f"data:image/jpeg;base64,{base64.b64encode(preview.pixels).decode()}"
        return {"width": width, "height": height, "image": image}

    def cancel(self) -> None:
        """Stop decoding."""
        if self._task is not None:
            self._task.cancel()
