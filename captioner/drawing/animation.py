"""Animations of a caption: the photo, then the attention of every word in turn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from PIL import Image

from captioner.drawing.lettering import PAPER, Text
from captioner.drawing.overlay import WHOLE, OverlayOptions, Panel, fit, overlay
from captioner.photos.transform import Box

_Size = tuple[int, int]

_WORD = 800  # milliseconds per frame


def animation(
    photo: Image.Image,
    panels: Sequence[Panel],
    *,
    note: str = "",
    box: Box = WHOLE,
    side: int = 640,
    **options: Unpack[OverlayOptions],
) -> list[Image.Image]:
    """Draw the photo, the overlay of each word in turn, and the whole caption.

    The caption and the note are below the photo, which is enlarged by a factor of at most 2. The
    current word is marked, with dashes if it is doubtful. `side` is the maximum width and height of
    a frame in pixels. Other arguments and errors as for captioner.drawing.sheet.contact_sheet.

    Returns len(panels) + 2 "RGB" images of the same size; without panels, only the photo.
    `info["duration"]` is a frame's time in milliseconds.
    """
    words = [*(panel.word for panel in panels), *note.split()]
    picture, text, size = _stage(words, photo, side)
    pictures = [picture]
    pictures += [overlay(picture, panel.weights, box=box, **options) for panel in panels]
    frames = []
    for index, shown in enumerate([*pictures, picture] if panels else pictures):
        frame = Image.new("RGB", size, PAPER)
        frame.paste(shown, ((size[0] - shown.width) // 2, 0))
        present = index - 1 if index <= len(panels) else None  # no mark in the last frame
        doubtful = 0 < index <= len(panels) and panels[index - 1].doubtful
        place = (text.size, picture.height + text.size // 2)
        text.draw(frame, place, present=present, doubtful=doubtful)
        frame.info["duration"] = _WORD * (3 if index > len(panels) else 1)
        frames.append(frame)
    return frames


def _stage(words: Sequence[str], photo: Image.Image, side: int) -> tuple[Image.Image, Text, _Size]:
    """Return the photo, the caption below it and the size of a frame."""

    def caption(size: int, width: int) -> Text:
        return Text.flow(words, size, width - 2 * size, space=0.46, center=True)

    width = max(fit(photo, (side, side), enlarge=2).width, side // 2)
    sizes = range(max(16, side // 25), 9, -1)
    texts = (caption(size, width) for size in sizes)
    text = next((text for text in texts if text.height <= side // 3), caption(sizes[-1], width))
    picture = fit(photo, (width, max(side - text.height - text.size, side // 4)), enlarge=2)
    # The caption may have made the picture narrower: make the frame narrower too.
    narrow = max(picture.width, side // 2)
    if (tighter := caption(text.size, narrow)).height == text.height:
        text, width = tighter, narrow
    return picture, text, (width, picture.height + text.height + text.size)
