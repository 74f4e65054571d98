"""What pages are made of: photos with where the model looked, and templates."""

from __future__ import annotations

import io
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from captioner.drawing.overlay import overlay
from captioner.errors import ImageError
from captioner.terminal import printable
from captioner.vision.image import open_image
from captioner.vision.transform import Transform
from captioner_training.data.captioned import Captioned
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.content import FUNCTION_WORDS

__all__ = ["Gallery", "in_a_line", "rendered"]

_SIDE = 360  # pixels of a photo's longer side: sharp where the page shows it, 20 kB as JPEG
_MAPS = 4  # words whose attention is drawn


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The photos of a report, drawn when they are asked for.

    images: of which captions are shown; captioned: the same with what a model said, if one did;
    framing: of that model.
    """

    images: Sequence[CaptionedImage] = ()
    captioned: Sequence[Captioned] = ()
    framing: Transform | None = None

    @property
    def gated(self) -> bool:
        """Whether the words of `maps` are those that drew most on the photo, or the first ones."""
        return any(one.hypothesis.gate is not None for one in self.captioned)

    def picture(self, at: int) -> str | None:
        """Give the address of a photo by its place; None where it cannot be opened."""
        photo = self._open(at)
        return None if photo is None else _address(photo)

    def maps(self, at: int) -> list[tuple[str, str]]:
        """Draw the attention of some words for things: the words, with the addresses of pictures.

        These are the words that drew most on the photo, as the gate says; the first ones where
        there is no gate.
        """
        photo = self._open(at) if self.captioned else None
        if photo is None or self.framing is None or self.captioned[at].attention is None:
            return []
        one, box = self.captioned[at], self.framing.box(*photo.size)
        gates = one.hypothesis.gate
        content = [place for place, word in enumerate(one.words) if word not in FUNCTION_WORDS]
        if gates is not None:
            content = sorted(content, key=lambda place: -float(gates[place]))
        return [
            (one.words[place], _address(overlay(photo, attention[place], box=box)))
            for attention in [one.attention]
            if attention is not None
            for place in sorted(content[:_MAPS])
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


def _address(picture: Image.Image) -> str:
    """Put a picture into an address of its own, as a JPEG file."""
    file = io.BytesIO()
    picture.save(file, "JPEG", quality=82)
    return f"data:image/jpeg;base64,{b64encode(file.getvalue()).decode()}"


def rendered(template: str, *, escape: Callable[[str], str] | None = None, **values: object) -> str:
    """Fill a template in. Names and captions are strangers': all that is no Markup is escaped."""
    environment = Environment(
        loader=PackageLoader("captioner_training", "pages"),
        autoescape=lambda name: name != "report.md",
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: (
            (escape or in_a_line)(value)
            if isinstance(value, str) and not isinstance(value, Markup)
            else value
        ),
    )
    svg = environment.get_template("plot.svg")
    environment.globals["svg"] = lambda plot: Markup(svg.render(plot=plot))
    return environment.get_template(template).render(**values)


def in_a_line(text: str) -> str:
    """Write text in a line, with what steers a terminal made visible."""
    return printable(" ".join(text.split()))  # captions of COCO end in line breaks
