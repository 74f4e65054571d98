"""Names and captions that strangers wrote, made fit for a page: they run and steer nothing."""

from __future__ import annotations

import re
from html import escape

from captioner.terminal import printable

__all__ = ["in_html", "in_markdown"]

# What begins HTML, a link, an image, code or emphasis; an underscore inside of a word does not.
_LIVE = re.compile(r"[\\`*\[\]<>&~|]|(?<![^\W_])_|_(?![^\W_])")


def in_html(text: str) -> str:
    r"""Write text for a page.

    >>> in_html("<b>a\x1b[2J\n")
    '&lt;b&gt;a\\x1b[2J'
    """
    return escape(_in_a_line(text))


def in_markdown(text: str) -> str:
    r"""Write text for Markdown.

    >>> print(in_markdown("<b> COCO_val_1 ![x](y)"))
    \<b\> COCO_val_1 !\[x\](y)
    """
    return _LIVE.sub(r"\\\g<0>", _in_a_line(text))


def _in_a_line(text: str) -> str:
    return printable(" ".join(text.split()))  # captions of COCO end in line breaks
