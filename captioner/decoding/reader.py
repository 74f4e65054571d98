"""The process in which a Captioner opens photos that anybody may have made."""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial
from typing import Any

from PIL import Image

from captioner.decoding.decoder import Decoded, Decoder, EncodedPhoto
from captioner.decoding.pool import SECONDS, DecodePool
from captioner.errors import ConfigError, ImageError
from captioner.vision.image import MAX_PIXELS, FileSource, image_bytes, source_name
from captioner.vision.transform import TransformConfig

__all__ = ["Reader", "check_limits"]

_LONGEST = 86_400  # seconds; a day


def check_limits(max_pixels: int, seconds: float) -> None:
    """Refuse limits that no photo can keep, or that are none.

    Raises:
        ConfigError: `max_pixels` is below 1, or `seconds` not above 0.

    """
    if max_pixels < 1:
        raise ConfigError(f"max_pixels {max_pixels} is out of range: it is at least 1")
    if not 0 < seconds <= _LONGEST:
        raise ConfigError(f"seconds {seconds:g} is out of range: use above 0, at most {_LONGEST}")


class Reader:
    """Opens files with a limit of time and memory, in one process that starts with the first.

    The process imports no script and ends with this one. It can be left out: then a file that
    brings a decoder down, or takes all memory, takes this process with it.

    Args:
        transform: how a photo becomes a square.
        max_pixels: larger photos are refused.
        seconds: that one photo may take to be decoded.
        in_process: decode in this process, without limits of time and memory.

    Raises:
        ConfigError: `max_pixels` is below 1, or `seconds` not above 0.

    """

    def __init__(
        self,
        transform: TransformConfig,
        *,
        max_pixels: int = MAX_PIXELS,
        seconds: float = SECONDS,
        in_process: bool = False,
    ) -> None:
        check_limits(max_pixels, seconds)
        self._settings = partial(
            Reader, transform, max_pixels=max_pixels, seconds=seconds, in_process=in_process
        )
        self._decoder = Decoder(transform, max_pixels=max_pixels)
        self._pool = partial(
            DecodePool, transform, workers=1, max_pixels=max_pixels, seconds=seconds
        )
        self._in_process = in_process or os.name != "posix"
        self._max_pixels = max_pixels
        self._lock = threading.Lock()
        self._running: tuple[int, DecodePool] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        """Copy and pickle the settings: a process is nobody else's."""
        return self._settings, ()

    def start(self) -> None:
        """Start the process now: it imports what it needs while its parent does something else."""
        if not self._in_process:
            self._started()

    def square(self, source: FileSource) -> Decoded:
        """Bring a file to the encoder's square, or say what is wrong with it.

        Raises:
            CaptionerError: the process cannot be started, or memory is short.

        """
        return self._decode(source, longest=None)

    def picture(self, source: FileSource) -> Image.Image:
        """Open a whole photo.

        Raises:
            ImageError: it cannot be opened.
            CaptionerError: the process cannot be started, or memory is short.

        """
        decoded = self._decode(source, longest=self._max_pixels)
        decoded.check()
        return Image.frombytes("RGB", decoded.shape, decoded.pixels)

    def _decode(self, source: FileSource, *, longest: int | None) -> Decoded:
        try:
            # Read here: a path may be a pipe of this process, or one of its open files.
            photo = EncodedPhoto(source_name(source), image_bytes(source))
        except ImageError as error:
            return Decoded.failed(error)
        if self._in_process:
            return self._decoder(photo, longest=longest)
        return self._started().submit(photo, longest=longest).result()

    def _started(self) -> DecodePool:
        with self._lock:
            # A fork has the memory of its parent, but none of its threads.
            if self._running is None or self._running[0] != os.getpid():
                self._running = os.getpid(), self._pool()
                weakref.finalize(self, _close, *self._running)
            return self._running[1]


def _close(owner: int, pool: DecodePool) -> None:
    if os.getpid() == owner:
        pool.close()
