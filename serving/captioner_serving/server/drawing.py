"""Previews and pictures of captions, made in the decoding processes.

The decoding processes import this module, so it must not import torch.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from PIL import Image

from captioner.drawing.animation import animation
from captioner.drawing.lettering import label
from captioner.drawing.overlay import Panel, overlay
from captioner.drawing.saving import encode_animation
from captioner.drawing.sheet import contact_sheet
from captioner.photos.transform import Box
from captioner_serving.decoding.photo import shrink

_LONGEST_SIDE = 2400
"""Pixels of the longer side of a drawn photo."""

_WHOLE = Box(0.0, 0.0, 1.0, 1.0)


@dataclass(frozen=True)
class Preview:
    """A JPEG of a photo that browsers cannot show, with no side longer than `longest` pixels."""

    longest: int
    at_least = None

    def make(self, photo: Image.Image) -> tuple[bytes, tuple[int, int], Box]:
        """See captioner_serving.decoding.photo.Output."""
        small = shrink(photo, self.longest)
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
        """See captioner_serving.decoding.photo.Output."""
        photo = shrink(photo, _LONGEST_SIDE)
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
