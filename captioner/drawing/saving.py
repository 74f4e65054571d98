"""Writing pictures and animations: PNG, JPEG, WebP, GIF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import Any

from PIL import Image

from captioner.errors import OutputError
from captioner.shared.files import replace_file

_JPEG = {"format": "JPEG", "quality": 92, "subsampling": 0}
_STILL: dict[str, dict[str, Any]] = {
    ".png": {"format": "PNG"},
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".webp": {"format": "WEBP", "quality": 90},
}
_MOVING: dict[str, dict[str, Any]] = {
    ".gif": {"format": "GIF"},
    ".webp": {"format": "WEBP", "quality": 85},
}


def save_image(image: Image.Image, path: str | PathLike[str]) -> None:
    """Write a picture as .png, .jpg, .jpeg or .webp.

    Raises OutputError: another suffix, a missing folder, or the file cannot be written.
    """
    check_suffix(path)
    picture = image if image.mode == "L" else image.convert("RGB")
    _write(Path(path), lambda suffix: _encode(picture, _STILL[suffix.lower()]))


def save_animation(frames: Sequence[Image.Image], path: str | PathLike[str]) -> None:
    """Write the frames of `animation.animation` as a .gif or .webp that loops forever.

    A .webp is smaller and has all colours; a .gif has 256 colours per frame.

    Raises OutputError: as `save_image`, or there are no frames.
    """
    check_suffix(path, moving=True)
    if not frames:
        raise OutputError(f"{path} cannot be written: there are no frames")
    _write(Path(path), partial(encode_animation, frames))


def encode_animation(frames: Sequence[Image.Image], suffix: str) -> bytes:
    """Return the bytes of the file that `save_animation` would write.

    Raises OSError or ValueError: the format cannot hold the frames.
    """
    options = _MOVING[suffix.lower()]
    pictures = [frame.convert("RGB") for frame in frames]
    if options["format"] == "GIF":
        # A palette per frame, with dithering against bands.
        pictures = [picture.quantize(palette=picture.quantize()) for picture in pictures]
    times = [frame.info.get("duration", 800) for frame in frames]
    moving = {"save_all": True, "append_images": pictures[1:], "duration": times, "loop": 0}
    return _encode(pictures[0], options | moving)


def check_suffix(path: str | PathLike[str], *, moving: bool = False) -> None:
    """Raise OutputError unless files with this suffix are pictures (animations if `moving`)."""
    suffix, formats = Path(path).suffix, _MOVING if moving else _STILL
    if suffix.lower() not in formats:
        has = f"it has the suffix {suffix!r}" if suffix else "it has no suffix"
        raise OutputError(f"{path} cannot be written: {has}; use {', '.join(formats)}")


def _encode(image: Image.Image, options: dict[str, Any]) -> bytes:
    image.save(buffer := BytesIO(), **options)
    return buffer.getvalue()


def _write(target: Path, encode: Callable[[str], bytes]) -> None:
    if not target.parent.is_dir():
        raise OutputError(f"{target} cannot be written: there is no folder {target.parent}")
    try:
        data = encode(target.suffix)
    except (OSError, ValueError) as error:
        raise OutputError(f"{target} cannot be written: {error}") from error
    with replace_file(target) as file:
        file.write(data)
