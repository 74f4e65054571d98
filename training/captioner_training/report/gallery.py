"""Photos of a report and the attention of their words, as data URIs."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image

from captioner.drawing.overlay import overlay
from captioner.errors import ImageError
from captioner.vision.image import open_image
from captioner.vision.transform import Transform
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.content import FUNCTION_WORDS

_SIDE = 360  # pixels of a photo's longer side, about 20 kB as JPEG
_MAPS = 4  # words per caption whose attention is drawn


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The photos of a report, drawn on demand.

    images: the photos.
    captioned: the captions of the photos; empty if no model made them.
    framing: the transform of the model.
    """

    images: Sequence[CaptionedImage] = ()
    captioned: Sequence[Captioned] = ()
    framing: Transform | None = None

    @property
    def gated(self) -> bool:
        """Whether `maps` chooses words by their gate; otherwise it chooses the first ones."""
        return any(caption.hypothesis.gate is not None for caption in self.captioned)

    def picture(self, at: int) -> str | None:
        """Return a photo as a data URI, or None if it cannot be opened."""
        photo = self._open(at)
        return None if photo is None else _data_uri(photo)

    def maps(self, at: int) -> list[tuple[str, str]]:
        """Return some content words of a caption, each with its overlay on the photo (a data URI).

        The words with the highest gate are chosen, or the first ones if the model has no gate.
        """
        photo = self._open(at) if self.captioned else None
        if photo is None or self.framing is None:
            return []
        caption, box = self.captioned[at], self.framing.box(*photo.size)
        attention, gates = caption.attention, caption.hypothesis.gate
        if attention is None:
            return []
        content = [at for at, word in enumerate(caption.words) if word not in FUNCTION_WORDS]
        if gates is not None:
            content = sorted(content, key=lambda at: -float(gates[at]))
        return [
            (caption.words[at], _data_uri(overlay(photo, attention[at], box=box)))
            for at in sorted(content[:_MAPS])
        ]

    def _open(self, at: int) -> Image.Image | None:
        if at >= len(self.images):
            return None
        image = self.images[at]
        try:
            photo = open_image(image.store.read(image.name), at_least=_SIDE)
        except ImageError:
            return None
        photo.thumbnail((_SIDE, _SIDE))
        return photo


def _data_uri(picture: Image.Image) -> str:
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}"
