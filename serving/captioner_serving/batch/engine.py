"""The engine for one machine: worker processes decode while threads encode and search.

On a CPU, several threads with a batch each are faster than one batch on all cores: the threads do
not wait for each other after every operation.
"""

from __future__ import annotations

import gc
import queue
import threading
from collections.abc import Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from captioner.caption import Caption
from captioner.captioner import Captioner
from captioner.closing import Closing
from captioner.errors import CaptionerError
from captioner.generation.config import GenerationConfig
from captioner.inference.device import cores
from captioner.shared.text import counted
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.inputs.photos import Photo
from captioner_serving.batch.inputs.urls import url_environment
from captioner_serving.decoding.photo import Decoded
from captioner_serving.decoding.pool import Reader
from captioner_serving.memory import is_out_of_memory

_CPU_BATCH = 32  # larger batches do not fit the caches, smaller ones do not use all matrix units
_GPU_BATCH = 128  # larger batches were slower (docs/performance.md)
_ALLOCATIONS = 20_000  # new objects, of about 500 photos, after which garbage is collected
_FAILING = 8  # a batch has at most this many times its size of photos, including failed ones


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A photo and its record, which may be an error."""

    photo: Photo
    record: dict[str, Any]


_Batch = list[tuple[Photo, Decoded]]
_Submitted = tuple[_Batch, "Future[list[Caption]]"]


class LocalEngine(Closing):
    """Captions on the device of a Captioner. `share`: the number of cores to use; None: all."""

    def __init__(
        self,
        captioner: Captioner,
        generation: GenerationConfig,
        config: BatchConfig,
        *,
        share: int | None = None,
    ) -> None:
        share = share or cores()
        self.captioner, self.generation, self._config = captioner, generation, config
        # Halved permanently when memory runs out.
        is_cpu, is_cuda = (captioner.device.type == kind for kind in ("cpu", "cuda"))
        self.batch_size = config.batch_size or (_GPU_BATCH if is_cuda else _CPU_BATCH)
        self.workers = config.workers or share
        # On a GPU one batch is launched while the results of the other are read.
        self.streams = min(share, 8) if is_cpu else 2
        self._before = torch.get_num_threads(), gc.get_threshold()
        self._threads = ThreadPoolExecutor(
            self.streams,
            "captioning",
            initializer=_begin_thread,
            initargs=(max(1, share // self.streams), captioner.device),
        )
        self._reader = Reader(
            captioner.transform.config,
            max_pixels=config.max_pixels or captioner.max_pixels,
            workers=self.workers,
            fetching=self.workers,
            environment=url_environment(),
        )
        # Otherwise garbage collections would visit all objects of torch and of the model, and
        # records that are not written yet, again and again.
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS)

    def close(self) -> None:
        """Stop processes and threads."""
        self._reader.close()
        self._threads.shutdown(cancel_futures=True)
        torch.set_num_threads(self._before[0])
        gc.set_threshold(*self._before[1])
        gc.unfreeze()

    @property
    def description(self) -> str:
        """Device, dtype, batch size and workers, for the summary."""
        dtype = str(self.captioner.dtype).removeprefix("torch.")
        return (
            f"{dtype} on {self.captioner.device}, batches of {self.batch_size} in "
            f"{counted(self.streams, 'thread')}, {counted(self.workers, 'decoding process')}"
        )

    def run(self, photos: Iterator[Photo]) -> Generator[list[Outcome]]:
        """Yield the outcomes of each batch, in the order of the photos.

        A batch has consecutive photos, and its end depends only on these. So a resumed run makes
        the same batches, and the same records to the bit.
        """
        ready: queue.Queue[_Submitted | BaseException | None] = queue.Queue(self.streams + 1)
        stop = threading.Event()
        # A daemon, because it may block on a list from a pipe.
        feeder = threading.Thread(target=self._feed, args=(photos, ready, stop), daemon=True)
        feeder.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                yield list(self._outcomes(item[0], item[1].result()))
        finally:
            stop.set()

    def _feed(
        self,
        photos: Iterator[Photo],
        ready: queue.Queue[_Submitted | BaseException | None],
        stop: threading.Event,
    ) -> None:
        """Make batches and submit them to the captioning threads; runs in its own thread."""

        def put(item: _Submitted | BaseException | None) -> None:
            while not stop.is_set():
                with suppress(queue.Full):
                    ready.put(item, timeout=0.2)
                    return

        end: BaseException | None = None
        try:
            for batch in self._batches(photos):
                if stop.is_set():
                    return
                put((batch, self._threads.submit(self._caption, batch)))
        except BaseException as error:  # raised in `run`
            end = error
        put(end)

    def _batches(self, photos: Iterator[Photo]) -> Iterator[_Batch]:
        batch: _Batch = []
        sound = 0
        try:
            for photo, decoded in self._reader.stream(photos, ahead=2 * self.batch_size):
                batch.append((photo, decoded))
                sound += decoded.error is None
                if sound >= self.batch_size or len(batch) >= _FAILING * self.batch_size:
                    yield batch
                    batch, sound = [], 0
        except CaptionerError:
            yield batch
            raise
        if batch:
            yield batch

    def _caption(self, batch: _Batch) -> list[Caption]:
        """Caption the sound photos of a batch; if memory runs out, caption its halves."""
        sound = [(photo, decoded) for photo, decoded in batch if decoded.error is None]
        images = [decoded.prepared(image=photo.name) for photo, decoded in sound]
        check = self._config.check_attention
        try:
            return self.captioner.caption_prepared(images, self.generation, check_attention=check)
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(sound) == 1:
                raise CaptionerError(
                    f"there is not enough memory for one photo ({error}): "
                    "use a smaller beam or another device"
                ) from error
        self.captioner.graphs.clear()
        half = (len(sound) + 1) // 2
        self.batch_size = min(self.batch_size, half)
        return self._caption(sound[:half]) + self._caption(sound[half:])

    def _outcomes(self, batch: _Batch, captions: list[Caption]) -> Iterator[Outcome]:
        remaining = iter(captions)
        for photo, decoded in batch:
            if (error := decoded.error) is None:
                caption = next(remaining)
                error = None if caption.error is None else caption.error.record()
            if error is None:
                record = caption.record(
                    attention=self._config.attention,
                    minimum_trust=self._config.minimum_trust,
                    keywords=self._config.keywords,
                )
            else:
                record = {"image": photo.name, "error": error}
            yield Outcome(photo=photo, record=record)


def _begin_thread(threads: int, device: torch.device) -> None:
    """Set the number of cores of a captioning thread; on a GPU also give it a separate stream.

    With a shared stream, reading the results of one batch would wait for the other batch too.
    """
    torch.set_num_threads(threads)
    if device.type == "cuda":
        stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(device))  # it copied the weights
        torch.cuda.set_stream(stream)
