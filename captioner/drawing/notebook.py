"""The HTML of a caption in notebooks: pointing at a word shows its attention.

Images are embedded, and there is no script, because notebooks do not run untrusted scripts. Where
styles are removed, the sentence and a picture for every word remain.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from io import BytesIO
from string import Template
from uuid import uuid4

from PIL import Image

from captioner.drawing.lettering import percentage
from captioner.drawing.overlay import FULL_HEAT, WHOLE, Panel, fit, overlay
from captioner.photos.transform import Box

_SIDE = 440  # pixels of the photo's longer side
_SMALL = 104  # pixels of the longer side of a word's picture

_DOUBTFUL = ' class="doubtful"'

_STYLE = Template("""
#$name { max-width: 1000px; font: 14px/1.4 system-ui, sans-serif; }
#$name p { margin: 0 0 8px; }
#$name .sentence { font-size: 20px; }
#$name .sentence b { font-weight: 500; border-radius: 4px; padding: 1px 3px; cursor: default; }
#$name b.doubtful { font-style: italic; text-decoration: underline dashed; font-weight: 400; }
#$name .sheet { position: relative; display: flex; flex-wrap: wrap; gap: 12px; margin: 0 0 12px; }
#$name .sheet > img { width: min(100%, ${wide}px); height: auto; margin: 0; align-self: start; }
#$name .words { flex: 1 1 240px; display: flex; flex-wrap: wrap; gap: 8px; align-content: start; }
#$name figure { margin: 0; width: ${across}px; }
#$name figure i { display: block; height: ${down}px; font-style: normal; }
#$name figure img { width: ${across}px; height: ${down}px; margin: 0; max-width: none; }
#$name figcaption { display: flex; justify-content: space-between; gap: 4px; }
#$name figcaption small, #$name .note { opacity: .7; font-size: 12px; }
""")
_POINTED = Template("""
#$name:has([data-word="$index"]:hover, [data-word="$index"]:focus) figure[data-word="$index"] img
{ position: absolute; left: 0; top: 0; width: min(100%, ${wide}px); height: auto;
  pointer-events: none; }
#$name:has([data-word="$index"]:hover, [data-word="$index"]:focus) [data-word="$index"]
{ outline: 2px solid #c2410c; }
#$name:has([data-word="$index"]:hover, [data-word="$index"]:focus) b[data-word="$index"]
{ background: #c2410c; color: #fff; }
""")


def notebook_sheet(
    photo: Image.Image,
    panels: Sequence[Panel],
    *,
    score: float,
    alternatives: Sequence[tuple[str, float]] = (),
    note: str | None = None,
    measure: str = "",
    box: Box = WHOLE,
) -> str:
    """Return a caption as HTML, whose words react to the pointer and to the Tab key.

    `alternatives` are further sentences with their scores. Other arguments as for
    captioner.drawing.sheet.contact_sheet.
    """
    picture = fit(photo, (_SIDE, _SIDE), enlarge=2)
    small = fit(picture, (_SMALL, _SMALL), enlarge=1).size
    name = f"captioner-{uuid4().hex[:12]}"  # a notebook may have many
    fields: dict[str, object] = {"name": name, "wide": picture.width}
    style = _STYLE.substitute(fields, across=small[0], down=small[1])
    style += "".join(_POINTED.substitute(fields, index=index) for index in range(len(panels)))
    sentence = " ".join(
        f'<b data-word="{index}" tabindex="0"{_DOUBTFUL * panel.doubtful}>{escape(panel.word)}</b>'
        for index, panel in enumerate(panels)
    )
    figures = "".join(
        _figure(index, panel, overlay(picture, panel.weights, box=box))
        for index, panel in enumerate(panels)
    )
    others = "".join(
        f'<p class="note">or: {escape(text)} (score {number:.2f})</p>'
        for text, number in alternatives
    )
    legend = "" if note is None else f'<p class="note"><b{_DOUBTFUL}>word</b> {escape(note)}.</p>'
    numbers = f" Percentages: {measure}." if measure else ""
    return (
        f'<div id="{name}"><style>{style}</style>'
        f'<p class="sentence" dir="auto">{sentence} '
        f'<small class="note">score {score:.2f}</small></p>'
        f'<div class="sheet"><img src="{_source(picture)}" alt="The photo">'
        f'<div class="words">{figures}</div></div>{others}'
        f'<p class="note">Point at a word to see where the model looked. Colour begins above an '
        f"even share of attention and is full at {FULL_HEAT:.0f} times that.{numbers}</p>"
        f"{legend}</div>"
    )


def _figure(index: int, panel: Panel, picture: Image.Image) -> str:
    word = escape(panel.word)
    percent = "" if panel.confidence is None else f"<small>{percentage(panel.confidence)}</small>"
    return (
        f'<figure data-word="{index}"><i><img src="{_source(picture)}" '
        f'alt="Where the model looked for {word}"></i>'
        f"<figcaption>{word} {percent}</figcaption></figure>"
    )


def _source(picture: Image.Image) -> str:
    picture.save(buffer := BytesIO(), "WEBP", quality=82)
    return f"data:image/webp;base64,{b64encode(buffer.getvalue()).decode()}"
