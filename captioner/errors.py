"""Every error that Captioner raises on purpose.

CaptionerError
├── ImageError                  one image cannot be captioned; the others can
│   ├── ImageNotFoundError        no such file, or it cannot be read
│   ├── ImageEmptyError           zero bytes, or zero pixels
│   ├── ImageFormatError          not an image, or a format that is not read
│   ├── ImageTypeError            an object that no image can be made of
│   ├── ImageTruncatedError       begins as an image, but is cut off or damaged
│   ├── ImageTooLargeError        more pixels than the limit
│   └── UntrustedError            its caption has less trust than was asked for
├── CheckpointError             a model file cannot be used
│   ├── CheckpointNotFoundError   no such file
│   ├── CheckpointFormatError     not a Captioner checkpoint, or damaged
│   ├── CheckpointVersionError    written by a version of Captioner that this one cannot read
│   └── CheckpointMismatchError   its tensors do not fit its own configuration
├── ConfigError                 a setting has a value that cannot work
├── DataError                   a data set cannot be read
├── DownloadError               a file cannot be downloaded, or is not the one that was expected
├── DeviceError                 a device that this machine does not have
├── GenerationError             the model produced scores that are not finite numbers
├── OutputError                 a result cannot be written
└── MissingExtraError           an optional part is not installed

Each carries `type` (a stable slug for programs), `title` (the kind of problem, in words) and
`detail` (this problem: the file or value, and the remedy). str(error) is the detail.
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
    """The root: `except CaptionerError` catches every error listed above."""

    type: ClassVar[str] = "captioner-error"
    title: ClassVar[str] = "Captioner cannot continue"

    def __init__(self, detail: str) -> None:
        super().__init__(detail)
        self.detail = detail

    def record(self) -> dict[str, str]:
        """The error as it stands in a caption record: type, title and detail."""
        return {"type": self.type, "title": self.title, "detail": self.detail}


class ImageError(CaptionerError):
    """One image cannot be captioned; the others can."""

    type = "image-error"
    title = "The image cannot be captioned"

    def without_traceback(self) -> Self:
        """The same error for keeping: one that was raised holds what every caller had at hand."""
        return type(self)(self.detail)


class ImageNotFoundError(ImageError):
    """There is no such file, or it cannot be read."""

    type = "image-not-found"
    title = "The image cannot be read"


class ImageEmptyError(ImageError):
    """The image has zero bytes or zero pixels."""

    type = "image-empty"
    title = "The image is empty"


class ImageFormatError(ImageError):
    """The bytes are not an image, or in a format that is not read."""

    type = "image-format"
    title = "Not an image in a known format"


class ImageTruncatedError(ImageError):
    """The file begins as an image but ends too early, or is damaged inside."""

    type = "image-truncated"
    title = "The image is cut off or damaged"


class ImageTypeError(ImageError, TypeError):
    """No image can be made of such an object."""

    type = "image-type"
    title = "Not an image"


class ImageTooLargeError(ImageError):
    """The image has more pixels than the limit allows."""

    type = "image-too-large"
    title = "The image has too many pixels"


class UntrustedError(ImageError):
    """The caption of an image has less trust than was asked for."""

    type = "untrusted"
    title = "The caption is not trusted"


class CheckpointError(CaptionerError):
    """A model file cannot be used."""

    type = "checkpoint-error"
    title = "The checkpoint cannot be used"


class CheckpointNotFoundError(CheckpointError):
    """There is no such checkpoint file."""

    type = "checkpoint-not-found"
    title = "The checkpoint cannot be found"


class CheckpointFormatError(CheckpointError):
    """The file is not a Captioner checkpoint, or it is damaged."""

    type = "checkpoint-format"
    title = "Not a Captioner checkpoint"


class CheckpointVersionError(CheckpointError):
    """The checkpoint was written by a version of Captioner that this one cannot read."""

    type = "checkpoint-version"
    title = "A checkpoint of another version"


class CheckpointMismatchError(CheckpointError):
    """The tensors in the checkpoint do not fit its own configuration."""

    type = "checkpoint-mismatch"
    title = "The checkpoint contradicts itself"


class ConfigError(CaptionerError, ValueError):
    """A setting has a value that cannot work."""

    type = "config-error"
    title = "A setting cannot work"


class DataError(CaptionerError):
    """A data set cannot be read."""

    type = "data-error"
    title = "The data set cannot be read"


class DownloadError(CaptionerError):
    """A file cannot be downloaded, or is not the one that was expected."""

    type = "download-error"
    title = "The download failed"


class DeviceError(CaptionerError):
    """A device was asked for that this machine does not have."""

    type = "device-error"
    title = "The device is not available"


class GenerationError(CaptionerError):
    """The model produced scores that are not finite numbers."""

    type = "generation-error"
    title = "The model produced no usable scores"


class OutputError(CaptionerError):
    """A result cannot be written where it should go."""

    type = "output-error"
    title = "The result cannot be written"


class MissingExtraError(CaptionerError):
    """An optional part of Captioner is not installed."""

    type = "missing-extra"
    title = "An optional part is not installed"

    def __init__(self, feature: str, extra: str) -> None:
        pip = f"{shlex.quote(sys.executable or 'python3')} -m pip"  # of the Python that lacks it
        super().__init__(f"{feature} needs an optional part: {pip} install 'captioner[{extra}]'")
