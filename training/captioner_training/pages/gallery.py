"""The sections of a report's page that show photos, and the table of all images."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from captioner.geometry import Framing
from captioner_training.data.images import CaptionedImage
from captioner_training.evaluation.image_row import ImageRow, best_and_worst
from captioner_training.pages.pictures import draw_looks, open_small, picture_address
from captioner_training.pages.text import in_html

if TYPE_CHECKING:  # it imports torch, which takes seconds, and captions of a file need none
    from captioner_training.evaluation.captioned import Captioned

__all__ = ["Gallery", "all_images", "best_and_worst_photos", "looked_at", "photos_of"]

_SHOWN = 8  # best, and as many worst
_LOOKED = 3  # photos with the attention of their words

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
    framing: Framing | None = None,
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


def looked_at(rows: Sequence[ImageRow], gallery: Gallery) -> str:
    """Show where the words of some captions looked: of the best, the middling and the worst."""
    if not rows:
        return ""
    order = sorted(range(len(rows)), key=lambda at: -rows[at].cider)
    last = len(order) - 1
    found = []
    for at in dict.fromkeys(order[last * part // (_LOOKED - 1)] for part in range(_LOOKED)):
        looks, picture = gallery.looks(at), gallery.picture(at)
        if not looks or picture is None:
            continue
        name = in_html(rows[at].name)
        shown = [
            f'<figure><img src="{picture}" alt="{name}"><figcaption>photo</figcaption></figure>'
        ]
        shown += [
            f'<figure><img src="{address}" alt="where it looked for {in_html(word)}">'
            f"<figcaption>{in_html(word)}</figcaption></figure>"
            for word, address in looks
        ]
        found.append(f'<div class="looks"><p>{_said(rows[at])}</p>{"".join(shown)}</div>')
    if not found:
        return ""
    shown_words = (
        "the words that drew most on the photo" if gallery.gated else "its first words for things"
    )
    return (
        f"<p>A good caption, a middling one and a poor one, each with {shown_words}:</p>"
        f"{''.join(found)}"
    )


def best_and_worst_photos(rows: Sequence[ImageRow], gallery: Gallery) -> str:
    """Show the photos with the best and the worst captions."""
    best, worst = best_and_worst(rows, _SHOWN)
    return (
        "<h2>The best</h2><p>The captions with the highest CIDEr-D, and what people wrote.</p>"
        f'<div class="photos best">{"".join(_photo(rows[at], gallery, at) for at in best)}</div>'
        "<h2>The worst</h2><p>The lowest. Now and then the caption is right, and says what nobody "
        "else thought of saying.</p>"
        f'<div class="photos worst">{"".join(_photo(rows[at], gallery, at) for at in worst)}</div>'
    )


def _photo(row: ImageRow, gallery: Gallery, at: int) -> str:
    address = gallery.picture(at)
    shown = "" if address is None else f'<img src="{address}" alt="{in_html(row.name)}">'
    lines = "".join(f"<li>{in_html(text)}</li>" for text in row.references)
    return (
        f'<article class="photo">{shown}<div><span class="cider" title="CIDEr-D">{row.cider:.0f}'
        f"</span><strong>{_said(row)}</strong><ul>{lines}</ul></div></article>"
    )


def _said(row: ImageRow) -> str:
    return in_html(row.caption) if row.caption.strip() else "<em>without a word</em>"


def all_images(rows: Sequence[ImageRow]) -> str:
    """List every image, to be searched and ordered."""
    scored = any(row.score is not None for row in rows)
    known = any(row.familiarity is not None for row in rows)
    heads = ["image", "caption", "CIDEr-D", "ROUGE-L"]
    heads += ["score"] * scored + ["familiarity"] * known + ["named, not there"]
    lines = []
    for row in rows:
        cells = [
            f"<td>{in_html(row.name)}</td><td>{_said(row)}</td>",
            _cell(row.cider, 0),
            _cell(row.rouge_l, 0),
        ]
        cells += [_cell(row.score, 2)] * scored + [_cell(row.familiarity, 2)] * known
        lines.append(f"<tr>{''.join(cells)}<td>{in_html(', '.join(row.invented))}</td></tr>")
    top = "".join(f'<th><button type="button">{head}</button></th>' for head in heads)
    return (
        f"<h2>All images</h2><details><summary>{len(rows):,} captions, one by one</summary>"
        '<input id="find" type="search" placeholder="words to look for" aria-label="words to look '
        f'for"> <span id="shown" class="soft small"></span><div class="scroll"><table id="images">'
        f"<thead><tr>{top}</tr></thead><tbody>{''.join(lines)}</tbody></table></div></details>"
    )


def _cell(value: float | None, digits: int) -> str:
    if value is None:
        return "<td></td>"
    return f'<td class="n" data-n="{value:.4f}">{value:.{digits}f}</td>'
