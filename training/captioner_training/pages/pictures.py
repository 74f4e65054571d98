"""Photos of a report, small enough to stand inside its page."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Collection, Sequence

from PIL import Image

from captioner.drawing.overlay import overlay
from captioner.errors import ImageError
from captioner.vision.image import open_image
from captioner.vision.transform import Box
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.captioned import Captioned

__all__ = ["draw_looks", "open_small", "picture_address"]

_SIDE = 360  # pixels of the longer side: sharp where the page shows it, 20 kB as JPEG
_LOOKS = 4  # words whose attention is drawn


def open_small(image: CaptionedImage) -> Image.Image | None:
    """Open a photo of a split at the size of the page; None where it cannot be opened."""
    try:
        photo = open_image(image.store.read(image.name), at_least=_SIDE)
    except ImageError:
        return None
    photo.thumbnail((_SIDE, _SIDE))
    return photo


def picture_address(picture: Image.Image) -> str:
    """Put a picture into an address of its own, as a JPEG file."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}"


def draw_looks(
    one: Captioned, photo: Image.Image, *, box: Box, leave_out: Collection[str]
) -> Sequence[tuple[str, str]]:
    """Draw the attention of some words of a caption, but of those to leave out.

    These are the words that drew most on the photo, as the gate says; the first ones where there is
    no gate.

    Returns:
        Words in the order of the caption, each with the address of its picture; none where the
        model does not attend.

    """
    if one.attention is None:
        return []
    gates = one.hypothesis.gate
    content = [at for at, word in enumerate(one.words) if word not in leave_out]
    if gates is not None:
        content = sorted(content, key=lambda at: -float(gates[at]))
    return [
        (one.words[at], picture_address(overlay(photo, one.attention[at], box=box)))
        for at in sorted(content[:_LOOKS])
    ]
