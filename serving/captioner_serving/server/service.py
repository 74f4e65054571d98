"""The captioning that the page and the API share: admit, decode, queue, caption."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path

from PIL import Image

from captioner.caption import Caption
from captioner.errors import CaptionerError, ImageError
from captioner.generation.config import GenerationConfig
from captioner.image import ImageSource
from captioner.predictor import Captioner, PreparedImage
from captioner_serving.server.batcher import Batcher, ClosedError, OnPlace
from captioner_serving.server.config import ServerConfig
from captioner_serving.server.cores import give_cores, stand_back
from captioner_serving.server.metrics import Metrics
from captioner_serving.server.problems import NotReadyError

__all__ = ["CaptionService"]

# On a CPU the model's thread decodes its batch itself: decoders beside it would take its cores, and
# cost more than they save. What is likely to be a large photo goes to a decoder all the same, or
# everybody would wait for it; and beside a GPU the cores are free.
_DECODERS, _LARGE = 2, 4_000_000  # threads; bytes
# /api/health believes a batch of the last seconds; after that it asks the model.
_FRESH, _PATIENCE = 5.0, 10.0


class CaptionService:
    """One model for many clients.

    Args:
        captioner: the model.
        config: sizes of the queue and of batches.
        metrics: where images, batches and errors are counted.
        threads: of torch, for the model's own thread; see captioner_serving.server.cores.

    """

    def __init__(
        self, captioner: Captioner, config: ServerConfig, metrics: Metrics, *, threads: int
    ) -> None:
        self.captioner = captioner
        self.config = config
        self.metrics = metrics
        self._answered = 0.0
        self._batcher = Batcher(
            captioner.caption_each,
            max_batch=config.max_batch,
            capacity=config.queue,
            on_start=partial(give_cores, threads),
            on_batch=self._on_batch,
        )
        self._decoders = ThreadPoolExecutor(
            _DECODERS, thread_name_prefix="decode", initializer=stand_back
        )
        metrics.queue.set_function(lambda: self._batcher.admitted)

    async def caption(
        self,
        images: Sequence[ImageSource],
        config: GenerationConfig,
        *,
        on_place: OnPlace | None = None,
    ) -> list[Caption | ImageError]:
        """Caption images, in order; one that cannot be opened fails alone, in its place.

        A caller that is cancelled takes its waiting images out of the queue.

        Args:
            images: what to caption.
            config: beam size and number of captions.
            on_place: told how many images of the queue come before each, whenever that changes.

        Raises:
            BusyError: no room in the queue.
            ClosedError: the server is shutting down.
            GenerationError: the model's scores are not numbers.

        """
        self._batcher.admit(len(images))
        tasks = [
            asyncio.create_task(self._caption_one(image, config, on_place)) for image in images
        ]
        try:
            results = await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise
        finally:
            self._batcher.release(len(images))
        self.metrics.captions.inc(sum(isinstance(result, Caption) for result in results))
        return results

    def require_room(self) -> None:
        """Refuse before an upload is read what would be refused after it.

        Raises:
            BusyError: no room in the queue for even one image.
            ClosedError: the server is shutting down.

        """
        self._batcher.admit(1)
        self._batcher.release(1)

    async def check(self) -> float:
        """Ask the model for a caption, unless it has just made one.

        Returns:
            the seconds since its last answer.

        Raises:
            NotReadyError: it does not answer within ten seconds.
            ClosedError: the server is shutting down.

        """
        if self._batcher.closed:
            raise ClosedError
        age = time.monotonic() - self._answered
        if age < _FRESH:
            return age
        side = self.captioner.transform.config.size
        blank = Image.new("RGB", (side, side), "gray")
        short = replace(self.captioner.generation, beam_size=1, captions=1, maximum_length=1)
        try:
            future = self._batcher.submit(blank, short)
            await asyncio.wait_for(asyncio.wrap_future(future), _PATIENCE)
        except TimeoutError as error:
            detail = f"it has not answered within {_PATIENCE:.0f} s"
            raise NotReadyError(detail) from error
        except CaptionerError as error:
            raise NotReadyError(error.detail) from error
        return 0.0

    def refuse(self) -> None:
        """Take on nothing more; what was accepted is finished."""
        self._batcher.refuse()

    def close(self) -> None:
        """Finish what was accepted, then stop."""
        self._batcher.close()
        self._decoders.shutdown(cancel_futures=True)

    async def _caption_one(
        self, image: ImageSource, config: GenerationConfig, on_place: OnPlace | None
    ) -> Caption | ImageError:
        # All captions of one beam size share a batch; how many of them are wanted is cut here.
        full = replace(config, captions=config.beam_size)
        try:
            ready = await self._decode(image) if self._decodes_apart(image) else image
            result = await asyncio.wrap_future(self._batcher.submit(ready, full, on_place))
        except ImageError as error:
            result = error
        if isinstance(result, ImageError):
            self.metrics.errors.labels(result.type).inc()
            return result
        return replace(result, alternatives=result.alternatives[: config.captions - 1])

    async def _decode(self, image: ImageSource) -> PreparedImage:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._decoders, self.captioner.prepare, image)

    def _decodes_apart(self, image: ImageSource) -> bool:
        if self.captioner.device.type != "cpu":
            return True
        if isinstance(image, bytes):
            return len(image) > _LARGE
        path = Path(image) if isinstance(image, str | Path) else None
        return path is not None and path.is_file() and path.stat().st_size > _LARGE

    def _on_batch(self, size: int, seconds: float) -> None:
        self._answered = time.monotonic()
        self.metrics.record_batch(size, seconds)
