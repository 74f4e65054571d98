"""Decoding a photo into pixels, a picture or an error, and the result between processes.

The decoding processes import this module, so it must not import torch.
"""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np
from PIL import Image

from captioner import errors
from captioner.photos.formats import START_OF_SCAN, segments
from captioner.photos.open import MAX_PIXELS, open_image
from captioner.photos.transform import Box, Transform, TransformConfig
from captioner.shared.files import digest

if TYPE_CHECKING:
    from captioner.captioner import PreparedImage
    from captioner.drawing.overlay import Panel

_KINDS: dict[object, type[errors.CaptionerError]] = {
    kind.type: kind for kind in (getattr(errors, name) for name in errors.__all__)
}
_LONGEST_SIDE = 2400  # pixels of the longer side of a drawn photo
_WHOLE = Box(0.0, 0.0, 1.0, 1.0)
# Of ordinary JPEGs.
_ORDINARY_PIXELS = 30_000_000  # phones write 12 to 24 million
_SEGMENTS = 1000  # segments before the pixels; cameras write a few
_BYTES = 4_000_000  # bytes before the pixels; a colour profile has 1 to 3 MB


class Readable(Protocol):
    """A photo that can be pickled and read in another process."""

    @property
    def name(self) -> str:
        """The name of the photo in errors."""

    def read(self) -> bytes:
        """Read the bytes of the image file."""


class EncodedPhoto(NamedTuple):
    """A photo in memory: JPEG, PNG, ..."""

    name: str
    data: bytes

    def read(self) -> bytes:
        """Return the bytes."""
        return self.data


class Output(Protocol):
    """A result that the decoding process makes from a photo: a Square, or an image file.

    Outputs are pickled.
    """

    @property
    def at_least(self) -> int | None:
        """The minimum side to decode to, in pixels; see `open_image`. None: the full size."""

    def make(self, photo: Image.Image) -> tuple[bytes, tuple[int, int], Box]:
        """Return the result, its width and height, and the part of the photo that it shows."""


@dataclass(frozen=True)
class Square:
    """The square of a photo that the encoder takes."""

    config: TransformConfig

    @property
    def at_least(self) -> int | None:
        """See Output."""
        return Transform(self.config).at_least

    def make(self, photo: Image.Image) -> tuple[bytes, tuple[int, int], Box]:
        """See Output."""
        transform = Transform(self.config)
        square = transform.square(photo)
        return square.tobytes(), square.size, transform.box(*photo.size)


def _shrink(photo: Image.Image, longest: int) -> Image.Image:
    """Return a photo with neither side longer than `longest`; a smaller photo is not changed."""
    scale = longest / max(photo.size)
    if scale >= 1:
        return photo
    size = (max(1, round(photo.width * scale)), max(1, round(photo.height * scale)))
    return photo.resize(size, Image.Resampling.LANCZOS, reducing_gap=3)


@dataclass(frozen=True)
class Preview:
    """A JPEG of a photo that browsers cannot show, with no side longer than `longest` pixels."""

    longest: int
    at_least = None

    def make(self, photo: Image.Image) -> tuple[bytes, tuple[int, int], Box]:
        """See Output."""
        small = _shrink(photo, self.longest)
        small.save(buffer := io.BytesIO(), "JPEG", quality=90)
        return buffer.getvalue(), small.size, _WHOLE


@dataclass(frozen=True)
class Drawing:
    """A picture of a caption: a PNG of one word or all words, or an animated WebP."""

    kind: Literal["overlay", "sheet", "animation"]
    panels: Sequence[Panel]  # with weights as nested lists; one word for an overlay
    options: Mapping[str, Any]  # further arguments of overlay, contact_sheet or animation
    at_least = None

    def make(self, photo: Image.Image) -> tuple[bytes, tuple[int, int], Box]:
        """See Output."""
        from captioner.drawing.animation import animation  # batch does not need these
        from captioner.drawing.lettering import label
        from captioner.drawing.overlay import overlay
        from captioner.drawing.saving import encode_animation
        from captioner.drawing.sheet import contact_sheet

        photo = _shrink(photo, _LONGEST_SIDE)
        if self.kind == "animation":
            frames = animation(photo, self.panels, **self.options)
            return encode_animation(frames, ".webp"), frames[0].size, _WHOLE
        if self.kind == "sheet":
            picture = contact_sheet(photo, self.panels, **self.options)
        else:
            (panel,) = self.panels
            picture = overlay(photo, panel.weights, **self.options)
            picture = label(picture, panel.word, doubtful=panel.doubtful)
        # The fastest compression, because the picture is used once.
        picture.save(buffer := io.BytesIO(), "PNG", compress_level=1)
        return buffer.getvalue(), picture.size, _WHOLE


