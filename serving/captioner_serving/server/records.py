"""The record of a caption as HTTP gives it: with what a page need not find out for itself."""

from __future__ import annotations

import base64
import io
from dataclasses import replace
from typing import Any

from PIL import Image

from captioner.caption import Alternative, Caption

__all__ = ["LONGEST_PREVIEW", "make_preview", "needs_preview", "served_record"]

LONGEST_PREVIEW = 1440
"""Pixels of a preview's longer side: sharp at 720 points on a high-density screen."""


def served_record(
    caption: Caption,
    *,
    name: str | None,
    attention: bool,
    preview: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Give a caption's record, with what is doubtful marked in it.

    Words that are drawn as guessed have `guessed`, sentences with such words a `note` that explains
    it, and a caption of a photo that is unlike those of the training has `unfamiliar`.

    Args:
        caption: what to tell.
        name: of the photo, as its owner calls it.
        attention: whether the words carry their weights.
        preview: of a photo that browsers do not show.

    """
    record = {**caption.record(attention=attention), "image": name}
    sentences = [Alternative(text=caption.text, score=caption.score, words=caption.words)]
    sentences += caption.alternatives
    for sentence, part in zip(sentences, (record, *record["alternatives"]), strict=True):
        for word, said in zip(sentence.words, part["words"], strict=True):
            if word.guessed:
                said["guessed"] = True
        if note := replace(caption, words=sentence.words).note:
            part["note"] = note
    if caption.unfamiliar:
        record["unfamiliar"] = True
    if preview is not None:
        record["preview"] = preview
    return record


def needs_preview(data: bytes) -> bool:
    """Whether browsers would show nothing of a photo, or more than the frame that is captioned."""
    if data[:4] in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+") or data[:4] == b"GIF8":
        return True
    if data[4:8] == b"ftyp":
        return data[8:12] != b"avif"  # of these containers browsers show AVIF, if it is no film
    if data[:4] == b"RIFF" and data[8:16] == b"WEBPVP8X":
        return bool(data[20] & 0x02) if len(data) > 20 else False
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        pixels = data.find(b"IDAT")
        return b"acTL" in data[: max(pixels, 0)]
    return False


def make_preview(photo: Image.Image) -> dict[str, Any]:
    """Give width and height of a photo, and a JPEG of it in a data URL."""
    photo.save(buffer := io.BytesIO(), "JPEG", quality=90)
    data = base64.b64encode(buffer.getvalue()).decode()
    image = f"data:image/jpeg;base64,{data}"
    return {"width": photo.width, "height": photo.height, "image": image}
