"""The photos of a report, drawn when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from captioner.vision.transform import Transform
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.captioned import Captioned
from captioner_training.pages.pictures import draw_looks, open_small, picture_address

__all__ = ["Gallery", "Looks", "photos_of"]

Looks = Sequence[tuple[str, str]]


def _nothing(_: int) -> None:
    return None


@dataclass(frozen=True, kw_only=True)
class Gallery:
    """The photos of a report, drawn when they are asked for.

    picture: gives the address of a photo by its place, None where there is none.
    looks: gives words with the addresses of their attention, None where there is none.
    gated: whether these are the words that drew most on the photo; else they are the first ones.
    """

    picture: Callable[[int], str | None] = _nothing
    looks: Callable[[int], Looks | None] = _nothing
    gated: bool = False


def photos_of(
    images: Sequence[CaptionedImage],
    captioned: Sequence[Captioned] = (),
    *,
    framing: Transform | None = None,
    leave_out: Collection[str] = (),
) -> Gallery:
    """Show the photos of a split, and where the words of their captions looked.

    Args:
        images: of which captions are shown.
        captioned: the same with what a model said; none: nobody knows where it looked.
        framing: of the model.
        leave_out: words that name nothing to be seen.

    """

    def picture(at: int) -> str | None:
        photo = open_small(images[at])
        return None if photo is None else picture_address(photo)

    def looks(at: int) -> Looks | None:
        photo = open_small(images[at])
        if photo is None or framing is None:
            return None
        return draw_looks(captioned[at], photo, box=framing.box(*photo.size), leave_out=leave_out)

    gated = any(one.hypothesis.gate is not None for one in captioned)
    return Gallery(picture=picture, looks=looks, gated=gated)