class Decoded(NamedTuple):
    """The result of decoding a photo."""

    content: bytes  # digest of the file's bytes; b"" if they could not be read
    size: tuple[int, int]  # width and height of the photo as viewed; (0, 0) after an error
    # uint8, height x width x 3 bytes, row by row; or an image file; b"" after an error
    pixels: bytes | memoryview
    shape: tuple[int, int]  # width and height of `pixels`
    box: Box = Box(0.0, 0.0, 0.0, 0.0)  # the part of the photo that the pixels show
    error: dict[str, str] | None = None  # type, title and detail

    @classmethod
    def failed(cls, error: errors.CaptionerError, content: bytes = b"") -> Decoded:
        """Return the result of a failed photo."""
        return cls(content, (0, 0), b"", (0, 0), error=error.record())

    def head(self) -> dict[str, Any]:
        """Return everything but the pixels, for JSON."""
        return {**self._asdict(), "content": self.content.hex(), "pixels": len(self.pixels)}

    @classmethod
    def of_head(cls, head: Any) -> tuple[Decoded, int]:
        """Return the result without pixels, and the number of bytes of the pixels.

        The head is untrusted, because a child process may be compromised.

        Raises ValueError, TypeError, KeyError, OverflowError: the head is invalid.
        """
        (width, height), (across, down) = head["size"], head["shape"]
        count, content, box = head["pixels"], bytes.fromhex(head["content"]), Box(*head["box"])
        numbers = (width, height, across, down, count)
        if not all(type(number) is int and number >= 0 for number in numbers) or len(content) > 16:
            raise ValueError(f"sizes {numbers} of {len(content)}")
        if not all(map(math.isfinite, box)):
            raise ValueError(f"box {box}")
        error = head["error"]
        if error is not None:
            kind = _KINDS.get(error["type"], errors.ImageError)
            error = {"type": kind.type, "title": kind.title, "detail": str(error["detail"])}
        return cls(content, (width, height), b"", (across, down), box, error), count

    def check(self) -> None:
        """Raise the error, if there is one, as its original class."""
        if self.error is not None:
            kind = _KINDS.get(self.error["type"], errors.ImageError)
            is_allowed = issubclass(kind, errors.ImageError | errors.ConfigError)
            raise (kind if is_allowed else errors.ImageError)(self.error["detail"])

    def prepared(self, *, image: str | None = None) -> PreparedImage:
        """Return the square for `Captioner.caption_prepared`; `image` is the name in the record."""
        from captioner.captioner import PreparedImage  # needs torch, which decoding does not

        flat = np.frombuffer(self.pixels, np.uint8)
        pixels = flat.reshape(self.shape[1], self.shape[0], 3).transpose(2, 0, 1)
        return PreparedImage(image=image, pixels=pixels, box=self.box, size=self.size)


def decode(
    photo: Readable,
    outputs: Sequence[Output],
    *,
    max_pixels: int = MAX_PIXELS,
    admit: Callable[[int], None] | None = None,
) -> list[Decoded]:
    """Read a photo once and make the outputs. If an output fails, all results have its error.

    `admit` is called with the number of pixels before they are decoded, and may block.
    """
    content = b""
    try:
        data = photo.read()
        content = digest(data)
        results = []
        for output in outputs:
            image = open_image(
                data, name=photo.name, at_least=output.at_least, max_pixels=max_pixels, admit=admit
            )
            size = image.info.get("size", image.size)
            results.append(Decoded(content, size, *output.make(image)))
        return results
    except errors.CaptionerError as error:
        problem = error
    except MemoryError:
        problem = errors.ImageTooLargeError(f"{photo.name} needs too much memory: make it smaller")
    except Exception as error:
        problem = errors.ImageTruncatedError(
            f"{photo.name} cannot be decoded ({error!r}): copy or export it again"
        )
    return [Decoded.failed(problem, content)] * len(outputs)


def is_ordinary(data: bytes) -> bool:
    """Return whether a file is a baseline JPEG, grey or RGB, with one scan and little metadata.

    Its decoding time depends only on its pixels. A CMYK profile may take seconds to apply.
    """
    components = 0
    if not data.startswith(b"\xff\xd8"):
        return False
    for number, (marker, begin, _) in enumerate(segments(data[:_BYTES])):
        if marker == START_OF_SCAN:
            return 0 < components == int.from_bytes(data[begin : begin + 1])
        if number == _SEGMENTS:
            return False
        if marker == 0xC0 and begin + 6 <= len(data):
            height, width, components = struct.unpack_from(">xHHB", data, begin)
            if width * height > _ORDINARY_PIXELS or components not in (1, 3):
                return False
        elif not (marker >= 0xE0 or marker in (0xC4, 0xDB, 0xDD)):
            return False  # progressive, lossless, arithmetic
    return False
