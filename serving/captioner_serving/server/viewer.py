"""What the page shows of a caption: everything that hovering needs, so that it asks nothing more.

The library says where the heat is (a small grey picture for each word); the browser only colours
it and lays it over the photo. So page, command line and files agree on what heat means.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gradio as gr
from PIL import Image

from captioner.drawing.colors import (
    COLORS,
    DEFAULT_COLORS,
    FIRST_COLOR,
    OPACITY_GAIN,
    TEXTURE,
    color_scale,
    heat_grid,
)
from captioner.drawing.overlay import DEFAULT_STRENGTH, attention_map
from captioner.vision.transform import Box
from captioner.word import Word
from captioner_serving.server.elements import make_element
from captioner_serving.server.pictures import KeptCaption

__all__ = ["describe", "make_viewer"]

# Pixels on each side of a smooth heat map, stretched to the photo's shape by the browser. It holds
# nothing finer than a cell of the grid.
_HEAT_SIDE = 128


def make_viewer(
    value: dict[str, Any] | None, *, settings: dict[str, int | bool | str], styles: Sequence[str]
) -> gr.HTML:
    """The photo with the caption below it.

    Args:
        value: what `describe` returns; None shows nothing yet.
        settings: of a request, until the visitor changes them.
        styles: of captions, that the model knows.

    """
    scales = {
        name: "".join(f"{r:02x}{g:02x}{b:02x}" for r, g, b in color_scale(name))
        for name in COLORS
        if name != "spotlight"
    }
    return make_element(
        "viewer",
        value,
        settings=settings,
        styles=styles,
        colors=list(COLORS),
        scales=scales,
        default_colors=DEFAULT_COLORS,
        default_strength=DEFAULT_STRENGTH,
        blend={"opacity_gain": OPACITY_GAIN, "texture": TEXTURE, "first_color": FIRST_COLOR},
    )


def describe(
    kept: KeptCaption, *, token: str, sentence: int, head: int | None = None
) -> dict[str, Any]:
    """Turn a caption into the viewer's value: plain data, heat as data URLs, no photo.

    Args:
        kept: what to show.
        token: under which the photo and the pictures of it are found.
        sentence: which one: 0 is the caption itself, 1 the first of its alternatives.
        head: whose attention is shown, from 1; None: the mean of all.

    Raises:
        ConfigError: there is no such sentence, or no such head.

    """
    caption = kept.caption.choose(sentence)
    return {
        "caption": caption.text,
        "box": list(caption.box),
        "words": [_describe_word(word, caption.box, head) for word in caption.words],
        "note": caption.note,
        "unfamiliar": caption.unfamiliar,
        "head": head,
        "heads": max(
            (0 if word.heads is None else len(word.heads) for word in caption.words), default=0
        ),
        "first": caption.find_word() if caption.words else -1,
        "sentence": sentence,
        "sentences": [
            {"text": text, "average": _average(words)}
            for text, words in (
                (kept.caption.text, kept.caption.words),
                *((each.text, each.words) for each in kept.caption.alternatives),
            )
        ],
        "settings": {
            "beam_size": kept.beam_size,
            "captions": kept.captions,
            "check_attention": caption.checked,
            **({} if caption.style is None else {"style": caption.style}),
        },
        "token": token,
        "name": Path(kept.name).stem,
        "record": {**caption.record(attention=True), "image": kept.name},
    }


def _describe_word(word: Word, box: Box, head: int | None) -> dict[str, Any]:
    described = {
        "text": word.text,
        "probability": word.probability,
        "gate": word.gate,
        "effect": word.effect,
        "guessed": word.guessed,
    }
    weights = word.map(head)
    if weights is not None:
        smooth = attention_map(weights, (_HEAT_SIDE, _HEAT_SIDE), box=box)
        described["smooth"] = _data_url(smooth)
        described["cells"] = _data_url(heat_grid(weights).convert("L"))
    return described


def _data_url(image: Image.Image) -> str:
    image.save(buffer := io.BytesIO(), "PNG", compress_level=1)  # a visitor waits for it
    return f"data:image/png;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def _average(words: Sequence[Word]) -> float:
    """The geometric mean of the words' probabilities; 0 where one is impossible, 1 of no words."""
    if not all(word.probability for word in words):
        return 0.0
    return math.exp(sum(math.log(word.probability) for word in words) / max(len(words), 1))
