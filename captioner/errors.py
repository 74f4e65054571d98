"""All exceptions that Captioner raises on purpose.

CaptionerError
├── ImageError                  one image cannot be captioned; others can
│   ├── ImageNotFoundError        the file does not exist or cannot be read
│   ├── ImageEmptyError           zero bytes or zero pixels
│   ├── ImageFormatError          not an image, or in an unsupported format
│   ├── ImageTypeError            an object that is not an image
│   ├── ImageTruncatedError       truncated or damaged
│   ├── ImageTooLargeError        more pixels than the limit
│   └── UntrustedError            its caption has less trust than required
├── CheckpointError             a model file cannot be used
│   ├── CheckpointNotFoundError   the file does not exist
│   ├── CheckpointFormatError     not a Captioner checkpoint, or damaged
│   ├── CheckpointVersionError    written by an incompatible version of Captioner
│   └── CheckpointMismatchError   its tensors do not fit its own configuration
├── ConfigError                 an invalid setting
├── DataError                   a data set cannot be read
├── DownloadError               a file cannot be downloaded, or has the wrong content
├── DeviceError                 this machine does not have the device
├── GenerationError             the model's scores are not finite
├── OutputError                 a file cannot be written
└── MissingExtraError           an optional dependency is not installed

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
    "ImageTooLargeError",
    "ImageTruncatedError",
    "ImageTypeError",
    "MissingExtraError",
    "OutputError",
    "UntrustedError",
]


class CaptionerError(Exception):
    """The base class of all exceptions in this module."""

    type: ClassVar[str] = "captioner-error"
    title: ClassVar[str] = "Captioner cannot continue"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def record(self) -> dict[str, str]:
        """Return the `error` of a record: type, title and detail."""
        return {"type": self.type, "title": self.title, "detail": self.detail}


class ImageError(CaptionerError):
    """One image cannot be captioned; others can."""

    type = "image-error"
    title = "The image cannot be captioned"

    def without_traceback(self) -> Self:
        """Return a copy without the traceback, which would keep local variables alive."""
        return type(self)(self.detail)


class ImageNotFoundError(ImageError):
    """The image file does not exist or cannot be read."""

    type = "image-not-found"
    title = "The image cannot be read"


class ImageEmptyError(ImageError):
    """The image has zero bytes or zero pixels."""

    type = "image-empty"
    title = "The image is empty"


class ImageFormatError(ImageError):
    """The file is not an image, or in an unsupported format."""

    type = "image-format"
    title = "Not an image in a known format"


class ImageTruncatedError(ImageError):
    """The image is truncated or damaged."""

    type = "image-truncated"
    title = "The image is cut off or damaged"


class ImageTypeError(ImageError, TypeError):
    """The object is not an image."""

    type = "image-type"
    title = "Not an image"


class ImageTooLargeError(ImageError):
    """The image has more pixels than the limit."""

    type = "image-too-large"
    title = "The image has too many pixels"


class UntrustedError(ImageError):
    """The caption of an image has less trust than required."""

    type = "untrusted"
    title = "The caption is not trusted"


class CheckpointError(CaptionerError):
    """A model file cannot be used."""

    type = "checkpoint-error"
    title = "The checkpoint cannot be used"


class CheckpointNotFoundError(CheckpointError):
    """The checkpoint file does not exist."""

    type = "checkpoint-not-found"
    title = "The checkpoint cannot be found"


class CheckpointFormatError(CheckpointError):
    """The file is not a Captioner checkpoint, or it is damaged."""

    type = "checkpoint-format"
    title = "Not a Captioner checkpoint"


class CheckpointVersionError(CheckpointError):
    """The checkpoint was written by an incompatible version of Captioner."""

    type = "checkpoint-version"
    title = "A checkpoint of another version"


class CheckpointMismatchError(CheckpointError):
    """The tensors in the checkpoint do not fit its own configuration."""

    type = "checkpoint-mismatch"
    title = "The checkpoint contradicts itself"


class ConfigError(CaptionerError, ValueError):
    """A setting is invalid."""

    type = "config-error"
    title = "A setting cannot work"


class DataError(CaptionerError):
    """A data set cannot be read."""

    type = "data-error"
    title = "The data set cannot be read"


class DownloadError(CaptionerError):
    """A file cannot be downloaded, or has the wrong content."""

    type = "download-error"
    title = "The download failed"


class DeviceError(CaptionerError):
    """The machine does not have the device."""

    type = "device-error"
    title = "The device is not available"


class GenerationError(CaptionerError):
    """The model's scores are not finite."""

    type = "generation-error"
    title = "The model produced no usable scores"


class OutputError(CaptionerError):
    """A file cannot be written."""

    type = "output-error"
    title = "The result cannot be written"


class MissingExtraError(CaptionerError):
    """An optional dependency is not installed."""

    type = "missing-extra"
    title = "An optional part is not installed"

    def __init__(self, feature: str, extra: str) -> None:
        pip = f"{shlex.quote(sys.executable or 'python3')} -m pip"
        super().__init__(f"{feature} needs an extra: {pip} install 'captioner[{extra}]'")
