"""The header of a checkpoint: what it says of itself, read in a millisecond and without torch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from captioner.bundled import find_bundled
from captioner.errors import (
    CheckpointFormatError,
    CheckpointNotFoundError,
    CheckpointVersionError,
    ConfigError,
)
from captioner.generation.config import GenerationConfig
from captioner.paths import expanded
from captioner.vision.geometry import TransformConfig
from captioner.vocabulary import check_style

__all__ = [
    "FORMAT_VERSION",
    "HEADER_KEY",
    "bundled_checkpoint",
    "check_head",
    "check_style_of",
    "odd_header",
    "read_generation",
    "read_header",
    "read_transform",
]

FORMAT_VERSION = 1
"""Goes up when a file of the new kind would be misread by the old code."""

HEADER_KEY = "captioner"
"""Under which the header stands in the file's metadata."""


def bundled_checkpoint() -> Path:
    """Find the checkpoint that comes with Captioner: inside the package, or in the checkout.

    Raises:
        CheckpointNotFoundError: this installation has none.

    """
    path = find_bundled("captioner.safetensors")
    if path is None:
        raise CheckpointNotFoundError(
            "the bundled checkpoint is missing from this installation: "
            "install Captioner again, or name a checkpoint file"
        )
    return path


def read_header(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Read what a checkpoint says of itself: everything but the tensors.

    Raises:
        CheckpointNotFoundError: there is no such file.
        CheckpointFormatError: it is damaged, or not a Captioner checkpoint.
        CheckpointVersionError: it was written by a version of Captioner that this one cannot read.

    """
    path = expanded(path)
    _check_kind(path)
    try:
        with safe_open(path, framework="np") as file:
            text = (file.metadata() or {}).get(HEADER_KEY)
        if text is None:
            raise CheckpointFormatError(
                f"{path} holds tensors but no Captioner configuration: "
                "it is not a Captioner checkpoint"
            )
        header = json.loads(text)
    except SafetensorError as error:
        raise CheckpointFormatError(
            f"{path} is cut off, damaged or not a safetensors file ({error}): copy it again"
        ) from error
    except (ValueError, RecursionError, OSError) as error:
        raise CheckpointFormatError(f"{path} cannot be read: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointFormatError(f"{path} has a header that is not a JSON object")
    if (version := header.get("format_version")) != FORMAT_VERSION:
        raise CheckpointVersionError(
            f"{path} has checkpoint format {version!r}; this Captioner reads format "
            f"{FORMAT_VERSION}: install the Captioner that wrote it"
        )
    return header


def read_generation(path: str | os.PathLike[str]) -> GenerationConfig:
    """Read how a checkpoint makes captions unless it is told otherwise; older ones do not say.

    Raises:
        CheckpointError: as for read_header.

    """
    try:
        return GenerationConfig(**read_header(path).get("generation", {}))
    except (ConfigError, TypeError) as error:
        raise odd_header(path, error) from error


def check_style_of(path: str | os.PathLike[str], style: str) -> None:
    """Refuse a style of captions that a checkpoint does not have.

    Raises:
        ConfigError: it has others, or none.
        CheckpointError: as for read_header.

    """
    styles = read_header(path).get("styles", [])
    if not isinstance(styles, list):
        raise odd_header(path, TypeError("its styles are no list"))
    check_style(style, styles)


def read_transform(path: str | os.PathLike[str]) -> TransformConfig:
    """Read how a checkpoint makes its square of a photo.

    Raises:
        CheckpointError: as for read_header.

    """
    try:
        return TransformConfig(**read_header(path)["transform"])
    except (ConfigError, KeyError, TypeError) as error:
        raise odd_header(path, error) from error


def odd_header(path: str | os.PathLike[str], error: Exception) -> CheckpointFormatError:
    """Say that a header has fields or values that nobody here knows."""
    return CheckpointFormatError(
        f"{path} has a header that this Captioner cannot use ({error!s}): "
        "it is damaged, or another version wrote it"
    )


def check_head(
    head: int | None, header: Mapping[str, Any], *, path: str | os.PathLike[str]
) -> None:
    """Refuse a head of the attention, from 1, that a checkpoint does not have.

    Raises:
        ConfigError: it has fewer.
        CheckpointFormatError: the header does not say how many.

    """
    if head is None:
        return
    try:
        name, count = header["name"], int(header["decoder"].get("heads", 1))  # older: no heads
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise odd_header(path, error) from error
    if not 1 <= head <= count:
        has = "one head" if count == 1 else f"the heads 1 to {count}"
        raise ConfigError(f"head {head}: the model {name} has {has}")


def _check_kind(path: Path) -> None:
    """Name the usual mistakes before the parser stumbles over them."""
    try:
        if path.is_fifo():  # opening it would wait for a writer
            raise CheckpointFormatError(f"{path} is a pipe: write the checkpoint to a file first")
        with path.open("rb") as file:
            start = file.read(64)
    except FileNotFoundError as error:
        raise CheckpointNotFoundError(f"there is no checkpoint {path}") from error
    except OSError as error:
        raise CheckpointNotFoundError(f"{path} cannot be read: {error.strerror}") from error
    if start.startswith((b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04")):
        raise CheckpointFormatError(
            f"{path} is a pickle (torch.save), which could run code when it is read: "
            "Captioner reads .safetensors files only"
        )
    if start.startswith(b"version https://git-lfs"):
        raise CheckpointFormatError(f"{path} is a Git LFS pointer: run git lfs pull")
