"""Photos of strangers, decoded in the pool of decoding processes for the server's event loop."""

from __future__ import annotations

import asyncio
import base64
import threading
from collections.abc import Sequence
from typing import Any

from captioner.predictor import Captioner
from captioner.vision.transform import TransformConfig
from captioner_serving.decoding.decoded import Decoded, Output, Readable, Square
from captioner_serving.decoding.reader import Reader
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.drawing import Preview
from captioner_serving.server.metrics import Metrics

__all__ = ["LONGEST_PREVIEW", "PhotoPool", "SharedPhoto"]

LONGEST_PREVIEW = 1440
"""Pixels of a preview's longer side: sharp at 720 points on a high-density screen."""

# One photo has so many seconds (the largest PNG takes five). The processes stand back for the model
# and for ordinary photos, and beside the largest photo there is room for a usual one.
_SECONDS, _NICE, _BESIDE = 20.0, 5, 30_000_000
_OPENED = 2  # such photos at once
_FETCHED = 6  # photos behind addresses at once; each may wait for its host


class PhotoPool:
    """Decoding processes with a deadline, a memory limit and a fair queue.

    Args:
        captioner: whose limit of pixels is used.
        config: whether photos are fetched.
        metrics: where the time of opening is counted.
    """

    def __init__(self, captioner: Captioner, config: ServerConfig, metrics: Metrics) -> None:
        self._metrics = metrics
        self.reader = Reader(
            captioner.transform.config,
            workers=_OPENED,
            quick=1,
            fetching=_FETCHED if config.allow_urls else 0,
            max_pixels=captioner.max_pixels,
            seconds=_SECONDS,
            budget=captioner.max_pixels + _BESIDE,
            nice=_NICE,
        )
        self.reader.start()

    async def produce(
        self, photo: Readable, outputs: Sequence[Output], *, client: str
    ) -> list[Decoded]:
        """Read a photo once and make the outputs; a caller that is cancelled stops the work.

        Raises CaptionerError: the photo is not to blame; see Reader.produce.
        """
        gone = threading.Event()
        with self._metrics.photo.labels("opening").time():
            try:
                return await asyncio.wrap_future(
                    self.reader.produce(photo, outputs, client=client, is_stopped=gone.is_set)
                )
            finally:
                gone.set()

    def close(self) -> None:
        """End the processes."""
        self.reader.close()


class SharedPhoto:
    """A photo that is read and decoded once, however many models caption it.

    Args:
        pool: where it is decoded.
        photo: what to read.
        configs: the transforms of all models that caption it.
        client: whose photo it is.
        has_preview: whether a preview is made in the same turn.
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
            ImageError: the photo cannot be opened.
            CaptionerError: the photo is not to blame.
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
        """Width, height and data URL of the preview; None where there is none."""
        if not self._has_preview or self._task is None or not self._task.done():
            return None
        preview = self._task.result()[-1]
        width, height = preview.shape
        image = f"data:image/jpeg;base64,{base64.b64encode(preview.pixels).decode()}"
        return {"width": width, "height": height, "image": image}

    def cancel(self) -> None:
        """Stop decoding it."""
        if self._task is not None:
            self._task.cancel()
