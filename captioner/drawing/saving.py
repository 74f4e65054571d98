"""Pictures and animations into files: PNG, JPEG, WebP, GIF."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from os import PathLike
from pathlib import Path
from typing import IO, Any

from PIL import Image

from captioner.errors import OutputError
from captioner.files import replace_file

__all__ = [
    "check_suffix",
    "drawn_from",
    "encode_animation",
    "encode_image",
    "is_drawn",
    "save_animation",
    "save_image",
]

_MARK = "Captioner"
_SOFTWARE = 0x0131  # the tag of EXIF that names what made a picture
_SOURCE = 0x010D  # DocumentName: what the picture was made from

_Formats = dict[str, dict[str, Any]]
_JPEG = {"format": "JPEG", "quality": 92, "subsampling": 0}
_STILL: _Formats = {
    ".png": {"format": "PNG"},
    ".jpg": _JPEG,
    ".jpeg": _JPEG,
    ".webp": {"format": "WEBP", "quality": 90},
}
_MOVING: _Formats = {".gif": {"format": "GIF"}, ".webp": {"format": "WEBP", "quality": 85}}


def save_image(image: Image.Image, path: str | PathLike[str]) -> None:
    """Write a picture as .png, .jpg, .jpeg or .webp.

    Raises OutputError for another suffix, a missing folder, and a file that cannot be written.
    """
    target, _ = _target(path, _STILL)
    _write(target, lambda: encode_image(image, target.suffix))


def save_animation(frames: Sequence[Image.Image], path: str | PathLike[str]) -> None:
    """Write the frames of `animation.animation` as a .gif or .webp that loops forever.

    A .webp is smaller and keeps every colour; a .gif plays anywhere, with 256 colours a frame.

    Raises OutputError for another suffix, a missing folder, no frames, and a file that cannot be
    written.
    """
    target, _ = _target(path, _MOVING)
    if not frames:
        raise OutputError(f"{target} cannot be written: there are no frames")
    _write(target, lambda: encode_animation(frames, target.suffix))


def encode_image(image: Image.Image, suffix: str, *, source: str = "") -> bytes:
    """Give the bytes of the file that `save_image` would write; suffix is one of its suffixes.

    `source` says what the picture was drawn from, for `drawn_from`.

    Raises OSError or ValueError if the format cannot hold the picture.
    """
    picture = image if image.mode == "L" else image.convert("RGB")
    return _encode(picture, _STILL[suffix.lower()], source)


def encode_animation(frames: Sequence[Image.Image], suffix: str) -> bytes:
    """Give the bytes of the file that `save_animation` would write; suffix is .gif or .webp.

    Raises OSError or ValueError if the format cannot hold the frames.
    """
    options = _MOVING[suffix.lower()]
    pictures = [frame.convert("RGB") for frame in frames]
    if options["format"] == "GIF":
        # Every frame has a palette of its own, and dithering keeps skies free of bands.
        pictures = [picture.quantize(palette=picture.quantize()) for picture in pictures]
    times = [frame.info.get("duration", 800) for frame in frames]
    moving = {"save_all": True, "append_images": pictures[1:], "duration": times, "loop": 0}
    return _encode(pictures[0], options | moving)


def is_drawn(path: str | PathLike[str]) -> bool:
    """Say whether a file is a picture that Captioner wrote, which may be written over."""
    return drawn_from(path) is not None


def drawn_from(file: str | PathLike[str] | IO[bytes]) -> str | None:
    """Give the source that `encode_image` was told of, "" if of none.

    None stands for a file that Captioner did not write.
    """
    try:
        with Image.open(file) as image:
            if image.format == "GIF":
                return "" if image.info.get("comment") == _MARK.encode() else None
            exif = image.getexif()
            return str(exif.get(_SOURCE, "")) if exif.get(_SOFTWARE) == _MARK else None
    except Exception:  # of any file at all: not a picture, or one that nobody can read
        return None


def _encode(image: Image.Image, options: dict[str, Any], source: str = "") -> bytes:
    """Encode a picture with the marks that `drawn_from` looks for."""
    if options["format"] == "GIF":
        options = {**options, "comment": _MARK.encode()}
    else:
        exif = Image.Exif()
        exif[_SOFTWARE] = _MARK
        if source:
            exif[_SOURCE] = source
        options = {**options, "exif": exif}
    image.save(buffer := BytesIO(), **options)
    return buffer.getvalue()


def check_suffix(path: str | PathLike[str], *, moving: bool = False) -> None:
    """Refuse a file whose suffix no still picture has, or with `moving` no animation.

    Raises OutputError, which lists the suffixes that can be written.
    """
    _format(Path(path), _MOVING if moving else _STILL)


def _format(target: Path, formats: _Formats) -> dict[str, Any]:
    options = formats.get(target.suffix.lower())
    if options is None:
        wrong = f"it has the suffix {target.suffix!r}" if target.suffix else "it has no suffix"
        raise OutputError(f"{target} cannot be written: {wrong}; use {', '.join(formats)}")
    return options


def _target(path: str | PathLike[str], formats: _Formats) -> tuple[Path, dict[str, Any]]:
    """Find the options of the path's format, or say what is wrong before any work is done."""
    target = Path(path)
    options = _format(target, formats)
    if not target.parent.is_dir():
        raise OutputError(f"{target} cannot be written: there is no folder {target.parent}")
    return target, options


def _write(target: Path, encode: Callable[[], bytes]) -> None:
    try:
        data = encode()
    except (OSError, ValueError) as error:
        raise OutputError(f"{target} cannot be written: {error}") from error
    with replace_file(target) as file:
        file.write(data)
