"""All exceptions that Captioner raises on purpose.

Each has `type` (a stable identifier for programs), `title` (the kind of problem) and `detail` (the
file or value, and the remedy). str(error) is the detail.
"""

from __future__ import annotations

import shlex
import sys
from typing import ClassVar, Self

__all__ = [
    "CaptionerError",
    "CheckpointError",
    "CheckpointFormatError",
    "CheckpointMismatchError",
    "CheckpointNotFoundError",
    "CheckpointVersionError",
    "ConfigError",
    "DataError",
    "DeviceError",
    "DownloadError",
    "GenerationError",
    "ImageEmptyError",
    "ImageError",
    "ImageFormatError",
    "ImageNotFoundError",
    "ImageTimeoutError",
    "ImageTooLargeError",
    "ImageTruncatedError",
    "ImageTypeError",
    "MissingExtraError",
    "NoWordsError",
    "OutputError",
    "UntrustedError",
]


class CaptionerError(Exception):
    """The base class of all exceptions in this module."""

    type: ClassVar[str] = "captioner-error"
    title: ClassVar[str] = "Captioner cannot continue"

    def __init_subclass__(cls, type: str = "", title: str = "") -> None:
        cls.type, cls.title = type or cls.type, title or cls.title

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def record(self) -> dict[str, str]:
        """Return the `error` of a record: type, title and detail."""
        return {"type": self.type, "title": self.title, "detail": self.detail}


class ImageError(CaptionerError, type="image-error", title="The image cannot be captioned"):
    """One image cannot be captioned; others can."""

    def without_traceback(self) -> Self:
        """Return a copy without the traceback, which would keep local variables alive."""
        return type(self)(self.detail)


class ImageNotFoundError(ImageError, type="image-not-found", title="The image cannot be read"):
    """The image file does not exist or cannot be read."""


class ImageEmptyError(ImageError, type="image-empty", title="The image is empty"):
    """The image has zero bytes or zero pixels."""


class ImageFormatError(ImageError, type="image-format", title="Not an image in a known format"):
    """The file is not an image, or in an unsupported format."""


class ImageTruncatedError(
    ImageError, type="image-truncated", title="The image is cut off or damaged"
):
    """The image is truncated or damaged."""


class ImageTypeError(ImageError, TypeError, type="image-type", title="Not an image"):
    """The object is not an image."""


class ImageTooLargeError(ImageError, type="image-too-large", title="The image is too large"):
    """The image has more pixels, bytes or parts than the limit."""


class ImageTimeoutError(ImageError, type="image-timeout", title="Decoding takes too long"):
    """Decoding the image takes longer than the limit."""


class NoWordsError(ImageError, type="no-words", title="The caption has no words"):
    """The model made no words for an image."""


class UntrustedError(ImageError, type="untrusted", title="The caption is not trusted"):
    """The caption of an image has less trust than required."""


class CheckpointError(
    CaptionerError, type="checkpoint-error", title="The checkpoint cannot be used"
):
    """A model file cannot be used."""


class CheckpointNotFoundError(
    CheckpointError, type="checkpoint-not-found", title="The checkpoint cannot be found"
):
    """The checkpoint file does not exist."""


class CheckpointFormatError(
    CheckpointError, type="checkpoint-format", title="Not a Captioner checkpoint"
):
    """The file is not a Captioner checkpoint, or it is damaged."""


class CheckpointVersionError(
    CheckpointError, type="checkpoint-version", title="A checkpoint of another version"
):
    """The checkpoint was written by an incompatible version of Captioner."""


class CheckpointMismatchError(
    CheckpointError, type="checkpoint-mismatch", title="The checkpoint contradicts itself"
):
    """The tensors in the checkpoint do not fit its own configuration."""


class ConfigError(CaptionerError, ValueError, type="config-error", title="A setting cannot work"):
    """A setting is invalid."""


class DataError(CaptionerError, type="data-error", title="The data set cannot be read"):
    """A data set cannot be read."""


class DownloadError(CaptionerError, type="download-error", title="The download failed"):
    """A file cannot be downloaded, or has the wrong content."""


class DeviceError(CaptionerError, type="device-error", title="The device is not available"):
    """The machine does not have the device."""


class GenerationError(
    CaptionerError, type="generation-error", title="The model produced no usable scores"
):
    """The model's scores are not finite."""


class OutputError(CaptionerError, type="output-error", title="The result cannot be written"):
    """A file cannot be written."""


class MissingExtraError(
    CaptionerError, type="missing-extra", title="An optional part is not installed"
):
    """An optional dependency is not installed."""

    def __init__(self, feature: str, extra: str) -> None:
        pip = f"{shlex.quote(sys.executable or 'python3')} -m pip"
        super().__init__(f"{feature} needs an extra: {pip} install 'captioner[{extra}]'")
