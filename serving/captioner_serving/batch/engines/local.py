"""The engine for one machine: worker processes decode while threads encode and search.

On a CPU, several threads with a batch each beat one batch that all cores share: while one is in the
encoder another is in the decoder, and none waits for the others at the end of every operation.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from captioner.caption import Caption
from captioner.cores import cores
from captioner.decoding.decoded import Decoded
from captioner.decoding.prepared import prepared_images
from captioner.decoding.reader import Reader
from captioner.errors import CaptionerError
from captioner.generation.config import GenerationConfig
from captioner.predictor import Captioner
from captioner.vision.transform import Box
from captioner_serving.allocator import MemoryCeiling, is_out_of_memory
from captioner_serving.batch.config import BatchConfig
from captioner_serving.batch.engines.outcome import Claim, Outcome
from captioner_serving.batch.inputs.photos import MemoryPhoto, Photo

__all__ = ["LocalEngine", "caption_decoded"]

_CPU_BATCH = 32  # larger ones fall out of the caches, smaller ones leave the matrix units waiting
_GPU_SHARE = 0.5  # of the free memory that a batch may take
_GPU_LARGEST = 512
_WARM_UP = 16  # batches, after which a run has the memory that it needs
_CARRIED = 1 << 27  # bytes of files out of a compressed archive that a batch may keep
_SPAN = 8  # batches of photos that fail or are twins before a batch is closed without being full


class _Entry(NamedTuple):
    photo: Photo
    decoded: Decoded
    twin: bool

    @property
    def fresh(self) -> bool:
        """Whether there is something to caption."""
        return self.decoded.error is None and not self.twin


_Span = list[_Entry]
_Item = tuple[_Span, "Future[list[Caption]]"]


class LocalEngine:
    """Captions on the device of a Captioner.

    Args:
        captioner: the model.
        generation: how sentences are made.
        config: says what a record carries, and how many processes decode.
        batch_size: photos at once; None finds it. Halved, for good, when memory runs out.

    """

    def __init__(
        self,
        captioner: Captioner,
        generation: GenerationConfig,
        config: BatchConfig,
        *,
        batch_size: int | None,
    ) -> None:
        self.captioner = captioner
        self.generation = generation
        self.batch_size = batch_size or _suited_batch_size(
            captioner, generation, check_attention=config.check_attention
        )
        self.workers = config.workers or cores()
        self._attention, self._check = config.attention, config.check_attention
        self._maps = config.maps is not None  # which are drawn on the photo itself
        self._stop = threading.Event()
        self._memory = MemoryCeiling(rounds=_WARM_UP)
        # A GPU does one thing at a time; the second thread prepares its next.
        self.streams = 2 if captioner.device.type != "cpu" else min(cores(), 8)
        self.threads = max(1, cores() // self.streams)

    @property
    def description(self) -> str:
        """Where and how, for the summary."""
        dtype = str(self.captioner.dtype).removeprefix("torch.")
        return (
            f"{dtype} on {self.captioner.device}, batches of {self.batch_size} in {self.streams} "
            f"{'thread' if self.streams == 1 else 'threads'}, {self.workers} decoding "
            f"{'process' if self.workers == 1 else 'processes'}"
        )

    def run(self, photos: Iterator[Photo], claim: Claim) -> Generator[list[Outcome]]:
        """See Engine.run."""
        before = torch.get_num_threads()
        ready: queue.Queue[_Item | BaseException | None] = queue.Queue(self.streams + 1)
        self._stop.clear()
        pool = ThreadPoolExecutor(
            self.streams, "captioning", initializer=torch.set_num_threads, initargs=(self.threads,)
        )
        reader = Reader(
            self.captioner.transform.config,
            max_pixels=self.captioner.max_pixels,
            workers=self.workers,
            environment=os.environ,  # links are read there, with what opens them
        )
        feeder = threading.Thread(
            target=self._feed,
            args=(reader.stream(photos, ahead=2 * self.batch_size), claim, pool, ready),
            name="feeding",
            daemon=True,
        )
        feeder.start()
        try:
            while (item := ready.get()) is not None:
                if isinstance(item, BaseException):
                    raise item
                span, captions = item
                yield list(self._outcomes(span, captions.result(), reader))
        finally:
            self._stop.set()
            reader.close()
            pool.shutdown(cancel_futures=True)
            feeder.join(timeout=10)
            torch.set_num_threads(before)

    def _feed(
        self,
        decoded: Iterator[tuple[Photo, Decoded]],
        claim: Claim,
        pool: ThreadPoolExecutor,
        ready: queue.Queue[_Item | BaseException | None],
    ) -> None:
        """Make batches, hand them to the threads: the body of a thread of its own."""
        end: BaseException | None = None
        try:
            for span in self._spans(decoded, claim):
                self._put(ready, (span, pool.submit(self._caption, span)))
                if self._stop.is_set():
                    return
        except BaseException as error:  # it belongs to whoever waits for the batches
            end = error
        self._put(ready, end)

    def _put(self, ready: queue.Queue[Any], item: object) -> None:
        while not self._stop.is_set():
            with suppress(queue.Full):
                ready.put(item, timeout=0.2)
                return

    def _spans(self, decoded: Iterator[tuple[Photo, Decoded]], claim: Claim) -> Iterator[_Span]:
        span: _Span = []
        fresh = carried = 0
        try:
            for photo, result in decoded:
                twin = result.error is None and not claim(result.content)
                entry = _Entry(photo, result._replace(pixels=b"") if twin else result, twin)
                if not (self._maps and result.error is None):
                    entry = entry._replace(photo=photo.light())
                elif isinstance(photo, MemoryPhoto):
                    carried += len(photo.data)
                span.append(entry)
                fresh += entry.fresh
                full = fresh >= self.batch_size or carried >= _CARRIED
                if full or len(span) >= _SPAN * self.batch_size:
                    yield span
                    span, fresh, carried = [], 0, 0
        except CaptionerError:
            yield span
            raise
        if span:
            yield span

    def _caption(self, span: _Span) -> list[Caption]:
        try:
            return self._caption_fitting([entry for entry in span if entry.fresh])
        finally:
            self._memory.check()

    def _caption_fitting(self, entries: _Span) -> list[Caption]:
        """Caption as one batch, or as two where memory does not suffice."""
        try:
            return caption_decoded(
                self.captioner,
                [entry.photo.name for entry in entries],
                [entry.decoded for entry in entries],
                self.generation,
                check_attention=self._check,
            )
        except (MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if len(entries) == 1:
                raise CaptionerError(
                    f"there is not enough memory for a single photo ({error}): "
                    "use a smaller beam, or another device"
                ) from error
        if self.captioner.device.type == "cuda":
            torch.cuda.empty_cache()
        half = (len(entries) + 1) // 2
        self.batch_size = min(self.batch_size, half)
        return self._caption_fitting(entries[:half]) + self._caption_fitting(entries[half:])

    def _outcomes(self, span: _Span, captions: list[Caption], reader: Reader) -> Iterator[Outcome]:
        made = iter(captions)
        for photo, decoded, twin in span:
            if decoded.error is not None:
                yield Outcome(photo=photo, content=decoded.content, error=decoded.error)
            elif twin:
                yield Outcome(photo=photo, content=decoded.content)
            else:
                caption = next(made)
                record = caption.record(attention=self._attention)
                # For maps; it is read again where it can bring down no more than a process.
                caption = replace(caption, open_photo=partial(reader.picture, photo))
                yield Outcome(photo=photo, content=decoded.content, record=record, caption=caption)


def caption_decoded(
    captioner: Captioner,
    names: Sequence[str],
    decoded: Sequence[Decoded],
    generation: GenerationConfig,
    *,
    check_attention: bool,
) -> list[Caption]:
    """Caption as one batch what was decoded without an error."""
    if not decoded:
        return []
    prepared = prepared_images(zip(names, decoded, strict=True))
    return captioner.caption_prepared(prepared, generation, check_attention=check_attention)


def _suited_batch_size(
    captioner: Captioner, generation: GenerationConfig, *, check_attention: bool
) -> int:
    """Find how many photos at once suit the device.

    On a CPU the caches decide. On a GPU it is the memory: a small batch of noise is captioned, and
    what it took says how many fit.
    """
    if captioner.device.type != "cuda":
        return _CPU_BATCH
    side, few = captioner.transform.config.size, 8
    whole, pixels = (side, side), os.urandom(3 * side * side)
    noise = Decoded(b"", whole, pixels, whole, Box(0.0, 0.0, 1.0, 1.0))
    torch.cuda.reset_peak_memory_stats(captioner.device)
    before = torch.cuda.memory_allocated(captioner.device)
    caption_decoded(
        captioner, [""] * few, [noise] * few, generation, check_attention=check_attention
    )
    each = (torch.cuda.max_memory_allocated(captioner.device) - before) / few
    free, _ = torch.cuda.mem_get_info(captioner.device)
    size = 1
    while 2 * size <= min(_GPU_LARGEST, free * _GPU_SHARE / each):
        size *= 2
    return size
