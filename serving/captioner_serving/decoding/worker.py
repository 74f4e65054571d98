"""A process that decodes photos; captioner_serving.decoding.pool starts it.

It reads photos from a socket and answers with squares of pixels. It imports no torch, so that
it takes little memory, and ends when the socket does, however its parent ended.
"""

from __future__ import annotations

import io
import signal
import warnings
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from captioner.errors import CaptionerError, ImageTooLargeError, ImageTruncatedError
from captioner.geometry import Framing, TransformConfig
from captioner.image import open_image
from captioner_serving.batch.inputs.photos import Photo, digest

__all__ = ["Decoded", "Decoder", "serve"]


class Decoded(NamedTuple):
    """What became of a photo.

    content: digest of the file's bytes, b"" where they could not be read.
    size: width and height as the viewer sees it.
    pixels: size x size x 3 bytes of the checkpoint's square, row by row.
    error: type, title and detail, where it failed; then there are no pixels.
    """

    content: bytes
    size: tuple[int, int]
    pixels: bytes
    error: dict[str, str] | None


class _NamedBytes(io.BytesIO):
    """Bytes that open_image can name in its errors."""

    def __init__(self, data: bytes, name: str) -> None:
        super().__init__(data)
        self.name = name


class Decoder:
    """Photo -> square, with every failure turned into an error record."""

    def __init__(self, config: TransformConfig, *, max_pixels: int) -> None:
        self._framing = Framing(config)
        self._max_pixels = max_pixels

    def __call__(self, photo: Photo) -> Decoded:
        """Read, decode, make square."""
        content = b""
        try:
            data = photo.read()
            content = digest(data)
            image = open_image(
                _NamedBytes(data, photo.name),
                at_least=self._framing.at_least,
                max_pixels=self._max_pixels,
            )
            square = self._framing.square(image)
        except CaptionerError as error:
            return Decoded(content, (0, 0), b"", error.record())
        except MemoryError:
            reason = f"{photo.name} does not fit into memory: make it smaller"
            return Decoded(content, (0, 0), b"", ImageTooLargeError(reason).record())
        except Exception as error:
            reason = f"{photo.name} cannot be decoded ({error!r}): copy or export it again"
            return Decoded(content, (0, 0), b"", ImageTruncatedError(reason).record())
        return Decoded(content, image.size, square.tobytes(), None)


def serve(descriptor: int) -> None:
    """Answer photo by photo until the other side closes."""
    # An interrupt from the keyboard reaches the whole group; the parent decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Pillow warns of odd metadata in photos that it reads all the same.
    warnings.simplefilter("ignore")
    connection: Connection[Decoded, Any] = Connection(descriptor)
    try:
        config, max_pixels = connection.recv()
        decode = Decoder(config, max_pixels=max_pixels)
        while True:
            connection.send(decode(connection.recv()))
    except (EOFError, ConnectionError):
        return
